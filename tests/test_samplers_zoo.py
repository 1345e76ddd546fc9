"""Samplers: laws by counting, the bandit against its whole history, and the same cohorts after a resume."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pytest

from fedsub import rng
from fedsub.errors import MethodError
from fedsub.method.described import describe
from fedsub.method.groups import Cohort
from fedsub.method.sampling import (
    UCB,
    Available,
    BoundSampler,
    BySize,
    Daily,
    Everyone,
    Mask,
    Poisson,
    PowerOfChoice,
    Random,
    Uniform,
)
from fedsub.method.slots import Sampler

ROUNDS = 4000
EVEN = np.full(8, 5)
UNEVEN = np.array([1, 2, 3, 4, 10, 20])
ALL: list[Sampler] = [
    Uniform(3),
    Uniform(3, replacement=True),
    Everyone(),
    BySize(3),
    BySize(3, replacement=True),
    Poisson(3),
    PowerOfChoice(2, 4),
    PowerOfChoice(2, 4, "cpow"),
    PowerOfChoice(2, 4, "rpow"),
    UCB(2),
    UCB(2, stale_discount=True),
    Available(UCB(2), Random(0.7)),
    Available(PowerOfChoice(2, 4, "rpow"), Daily(6, 0.5)),
]


def no_probe(clients: np.ndarray, batch: bool) -> np.ndarray:
    raise AssertionError("nobody should be asked")


def fixed(losses: np.ndarray) -> Callable[[np.ndarray, bool], np.ndarray]:
    return lambda clients, batch: losses[clients]


def cohorts(bound: BoundSampler, rounds: int = ROUNDS, seed: int = 3, probe: Any = no_probe, **more: Any) -> np.ndarray:
    """How often each client was drawn."""
    counts = np.zeros(len(bound.sizes), int)
    for number in range(1, rounds + 1):
        counts += np.bincount(bound.select(number, seed, probe, **more).clients, minlength=len(counts))
    return counts


def close(counts: np.ndarray | float, chance: np.ndarray | float, trials: int = ROUNDS) -> None:
    """Within four standard deviations of a binomial."""
    chance = np.asarray(chance)
    off = np.abs(np.asarray(counts) - trials * chance)
    assert (off <= 4 * np.sqrt(trials * chance * (1 - chance)) + 1e-9).all(), (counts, trials * chance)


def play(bound: BoundSampler, rounds: range, constant: bool = False) -> list[list[int]]:
    """Train: client k's loss drifts around k + 1; returns the cohorts."""
    out = []
    for number in rounds:
        chance = rng.uniform(rng.key(0, number, np.arange(len(bound.sizes))))
        clients = bound.select(number, 5, fixed(chance)).clients
        draws = chance[clients]
        losses = np.ones(len(clients)) if constant else (clients + 1) * (0.5 + draws)
        bound.observe(number, clients, losses, np.full(len(clients), 0.5) if constant else draws)
        out.append(clients.tolist())
    return out


# By chance alone


def old_uniform(how: Uniform, round: int, population: int, seed: int) -> Cohort:
    """`fedsub.samplers.Uniform.select` as it was before samplers were bound."""
    k, word = how.clients_per_round, rng.key(seed, rng.COHORT, round)
    if how.replacement:
        with np.errstate(over="ignore"):
            drawn = rng.below(rng.mix(word + np.arange(k, dtype=np.uint64)), population)
        return Cohort.of(drawn, may_repeat=True)
    return Cohort.of(np.sort(rng.first_of_permutation(population, k, word)))


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize(("count", "population"), [(1, 1), (5, 5), (3, 10), (50, 1000), (20, 70)])
def test_uniform_draws_what_it_always_drew(count: int, population: int, replacement: bool) -> None:
    how = Uniform(count, replacement)
    bound = how.bind(np.arange(1, population + 1))
    for number in range(30):
        new, old = bound.select(number, 2**61 + 7, no_probe), old_uniform(how, number, population, 2**61 + 7)
        assert new.clients.dtype == old.clients.dtype == np.int64
        assert np.array_equal(new.clients, old.clients)
        assert np.array_equal(new.repeats, old.repeats)


def test_uniform_has_pinned_draws() -> None:
    bound = Uniform(5).bind(np.ones(1000, int))
    assert bound.select(1, 0, no_probe).clients.tolist() == [7, 273, 292, 690, 745]
    assert Uniform(5, True).bind(np.ones(4, int)).select(1, 0, no_probe).clients.tolist() == [0, 2, 1, 2, 1]


def test_everyone_is_everyone_with_data() -> None:
    assert Everyone().bind(EVEN).select(3, 1, no_probe).clients.tolist() == list(range(8))
    bound = Everyone().bind(np.array([0, 2, 0, 1]))
    assert bound.select(3, 1, no_probe).clients.tolist() == [1, 3]
    bound.select(3, 1, no_probe).clients[:] = 0  # the caller's own
    assert bound.select(3, 1, no_probe).clients.tolist() == [1, 3]


def test_first_draw_by_size_is_by_size() -> None:
    for how in (BySize(1), BySize(1, replacement=True)):
        close(cohorts(how.bind(UNEVEN)), UNEVEN / UNEVEN.sum())


def test_by_size_without_replacement_is_sequential() -> None:
    p = UNEVEN / UNEVEN.sum()
    # in the first draw, or in the second after j
    two = p + np.array([sum(p[j] * p[k] / (1 - p[j]) for j in range(6) if j != k) for k in range(6)])
    close(cohorts(BySize(2).bind(UNEVEN)), two)


def test_by_size_with_replacement_is_independent() -> None:
    bound = BySize(4, replacement=True).bind(UNEVEN)
    p = UNEVEN / UNEVEN.sum()
    close(cohorts(bound), p, 4 * ROUNDS)
    twins = [bound.select(r, 1, no_probe).clients for r in range(ROUNDS)]
    close(sum(int(c[0] == c[1]) for c in twins), (p**2).sum())
    assert any(bound.select(r, 1, no_probe).repeats.max() > 0 for r in range(20))


def test_poisson_flips_a_coin_per_client() -> None:
    bound = Poisson(2).bind(np.append(EVEN, 0))  # N = 8: who has no data does not count
    sizes = np.array([len(bound.select(r, 4, no_probe)) for r in range(ROUNDS)])
    assert abs(sizes.mean() - 2) < 4 * math.sqrt(8 * 0.25 * 0.75 / ROUNDS)
    close(float((sizes == 0).sum()), 0.75**8)
    close(cohorts(bound)[:8], np.full(8, 0.25))
    assert bound.may_be_empty
    assert bound.select(int(np.argmin(sizes)), 4, no_probe).clients.tolist() == []
    assert len(Poisson(8).bind(EVEN).select(1, 0, no_probe)) == 8  # q = 1
    close(cohorts(bound, eligible=np.array([1, 2]))[1:3], np.full(2, 0.25))  # q does not change


# Power of choice


def test_worst_of_candidates_has_its_closed_form() -> None:
    k, d = 8, 3
    losses = np.array([3.0, 9, 1, 4, 8, 2, 7, 5])
    counts = cohorts(PowerOfChoice(1, d).bind(EVEN), probe=fixed(losses))
    rank = np.argsort(np.argsort(-losses)) + 1
    close(counts, np.array([math.comb(k - j, d - 1) / math.comb(k, d) for j in rank]))


@pytest.mark.parametrize("variant", ["pow", "cpow"])
def test_all_candidates_give_the_worst(variant: str) -> None:
    losses = np.array([3.0, 9, 1, 4, 8, 2])
    asked = []

    def probe(clients: np.ndarray, batch: bool) -> np.ndarray:
        asked.append((clients.tolist(), batch))
        return losses[clients]

    bound = PowerOfChoice(2, 6, variant).bind(UNEVEN)
    for number in range(20):
        assert bound.select(number, number, probe).clients.tolist() == [1, 4]
    assert asked == [(list(range(6)), variant == "cpow")] * 20
    assert bound.state == {}


def test_as_many_candidates_as_clients_is_by_size() -> None:
    power, plain = PowerOfChoice(3, 3).bind(UNEVEN), BySize(3).bind(UNEVEN)
    for number in range(200):
        chosen = power.select(number, 9, fixed(np.arange(6.0))).clients
        assert np.array_equal(chosen, plain.select(number, 9, no_probe).clients)


def test_candidates_are_drawn_by_size_and_never_without_data() -> None:
    sizes = np.array([0, 1, 3, 0, 6])
    seen = np.zeros(5, int)

    def probe(clients: np.ndarray, batch: bool) -> np.ndarray:
        np.add.at(seen, clients, 1)
        return np.array([99.0, 1, 1, 99, 1])[clients]

    bound = PowerOfChoice(1, 1).bind(sizes)
    cohorts(bound, probe=probe)
    assert seen[[0, 3]].sum() == 0
    close(seen, sizes / 10)
    with pytest.raises(MethodError, match="candidates=4 but there are only 3 clients"):
        PowerOfChoice(1, 4).bind(sizes)


def test_ties_and_losses_that_are_no_number() -> None:
    bound = PowerOfChoice(2, 8).bind(EVEN)
    close(cohorts(bound, probe=fixed(np.zeros(8))), np.full(8, 2 / 8))
    partly = fixed(np.array([5.0, 1, 1, 1, 1, 1, 1, 0]))
    counts = cohorts(bound, probe=partly)
    assert counts[0] == ROUNDS
    assert counts[7] == 0
    close(counts[1:7], np.full(6, 1 / 6))
    assert bound.select(1, 0, fixed(np.array([1, np.nan, 1, 1, 1, 1, 9, 1]))).clients.tolist() == [1, 6]


def test_rpow_asks_nobody_and_prefers_who_was_never_seen() -> None:
    bound = PowerOfChoice(2, 6, "rpow").bind(UNEVEN)
    first = []
    for number in (1, 2, 3):
        clients = bound.select(number, 0, no_probe).clients
        assert np.isinf(bound.state["loss"][clients]).all()
        bound.observe(number, clients, clients + 10.0, np.zeros(2))
        first += clients.tolist()
    assert sorted(first) == list(range(6))
    assert bound.select(4, 0, no_probe).clients.tolist() == [4, 5]  # then the largest last loss
    bound.observe(4, np.array([4, 5]), np.array([1.0, np.nan]), np.zeros(2))
    assert bound.state["loss"].tolist() == [10, 11, 12, 13, 1, 15]
    assert bound.select(5, 0, no_probe).clients.tolist() == [3, 5]


def test_fewer_candidates_than_asked_for() -> None:
    bound = PowerOfChoice(2, 5).bind(UNEVEN)
    losses = fixed(np.arange(6.0))
    assert bound.select(1, 0, losses, np.array([0, 2, 3])).clients.tolist() == [2, 3]
    with pytest.raises(MethodError, match="needs 2 clients but only 1 clients"):
        bound.select(1, 0, losses, np.array([3]))


# The bandit


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


# All of them


@pytest.mark.parametrize("how", ALL, ids=repr)
def test_a_resumed_run_draws_the_same_cohorts(how: Sampler) -> None:
    sizes = np.array([3, 5, 0, 2, 9, 4, 4, 7])
    whole = how.bind(sizes)
    first, rest = play(whole, range(1, 21)), play(whole, range(21, 60))
    half, fresh = how.bind(sizes), how.bind(sizes)
    assert play(half, range(1, 21)) == first
    assert fresh.state.keys() == half.state.keys()
    for name, array in half.state.items():
        fresh.state[name][...] = array.copy()
    assert play(fresh, range(21, 60)) == rest
    assert play(how.bind(sizes), range(1, 60)) == first + rest
    assert all(2 not in c for c in first + rest)


@pytest.mark.parametrize("how", ALL, ids=repr)
def test_select_changes_nothing_and_keeps_to_the_eligible(how: Sampler) -> None:
    sizes = np.array([3, 5, 0, 2, 9, 4, 4, 7])
    bound = how.bind(sizes)
    play(bound, range(1, 6))
    before = {name: array.copy() for name, array in bound.state.items()}
    eligible = np.array([1, 2, 4, 6, 7])
    drawn = set()
    for number in range(6, 60):
        one = bound.select(number, 0, fixed(np.arange(8.0)), eligible)
        two = bound.select(number, 0, fixed(np.arange(8.0)), eligible)
        assert np.array_equal(one.clients, two.clients)
        assert one.clients.dtype == np.int64
        if not getattr(how, "replacement", False):
            assert (np.diff(one.clients) > 0).all()
        drawn |= set(one.clients.tolist())
    assert drawn <= {1, 4, 6, 7}
    assert all(np.array_equal(bound.state[name], array) for name, array in before.items())


@pytest.mark.parametrize("how", [Uniform(4), BySize(4), UCB(4), PowerOfChoice(4, 5)], ids=repr)
def test_too_few_clients(how: Sampler) -> None:
    with pytest.raises(MethodError, match="only 3 clients with data"):
        how.bind(np.array([1, 0, 2, 3]))
    with pytest.raises(MethodError, match="Round 7 needs 4 clients but only 2"):
        how.bind(EVEN).select(7, 0, fixed(np.arange(8.0)), np.array([1, 3]))
    with pytest.raises(MethodError, match="None of the 3 clients has data"):
        how.bind(np.zeros(3, int))


def test_repeats_need_only_one_client() -> None:
    for how in (Uniform(4, True), BySize(4, True)):
        cohort = how.bind(np.array([0, 3])).select(1, 0, no_probe)
        assert cohort.clients.tolist() == [1] * 4
        assert cohort.repeats.tolist() == [0, 1, 2, 3]


def test_settings_are_described() -> None:
    assert describe(UCB(2)) == {"type": "UCB", "clients_per_round": 2, "gamma": 0.7, "stale_discount": False}
    assert describe(BySize(2)) == {"type": "BySize", "clients_per_round": 2, "replacement": False}
    told = describe(Available(Uniform(4), Mask(EVEN > 0)))
    assert told["sampler"]["clients_per_round"] == 4
    assert told["availability"]["pattern"].startswith("array (8,)")
    assert all(how.clients_per_round for how in ALL if how != Everyone())  # type: ignore[attr-defined]
    assert not hasattr(Everyone(), "clients_per_round")
    assert not hasattr(Available(Everyone(), Random(0.5)), "clients_per_round")
    assert len({Uniform(3), BySize(3), Uniform(3), Available(Uniform(3), Random(0.5))}) == 3
    assert Uniform(3) != BySize(3)


# Who can be reached


def test_a_mask_repeats_over_rounds() -> None:
    pattern = np.eye(3, 6, dtype=bool)
    bound = Available(Everyone(), Mask(pattern)).bind(UNEVEN)
    assert [bound.select(r, 0, no_probe).clients.tolist() for r in range(1, 7)] == [[0], [1], [2]] * 2
    pattern[:] = True  # the mask is its own
    assert bound.select(1, 0, no_probe).clients.tolist() == [0]
    still = Available(Everyone(), Mask(UNEVEN > 2)).bind(UNEVEN)
    assert all(still.select(r, 0, no_probe).clients.tolist() == [2, 3, 4, 5] for r in range(5))


def test_random_availability_is_independent() -> None:
    masks = np.array([Random(0.3).mask(r, 7, 6) for r in range(ROUNDS)])
    close(masks.sum(0), np.full(6, 0.3))
    for other in (masks[:, 1], np.roll(masks[:, 0], 1)):  # of other clients, of other rounds
        close(float((masks[:, 0] & other).sum()), 0.09)
    assert not np.array_equal(masks[:50], [Random(0.3).mask(r, 8, 6) for r in range(50)])
    assert Random(1.0).mask(1, 0, 50).all()


@pytest.mark.parametrize(("period", "share"), [(24, 0.25), (10, 0.33), (7, 0.5), (5, 1.0), (49, 1 / 49)])
def test_daily_is_one_window_a_day(period: int, share: float) -> None:
    masks = np.array([Daily(period, share).mask(r, 3, 500) for r in range(1, 2 * period + 1)])
    day = masks[:period]
    assert np.array_equal(day, masks[period:])
    counts = day.sum(0)
    exact = share * period
    assert counts.min() >= math.floor(exact + 1e-9)
    assert counts.max() <= math.ceil(exact - 1e-9)
    starts = (day & ~np.roll(day, 1, axis=0)).sum(0)
    assert (starts == (0 if share == 1 else 1)).all()
    for now in day:
        close(float(now.sum()), share, 500)


def test_daily_windows_differ_between_clients_and_seeds() -> None:
    day = np.array([Daily(10, 0.3).mask(r, 3, 50) for r in range(10)])
    assert len(np.unique(day, axis=1).T) == 10
    assert not np.array_equal(day[0], Daily(10, 0.3).mask(0, 4, 50))


def test_fewer_at_hand_than_asked_for() -> None:
    three = Mask(np.array([[1, 1, 0, 1, 0, 0], [0] * 6], bool))
    for how in (Uniform(4), BySize(4), UCB(4), PowerOfChoice(4, 5)):
        bound = Available(how, three).bind(UNEVEN)
        assert bound.may_be_empty
        assert bound.select(1, 0, no_probe).clients.tolist() == [0, 1, 3]
        empty = bound.select(2, 0, no_probe)
        assert len(empty) == 0
        assert empty.clients.dtype == np.int64
    # a draw with replacement and a coin per client keep their law
    assert len(Available(Uniform(4, True), three).bind(UNEVEN).select(1, 0, no_probe)) == 4
    close(cohorts(Available(Poisson(3), Mask(UNEVEN > 3)).bind(UNEVEN))[3:], np.full(3, 0.5))


def test_available_draws_as_the_sampler_of_those_at_hand() -> None:
    at_hand = np.array([0, 2, 3, 5, 7])
    mask = Mask(np.isin(np.arange(8), at_hand))
    for how in (Uniform(3), BySize(3), Poisson(3), PowerOfChoice(2, 4)):
        inner, outer = how.bind(EVEN), Available(how, mask).bind(EVEN)
        twice = Available(Available(how, mask), Random(1.0)).bind(EVEN)
        for number in range(1, 40):
            one = inner.select(number, 6, fixed(np.arange(8.0)), at_hand).clients
            for bound in (outer, twice):
                assert np.array_equal(one, bound.select(number, 6, fixed(np.arange(8.0))).clients)


def test_available_keeps_the_samplers_state() -> None:
    bound = Available(UCB(2), Mask(UNEVEN > 2)).bind(UNEVEN)
    bound.observe(1, np.array([2, 3]), np.array([4.0, 5.0]), np.zeros(2))
    assert bound.state["mean"].tolist() == [0, 0, 4, 5, 0, 0]
    assert bound.select(2, 0, no_probe).clients.tolist() == [4, 5]


# Nonsense


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Uniform(0), "clients_per_round must be at least 1, got 0"),
        (lambda: Uniform(2.5), "whole number"),  # type: ignore[arg-type]
        (lambda: Uniform(True), "whole number"),
        (lambda: Uniform(3, "yes"), "replacement must be True or False"),  # type: ignore[arg-type]
        (lambda: BySize(-1), "at least 1"),
        (lambda: BySize(3, 1), "replacement"),  # type: ignore[arg-type]
        (lambda: Poisson(0), "at least 1"),
        (lambda: Poisson(9).bind(EVEN), "only 8 clients"),
        (lambda: Everyone().bind(np.zeros(2, int)), "None of the 2 clients has data"),
        (lambda: PowerOfChoice(0, 3), "at least 1"),
        (lambda: PowerOfChoice(3, 2), "candidates=2 is less than clients_per_round=3"),
        (lambda: PowerOfChoice(3, 2.5), "whole number"),  # type: ignore[arg-type]
        (lambda: PowerOfChoice(3, 6, "cpov"), "did you mean 'cpow'"),
        (lambda: PowerOfChoice(3, 6, None), "variant=None"),  # type: ignore[arg-type]
        (lambda: UCB(0), "at least 1"),
        (lambda: UCB(2, 0.0), "gamma must be above 0 and at most 1, got 0"),
        (lambda: UCB(2, 1.1), "gamma"),
        (lambda: UCB(2, math.nan), "finite number"),
        (lambda: UCB(2, 0.7, 1), "stale_discount"),  # type: ignore[arg-type]
        (lambda: Random(0.0), "share"),
        (lambda: Random("half"), "finite number"),  # type: ignore[arg-type]
        (lambda: Daily(0, 0.5), "period must be at least 1"),
        (lambda: Daily(24, 1.5), "share"),
        (lambda: Daily(10, 0.05), "less than one round"),
        (lambda: Mask(np.ones(3)), "array of bool.*float64"),
        (lambda: Mask(np.ones((1, 2, 3), bool)), "array of bool"),
        (lambda: Mask(np.ones(0, bool)), "array of bool"),
        (lambda: Available(Uniform(2), Mask(np.ones(3, bool))).bind(EVEN), "for 3 clients but there are 8"),
        (lambda: Available(Uniform, Random(0.5)), "sampler of Available must be an object like"),  # type: ignore[arg-type]
        (lambda: Available(Uniform(2), 0.5), "availability of Available"),  # type: ignore[arg-type]
        (lambda: Available(Uniform(9), Random(0.5)).bind(EVEN), "only 8 clients"),
    ],
)
def test_nonsense_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(MethodError, match=message):
        make()


def test_a_pattern_of_ones_own_must_be_a_mask() -> None:
    class Odd:
        def mask(self, round: int, seed: int, population: int) -> np.ndarray:
            return np.arange(population)

    with pytest.raises(MethodError, match=r"must be bool \[8\]"):
        Available(Uniform(2), Odd()).bind(EVEN)
