"""Who takes part: uniform, reproducible, and exactly as many as asked for."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsub as fs
from fedsub import rng
from fedsub.errors import MethodError
from fedsub.method.groups import Cohort


def select(sampler, number: int, population: int, seed: int) -> Cohort:
    return sampler.bind(np.ones(population, np.int64)).select(number, seed, lambda clients, batch: clients)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 10_000), st.data(), st.integers(0, 2**62), st.integers(0, 10**6))
def test_uniform_without_replacement(population: int, data, seed: int, number: int) -> None:
    k = data.draw(st.integers(1, min(population, 60)))
    cohort = select(fs.Uniform(k), number, population, seed)
    assert len(cohort) == k
    assert len(np.unique(cohort.clients)) == k
    assert cohort.clients.min() >= 0
    assert cohort.clients.max() < population
    assert (cohort.repeats == 0).all()
    again = select(fs.Uniform(k), number, population, seed)
    assert np.array_equal(cohort.clients, again.clients)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 3000), st.data(), st.integers(0, 2**62))
def test_some_of_are_the_first_of_the_permutation_in_order(n: int, data, seed: int) -> None:
    count, word = data.draw(st.integers(0, n)), rng.key(seed, rng.EVALUATION)
    assert np.array_equal(rng.some_of(n, count, word), np.sort(rng.first_of_permutation(n, count, word)))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 50), st.integers(1, 60), st.integers(0, 2**62))
def test_uniform_with_replacement(population: int, k: int, seed: int) -> None:
    cohort = select(fs.Uniform(k, replacement=True), 1, population, seed)
    assert len(cohort) == k
    for client in np.unique(cohort.clients):
        repeats = cohort.repeats[cohort.clients == client]
        assert repeats.tolist() == list(range(len(repeats)))


def test_rounds_and_seeds_differ() -> None:
    sampler = fs.Uniform(10)
    seen = {tuple(select(sampler, number, 1000, seed).clients) for number in range(1, 21) for seed in range(20)}
    assert len(seen) == 400


def test_all_cohorts_are_equally_likely() -> None:
    counts = dict.fromkeys(combinations(range(5), 2), 0)
    rounds = 4000
    for number in range(rounds):
        counts[tuple(select(fs.Uniform(2), number, 5, 11).clients.tolist())] += 1
    expected = rounds / 10
    chi = sum((c - expected) ** 2 / expected for c in counts.values())
    assert chi < 9 + 4 * 18**0.5  # nine degrees of freedom


def test_with_replacement_every_client_is_as_likely() -> None:
    sampler = fs.Uniform(8, replacement=True)
    drawn = np.concatenate([select(sampler, r, 10, 2).clients for r in range(1000)])
    counts = np.bincount(drawn, minlength=10)
    assert (((counts - 800) ** 2) / 800).sum() < 9 + 4 * 18**0.5


def test_a_small_cohort_of_a_huge_population_is_cheap() -> None:
    cohort = select(fs.Uniform(50), 1, 10**6, 0)
    assert len(np.unique(cohort.clients)) == 50
    assert cohort.clients.max() > 10**5


def test_everyone() -> None:
    cohort = select(fs.Everyone(), 3, 7, 1)
    assert cohort.clients.tolist() == list(range(7))
    assert cohort.repeats.tolist() == [0] * 7


def test_more_clients_than_there_are() -> None:
    with pytest.raises(MethodError, match="only 5 clients"):
        select(fs.Uniform(6), 1, 5, 0)
    assert len(select(fs.Uniform(6, replacement=True), 1, 5, 0)) == 6
    assert select(fs.Uniform(5), 1, 5, 0).clients.tolist() == list(range(5))
    with pytest.raises(MethodError, match="at least 1"):
        fs.Uniform(0)


def test_taking_part_of_a_cohort_keeps_repeats() -> None:
    cohort = Cohort.of(np.array([4, 2, 4, 4]), may_repeat=True)
    assert cohort.repeats.tolist() == [0, 0, 1, 2]
    part = cohort.take(np.array([1, 3]))
    assert part.clients.tolist() == [2, 4]
    assert part.repeats.tolist() == [0, 2]
