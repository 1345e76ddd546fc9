"""FedMAvg's constants: by hand, and that runs with them go down as they say."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedsub.errors import ConfigError
from fedsub.families.factorisation import FedMAvg, factorise
from fedsub.study import theory


def test_constants_by_hand():
    assert [theory.steps_on_w(20, s) for s in (1, 2, 3, 20, 21)] == [21, 11, 7, 2, 1]
    assert theory.least_gamma2(0, 2.0, 2.0) == pytest.approx(22**0.5)  # √(2 (7 + 4))
    assert theory.least_gamma2(4, 1.0, 3.0) == pytest.approx(5 * (2 * 43) ** 0.5)
    assert theory.h_factor(2.0) == 2
    assert theory.h_factor(4.0) == pytest.approx(16 / 6)
    assert theory.w_factor(1.0) == 2
    h = np.array([[1.0, 2.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]])
    gram = np.array([[6.0, 2.0], [2.0, 2.0]])
    assert theory.lipschitz_of_w(h) == pytest.approx(2 / 4 * (4 + 8**0.5))
    assert theory.lipschitz_of_h(h.T, 3) == pytest.approx(2 / 3 * np.linalg.eigvalsh(gram)[-1])


@pytest.mark.parametrize("gamma1", [1.2, 2.0, 5.0])
@pytest.mark.parametrize("gamma2", [0.6, 1.0, 3.0])
def test_every_half_of_a_round_lowers_the_objective_by_its_share(gamma1: float, gamma2: float):
    """Non-negative factorisation by hand, everybody, one step each: F loses G_H/(factor L_H), then G_W/(factor L_W)."""
    rng = np.random.default_rng(0)
    blocks = [np.abs(rng.standard_normal((7, n))) for n in (3, 5, 8)]
    shares = np.array([3, 5, 8]) / 16
    w, h = np.abs(rng.standard_normal((7, 2))), [np.abs(rng.standard_normal((2, n))) for n in (3, 5, 8)]

    def F(w, h):
        return sum(s / b.shape[1] * ((b - w @ x) ** 2).sum() for s, b, x in zip(shares, blocks, h, strict=True))

    sums, largest, first = [0.0, 0.0], [0.0, 0.0], F(w, h)
    for _ in range(60):
        before, moved, new = F(w, h), 0.0, []
        tops = [theory.lipschitz_of_h(w, b.shape[1]) for b in blocks]
        for s, b, x, top in zip(shares, blocks, h, tops, strict=True):
            c = gamma1 / 2 * top
            new.append(np.maximum(x - 2 / b.shape[1] * w.T @ (w @ x - b) / c, 0))
            moved += s * c**2 * ((new[-1] - x) ** 2).sum()
        h, after = new, F(w, new)
        assert before - after >= moved / (theory.h_factor(gamma1) * max(tops)) - 1e-12
        top = max(theory.lipschitz_of_w(x) for x in h)
        d = gamma2 * top
        slope = sum(s * 2 / b.shape[1] * (w @ x - b) @ x.T for s, b, x in zip(shares, blocks, h, strict=True))
        ahead = np.maximum(w - slope / d, 0)
        g_w = d**2 * ((ahead - w) ** 2).sum()
        w = ahead
        assert after - F(w, h) >= g_w / (theory.w_factor(gamma2) * top) - 1e-12
        sums = [sums[0] + moved, sums[1] + g_w]
        largest = [max(largest[0], *tops), max(largest[1], top)]
    lost = first - F(w, h)
    assert sums[0] <= theory.h_factor(gamma1) * largest[0] * lost
    assert sums[1] <= theory.w_factor(gamma2) * largest[1] * lost
    assert lost > 0.3 * first


def test_fedmavg_with_the_bound_on_gamma2_never_rises_and_comes_to_rest():
    """Many local steps, clients that differ: measured L_W give the bound, with which F falls in every round."""
    rng = np.random.default_rng(2)
    blocks = [np.abs(rng.standard_normal((9, n))) * scale for n, scale in ((4, 0.8), (6, 1.0), (10, 1.2))]
    q2_hat, seen = 2, []

    def watch(w, h):
        found = [theory.lipschitz_of_w(x) for x in h]
        seen.append((min(found), max(found)))
        return {}

    start = 2 * np.abs(rng.standard_normal((9, 2)))
    gamma2 = 70.0
    method = FedMAvg(q1=3, q2_hat=q2_hat, gamma1=2.0, gamma2=gamma2, projection="nonnegative")
    done = factorise(blocks, 2, rounds=300, method=method, start=start, watch=watch)
    lows, highs = zip(*seen[1:], strict=True)  # H is 0 before round 1
    assert theory.least_gamma2(q2_hat, min(lows), max(highs)) <= gamma2
    values = [line["objective"] for line in done.history]
    assert all(b <= a * (1 + 1e-12) for a, b in itertools.pairwise(values))
    rest = np.array([line["g_h"] + line["g_w"] for line in done.history[1:]])
    mean = np.cumsum(rest) / np.arange(1, 301)
    assert mean[299] < 0.4 * mean[74]  # 1/S: a quarter after four times as many rounds
    assert mean[299] * 300 < 2 * mean[149] * 150  # Σ G stays bounded


def test_refusals():
    with pytest.raises(ConfigError, match="gamma1 must be above 1"):
        theory.h_factor(1.0)
    with pytest.raises(ConfigError, match="above ½"):
        theory.w_factor(0.5)
    with pytest.raises(ConfigError, match="highest must be a finite number of at least 2"):
        theory.least_gamma2(3, 2.0, 1.0)
