"""What the papers on signs and error feedback prove, and their counter-examples."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sending import send_one

from fedsub.method.codecs import Codec, ErrorFeedbackSign, Sign


def test_error_feedback_follows_sgd():
    """x − e takes exactly the steps of plain SGD."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=draw, dtype=torch.float64)
    plain, e = x.clone(), torch.zeros_like(x)
    for _ in range(200):
        step = -0.1 * (x - 1 + torch.randn(x.shape, generator=draw, dtype=torch.float64))
        sent, e = send_one(ErrorFeedbackSign(), step, e)
        x, plain = x + sent, plain + step
        torch.testing.assert_close(x + e, plain, rtol=0, atol=1e-12)  # here e is what x has yet to receive


@pytest.mark.parametrize("zeros", [0, 3])
def test_scaled_sign_identity(zeros: int):
    """‖C(p) − p‖² = (1 − δ)‖p‖², also with zeros, since they are written as +1."""
    p = torch.randn(11, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    p[:zeros] = 0
    sent, residual = send_one(ErrorFeedbackSign(), p)
    delta = float(p.abs().sum() ** 2 / (len(p) * (p**2).sum()))
    assert 1 / len(p) <= delta <= 1
    assert float((sent - p).square().sum()) == pytest.approx((1 - delta) * float((p**2).sum()), rel=1e-12)
    assert torch.equal(residual, p - sent)
    assert torch.equal(sent[:zeros].abs(), sent.abs()[:1].expand(zeros))  # a coin decides the sign, not the size
    naive = p.abs().mean() * p.sign()  # sign(0) = 0 would break it
    assert (float((naive - p).square().sum()) == pytest.approx(float((sent - p).square().sum()))) == (zeros == 0)


def test_scaled_sign_in_one_dimension_and_at_zero():
    for value in (0.3, -7.5, 0.0):
        sent, residual = send_one(ErrorFeedbackSign(), torch.tensor(value, dtype=torch.float64))
        assert float(sent) == value
        assert float(residual) == 0
    sent, _ = send_one(ErrorFeedbackSign(), torch.zeros(9))
    assert sent.tolist() == [0] * 9


def test_counter_example_a():
    """f = x/4 with g = 4 (¼) or −1 (¾): signs climb to the maximiser +1, feedback descends to −1."""
    gradients = torch.tensor([4.0, -1, -1, -1], dtype=torch.float64)
    moved = [float(send_one(Sign(), -g)[0]) for g in gradients]
    assert np.mean(moved) == 0.5
    assert float(gradients.mean()) == 0.25
    draw = torch.Generator().manual_seed(3)
    x, y, e = (torch.zeros((), dtype=torch.float64) for _ in range(3))
    path = []
    for _ in range(4000):
        g = gradients[torch.randint(4, (1,), generator=draw)[0]]
        x = (x + 0.01 * send_one(Sign(), -g)[0]).clamp(-1, 1)
        sent, e = send_one(ErrorFeedbackSign(), -0.01 * g, e)
        y = (y + sent).clamp(-1, 1)
        path.append((float(x), float(y)))
    ends = np.mean(path[2000:], 0)
    assert ends[0] > 0.95
    assert ends[1] < -0.8


def test_counter_example_b():
    """Least squares in two dimensions: f stays at 8ε² or above by signs, scaled or not; feedback goes to 0."""
    eps, rate = 0.5, 0.05
    a = torch.tensor([[1 + eps, -1 + eps], [-1 + eps, 1 + eps]], dtype=torch.float64)
    draw = torch.Generator().manual_seed(0)
    which = torch.randint(2, (5000,), generator=draw).tolist()

    def path(codec: Codec, feedback: bool, scale: float) -> tuple[float, float]:
        x, e, lowest = torch.ones(2, dtype=torch.float64), None, math.inf
        for t, i in enumerate(which):
            pace = rate / math.sqrt(t + 1) if isinstance(codec, Sign) else 1.0
            sent, e = send_one(codec, -rate * 2 * (a[i] @ x) * a[i], e if feedback else None)
            x = x + pace * scale * sent
            lowest = min(lowest, float((a @ x).square().sum()))
        return lowest, float((a @ x).square().sum())

    floor = 8 * eps**2 * (1 - 1e-12)
    assert path(Sign(), False, 1.0)[0] >= floor
    assert path(ErrorFeedbackSign(), False, 1.0)[0] >= floor
    assert path(ErrorFeedbackSign(), True, 1.0)[1] < 1e-100
