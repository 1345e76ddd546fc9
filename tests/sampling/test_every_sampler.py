"""What holds for every sampler: the same cohorts after a resume, eligibility, descriptions, refusals."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from drawing import EVEN, fixed, no_probe, play

from fedsub.errors import MethodError
from fedsub.method.described import describe
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
    Sampler,
    Uniform,
)

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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Uniform(0), "clients_per_round must be a whole number of at least 1, got 0"),
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
        (lambda: Daily(0, 0.5), "period must be a whole number of at least 1"),
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
