"""Marvell's noise against the problem that it solves, written down and searched anew."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from fedsub.objective.metrics import auc
from fedsub.vertical.protection import Draws
from fedsub.vertical.protections.marvell import Marvell, allocate, divergence

CASES = {  # u, v, p, d, ‖Δ‖², P
    "rare positives that vary more": (0.01, 0.03, 0.1, 16, 1.0, 4.0),
    "negatives that vary more": (0.03, 0.01, 0.1, 16, 1.0, 4.0),
    "too little power for both": (0.001, 1.0, 0.3, 8, 1.0, 0.1),
    "alike": (1.0, 1.0, 0.5, 4, 1.0, 1.0),
    "one dimension": (1e-6, 0.2, 0.1, 1, 2.0, 5.0),
    "many dimensions": (0.02, 0.5, 0.1, 64, 1.0, 8.0),
    "a distance that is small": (0.02, 0.05, 0.4, 32, 1e-4, 1e-3),
}


def searched(u: float, v: float, p: float, d: int, gap: float, power: float) -> float:
    """The least sum of KL among many ways to share the power, refined around the best: a search that knows nothing."""
    draw = np.random.default_rng(0)
    shares, best, value = draw.dirichlet(np.full(4, 0.5), 60_000), np.full(4, 0.25), np.inf
    for wide in 0.5 ** np.arange(24):
        along0, across0, along1, across1 = shares.T * power
        along0, across0 = along0 / (1 - p), across0 / (1 - p) / max(d - 1, 1)
        along1, across1 = along1 / p, across1 / p / max(d - 1, 1)
        if d == 1:
            across0, across1 = 0 * across0, 0 * across1
        a, b, c, e = u + along0, v + along1, u + across0, v + across1
        with np.errstate(all="ignore"):
            found = (a + gap) / b + (b + gap) / a + (d - 1) * (c / e + e / c)
        found = np.where((along0 < across0) | (along1 < across1) | np.isnan(found), np.inf, found)
        if found.min() < value:
            value, best = float(found.min()), shares[found.argmin()]
        shares = np.abs(best + wide * draw.normal(size=(8000, 4)) * np.maximum(best, 0.01))
        shares /= shares.sum(1, keepdims=True)
    return value / 2 - d


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_allocation_is_the_best_one(case: tuple) -> None:
    u, v, p, d, gap, power = case
    best = allocate(*case)
    spent = p * (best.along_positive + (d - 1) * best.across_positive)
    spent += (1 - p) * (best.along_negative + (d - 1) * best.across_negative)
    assert spent == pytest.approx(power, rel=1e-9)
    assert best.along_negative >= best.across_negative >= 0
    assert best.along_positive >= best.across_positive >= 0
    wide = u + best.along_negative, v + best.along_positive, u + best.across_negative, v + best.across_positive
    assert best.divergence == pytest.approx(divergence(*wide, d, gap), rel=1e-9)
    other = searched(*case)
    assert best.divergence <= other * (1 + 1e-9)
    assert best.divergence == pytest.approx(other, rel=1e-3)


def test_the_divergence_is_that_of_two_normal_distributions() -> None:
    """Against torch's Kullback–Leibler divergence of full covariance matrices."""
    d, side = 5, torch.tensor([1.0, 2.0, -1.0, 0.5, 0.0], dtype=torch.float64)
    gap, eye = float(side.square().sum()), torch.eye(5, dtype=torch.float64)
    along = torch.outer(side, side) / gap
    for a, b, c, e in ((3.0, 1.0, 0.5, 0.2), (1.0, 2.0, 1.0, 0.1), (2.0, 2.0, 0.3, 0.3)):
        zero = MultivariateNormal(0 * side, c * eye + (a - c) * along)
        one = MultivariateNormal(side, e * eye + (b - e) * along)
        both = float(kl_divergence(zero, one) + kl_divergence(one, zero))
        assert divergence(a, b, c, e, d, gap) == pytest.approx(both, rel=1e-12)


def classes(b: int, d: int, share: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Normal gradients of two classes; the rare one is far away and varies more."""
    draw = np.random.default_rng(1)
    y = (draw.random(b) < share).astype(float)
    side = np.ones(d) / d**0.5
    x = np.where(y[:, None] > 0, -0.9 * side, 0.1 * side) + draw.normal(size=(b, d)) * (0.02 + 0.05 * y)[:, None]
    return torch.from_numpy(x), torch.from_numpy(y)


def test_the_noise_has_these_variances() -> None:
    b, d = 40_000, 6
    gradient, labels = classes(b, d, 0.2)
    sent = Marvell(4.0).protect(gradient, labels, Draws(b"k" * 32, 0, 0))
    p = float(labels.mean())
    gap = gradient[labels == 1].mean(0) - gradient[labels == 0].mean(0)
    size = float(gap.square().sum())
    u, v = (float(gradient[labels == y].var(0, correction=0).mean()) for y in (0, 1))
    best = allocate(u, v, p, d, size, 4 * size)
    for y, along, across in (
        (0, best.along_negative, best.across_negative),
        (1, best.along_positive, best.across_positive),
    ):
        noise = (sent - gradient)[labels == y]
        on = noise @ gap / size**0.5
        assert float(on.square().mean()) == pytest.approx(along, rel=0.05)
        off = noise - on[:, None] * gap / size**0.5
        assert float(off.square().sum(1).mean()) == pytest.approx((d - 1) * across, rel=0.05, abs=1e-12)
        assert abs(float(on.mean())) < 4 * (along / len(on)) ** 0.5
    assert float((sent - gradient).square().sum(1).mean()) == pytest.approx(4 * size, rel=0.05)


def test_no_attack_gets_past_the_bound_and_more_power_leaves_less() -> None:
    """The best attack there is on two normal classes, the ratio of their densities, stays below the paper's bound."""
    b, d = 20_000, 6
    gradient, labels = classes(b, d, 0.2)
    size, seen = 1.0, []
    for power in (4.0, 16.0, 64.0):
        sent = Marvell(power).protect(gradient, labels, Draws(b"k" * 32, 1, 0)).numpy()
        logs = []
        for y in (1, 0):
            some = sent[labels.numpy() == y]
            inverse, off = np.linalg.inv(np.cov(some.T)), sent - some.mean(0)
            logs.append(-0.5 * (np.einsum("ij,jk,ik->i", off, inverse, off) - np.linalg.slogdet(inverse)[1]))
        best = allocate(0.02**2, 0.07**2, 0.2, d, size, power * size)
        seen.append(auc(logs[0] - logs[1], labels.numpy()))
        assert seen[-1] < best.most_auc + 0.01
        assert best.most_auc < 1
    assert seen[0] > seen[1] > seen[2] > 0.5
    assert auc((gradient @ -torch.ones(d, dtype=torch.float64)).numpy(), labels.numpy()) > 0.999
