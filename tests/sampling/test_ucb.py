"""UCB-CS: the bandit against its whole history."""

from __future__ import annotations

import math
from itertools import chain

import numpy as np
import pytest
from drawing import EVEN, close, cohorts, no_probe, play

from fedsub import rng
from fedsub.method.sampling import (
    UCB,
)


class History:
    """UCB-CS from the whole history, sum by sum."""

    def __init__(self, sizes: np.ndarray, gamma: float) -> None:
        self.p, self.gamma = sizes / sizes.sum(), gamma
        self.seen: list[tuple[int, int, float, float]] = []  # round, client, loss, deviation

    def index(self, k: int, t: int) -> float:
        g = self.gamma
        mine = [(r, loss) for r, c, loss, _ in self.seen if c == k and r <= t]
        if not mine:
            return math.inf
        latest = {c: s for r, c, _, s in self.seen if r <= t}
        count = sum(g ** (t - r) for r, _ in mine)
        mean = sum(g ** (t - r) * loss for r, loss in mine) / count
        time = sum(g ** (t - r) for r in range(1, t + 1))
        return self.p[k] * (mean + math.sqrt(2 * max(latest.values()) ** 2 * math.log(time) / count))

    def stale(self, k: int, t: int) -> float:
        last = max((r for r, c, *_ in self.seen if c == k), default=None)
        return math.inf if last is None else self.index(k, last) * self.gamma ** (t - last)


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("gamma", [0.5, 0.7, 0.97, 1.0])
def test_ucb_is_the_formula_over_the_whole_history(gamma: float, stale: bool) -> None:
    sizes = np.array([7, 5, 6, 0, 5, 8, 4, 6])
    bound, truth = UCB(2, gamma, stale).bind(sizes), History(sizes, gamma)
    able, seen = np.flatnonzero(sizes), set()
    for number in [*range(1, 30), 33, 34, 40, *range(50, 80)]:  # rounds may be missing
        clients = bound.select(number, 1, no_probe).clients
        index = np.array([(truth.stale if stale else truth.index)(k, number - 1) for k in able.tolist()])
        if np.isinf(index).sum() > 2:
            assert np.isinf(index[np.searchsorted(able, clients)]).all()
        else:
            assert clients.tolist() == sorted(able[np.argsort(-index)[:2]].tolist())
        delivered = clients if number % 7 else clients[:1]  # some drop out
        chance = rng.uniform(rng.key(8, number, delivered))
        losses, deviations = 1 + 3 * chance, 0.2 + 0.5 * chance[::-1]
        bound.observe(number, delivered, losses, deviations)
        truth.seen += list(zip([number] * len(delivered), delivered.tolist(), losses, deviations, strict=True))
        seen |= set(clients.tolist())
    assert seen == set(able.tolist())


def test_without_discount_it_is_mean_and_root_of_log() -> None:
    bound = UCB(3, gamma=1.0).bind(EVEN)
    kept: dict[int, list[float]] = {k: [] for k in range(8)}
    for number in range(1, 60):
        clients = bound.select(number, 2, no_probe).clients
        if number > 4:
            index = [np.mean(kept[k]) + math.sqrt(2 * 0.3**2 * math.log(number - 1) / len(kept[k])) for k in range(8)]
            assert clients.tolist() == sorted(np.argsort(index)[-3:].tolist())
        losses = rng.uniform(rng.key(number, clients)) + 0.1 * clients
        bound.observe(number, clients, losses, np.full(3, 0.3))
        for k, loss in zip(clients.tolist(), losses, strict=True):
            kept[k].append(loss)
    assert np.allclose(bound.state["count"], [len(kept[k]) for k in range(8)])


@pytest.mark.parametrize("gamma", [0.01, 0.7, 1.0])
def test_without_spread_it_is_greedy(gamma: float) -> None:
    bound = UCB(2, gamma).bind(EVEN)
    for number in range(1, 2000):  # 0.01^1000 is no float, yet the others' means stay what they were
        clients = bound.select(number, 0, no_probe).clients
        if number > 4:
            assert clients.tolist() == [6, 7]
        bound.observe(number, clients, clients + 1.0, np.zeros(2))
    bound.observe(2000, np.array([6, 7]), np.array([-1e9, -1e9]), np.zeros(2))
    assert bound.select(2001, 0, no_probe).clients.tolist() == [4, 5]


def test_the_share_of_data_counts() -> None:
    bound = UCB(1).bind(np.array([1, 2, 4]))
    bound.observe(1, np.arange(3), np.array([3.0, 2.0, 0.9]), np.zeros(3))
    assert bound.select(2, 0, no_probe).clients.tolist() == [1]  # 3, 4, 3.6


def test_equal_losses_bring_everyone_back_only_by_the_formula() -> None:
    for how in (UCB(2), UCB(2, 1.0)):
        late = play(how.bind(EVEN), range(1, 200), constant=True)[100:]
        assert set(chain(*late)) == set(chain(*late[:50])) == set(range(8))
    stuck = play(UCB(2, stale_discount=True).bind(EVEN), range(1, 200), constant=True)
    assert set(chain(*stuck[:4])) == set(range(8))
    assert stuck[100:] == [stuck[100]] * 99


def test_equal_indices_are_ties_at_random() -> None:
    bound = UCB(2).bind(EVEN)
    close(cohorts(bound), np.full(8, 2 / 8))  # all +∞
    for number in (1, 4):
        bound.observe(number, np.arange(8), np.full(8, 0.1), np.full(8, 0.3))
    close(cohorts(bound), np.full(8, 2 / 8))


def test_bad_observations_are_none() -> None:
    bound = UCB(1).bind(EVEN)
    bound.observe(1, np.arange(8), np.array([np.nan, np.inf, 1, 1, 1, 1, 1, 1]), np.full(8, np.nan))
    assert bound.state["count"].tolist() == [0, 0, 1, 1, 1, 1, 1, 1]
    assert all(np.isfinite(a).all() for a in bound.state.values())
    assert {int(bound.select(2, s, no_probe).clients[0]) for s in range(30)} == {0, 1}
