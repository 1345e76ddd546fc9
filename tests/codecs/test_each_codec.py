"""One codec after the other: majority vote, top-k, random-k, int8, and their bytes."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from sending import send, send_one
from torch import Tensor

from fedsub.method.codecs import Codec, ErrorFeedbackSign, Int8, RandomK, Sign, TopK
from fedsub.method.groups import Group
from fedsub.method.part import Total


def test_majority_vote():
    votes = [torch.tensor(v) for v in ([3.0, -1, 2, -5], [0.1, -9, -2, -1], [-7.0, 8, 0.5, -1], [1.0, -1, -3, -1])]
    sent = [send_one(Sign(), v)[0] for v in votes]
    assert torch.equal(torch.stack(sent), torch.stack(votes).sign())
    mean = {"update": {"w": torch.stack(sent).mean(0)}}
    Sign().combine(mean, Total({}, {}, {}, 4.0, 4), {}, 0)
    assert mean["update"]["w"].tolist() == [1, -1, 0, -1]


def test_sign_of_zero_is_a_fair_coin():
    x = torch.zeros(4000)
    x[:2] = torch.tensor([5.0, -5])
    first, again, other = send_one(Sign(), x)[0], send_one(Sign(), x)[0], send_one(Sign(), x, word=8)[0]
    assert first[:2].tolist() == other[:2].tolist() == [1, -1]
    assert set(first.tolist()) == {1, -1}
    assert abs(float(first.mean())) < 4 / math.sqrt(4000)
    assert torch.equal(first, again)
    assert abs(float((first * other).mean())) < 4 / math.sqrt(4000)


def test_parameters_draw_apart():
    sent, _, _ = send(Sign(), {"ab": torch.zeros(4000), "ba": torch.zeros(4000)})
    assert abs(float((sent["ab"] * sent["ba"]).mean())) < 4 / math.sqrt(4000)


def test_top_k_keeps_the_largest():
    x = torch.tensor([1.0, -4, 2, -2, 0.5, 2, 0, 3])
    assert send_one(TopK(0.5), x)[0].tolist() == [0, -4, 2, -2, 0, 0, 0, 3]  # of the three 2s the first two
    assert send_one(TopK(0.001), x)[0].tolist() == [0, -4, 0, 0, 0, 0, 0, 0]
    assert torch.equal(send_one(TopK(1), x)[0], x)
    draw = torch.randn(1000, generator=torch.Generator().manual_seed(2))
    sent, rest = send_one(TopK(0.07), draw)
    assert int((sent != 0).sum()) == 70  # 0.07 · 1000 is a hair above 70 in floating point
    assert float(sent[sent != 0].abs().min()) >= float(rest.abs().max())


def test_top_k_bytes():
    x = torch.zeros(1000)
    x[torch.tensor([3, 200, 999])] = torch.tensor([1.0, 2, 3])
    kept = TopK(0.003, feedback=False)
    assert send(kept, {"w": x})[2] == [1 + 3 * 4 + 1 + 2 + 2]  # 3; 196 and 798 left out, two bytes each
    assert send(kept, {"w": x.double()})[2] == [1 + 3 * 8 + 1 + 2 + 2]
    assert send(TopK(0.5), {"w": x})[2] == [1 + 500 * 4 + 125]  # by then a bitmap is shorter
    assert send(kept, {"w": torch.zeros(0, 3)})[2] == [0]


def test_sizes_of_the_others():
    values = {"w": torch.ones(17), "v": torch.ones(8, 2), "none": torch.zeros(0, 4)}
    assert send(Sign(), values)[2] == [3 + 2]
    assert send(ErrorFeedbackSign(), values)[2] == [3 + 4 + 2 + 4]
    assert send(ErrorFeedbackSign(), {n: v.double() for n, v in values.items()})[2] == [3 + 8 + 2 + 8]
    assert send(RandomK(0.25), values)[2] == [(5 + 4) * 4 + 8]
    assert send(Int8(), values)[2] == [17 + 4 + 16 + 4]


def _many(codec: Codec, x: Tensor, rounds: int) -> Tensor:
    """The same update from many clients, [rounds, …]: that is the same as many rounds."""
    stacked = {"w": x.expand(rounds, *x.shape)}
    words = np.random.default_rng(0).integers(0, 2**63, rounds)
    return send(codec, stacked, group=Group(rounds, True), words=words)[0]["w"]


def test_random_k_is_unbiased_without_feedback():
    x = torch.linspace(-3, 4, 30, dtype=torch.float64)
    rounds, k = 20_000, 6
    sent = _many(RandomK(0.2, feedback=False), x, rounds)
    assert ((sent != 0).sum(1) == k).all()
    deviation = x.abs() * math.sqrt((len(x) / k - 1) / rounds)
    assert ((sent.mean(0) - x).abs() <= 4 * deviation).all()
    plain = _many(RandomK(0.2, feedback=False, scale=False), x, 100)
    assert torch.equal(plain[plain != 0], x.expand_as(plain)[plain != 0])


def test_int8_is_unbiased_and_within_one_level():
    x = torch.linspace(-3, 4, 30, dtype=torch.float64)
    rounds, step = 20_000, 4 / 127
    sent = _many(Int8(), x, rounds)
    assert ((sent - x).abs() <= step * (1 + 1e-12)).all()
    assert ((sent.mean(0) - x).abs() <= 4 * step / 2 / math.sqrt(rounds)).all()
    assert torch.unique((sent / step).round()).abs().max() <= 127


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20), st.integers(0, 9))
def test_int8_of_anything(values: list[float], word: int):
    x = torch.tensor(values, dtype=torch.float32) / 2  # the largest float32 has no level above it
    sent, _ = send_one(Int8(), x, word=word)
    top = float(x.abs().max())
    level = max(top / 127, 1.5e-45)
    assert float((sent.double() - x.double()).abs().max()) <= level * (1 + 1e-6)


def test_int8_of_the_smallest_numbers():
    """Where max|x|/127 has no digits left the step is rounded up; rounded down, a byte would overflow."""
    x = torch.tensor([190.0, -190, 60, 0]) * 2.0**-149
    sent, _ = send_one(Int8(), x)
    assert ((sent - x).abs() <= 2 * 2.0**-149).all()
