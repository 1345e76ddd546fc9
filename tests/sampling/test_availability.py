"""Who can be reached: masks, chance, and windows of the day."""

from __future__ import annotations

import math

import numpy as np
import pytest
from drawing import EVEN, ROUNDS, UNEVEN, close, cohorts, fixed, no_probe

from fedsub.errors import MethodError
from fedsub.method.sampling import (
    UCB,
    Available,
    BySize,
    Daily,
    Everyone,
    Mask,
    Poisson,
    PowerOfChoice,
    Random,
    Uniform,
)


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


def test_a_pattern_of_ones_own_must_be_a_mask() -> None:
    class Odd:
        def mask(self, round: int, seed: int, population: int) -> np.ndarray:
            return np.arange(population)

    with pytest.raises(MethodError, match=r"must be bool \[8\]"):
        Available(Uniform(2), Odd()).bind(EVEN)
