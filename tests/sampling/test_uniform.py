"""Uniform and Everyone: pinned draws, and who has no data."""

from __future__ import annotations

import numpy as np
import pytest
from drawing import EVEN, no_probe

from fedsub import rng
from fedsub.method.groups import Cohort
from fedsub.method.sampling import (
    Everyone,
    Uniform,
)


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
