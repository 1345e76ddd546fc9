"""Cohorts by chance alone: uniform, by size, everyone, or a coin per client."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsub import rng
from fedsub.checks import check_flag, check_whole
from fedsub.method.groups import Cohort
from fedsub.method.sampling.base import BoundSampler, CountedSampler, Sampler, by_size
from fedsub.method.slots import Probe


@dataclass(frozen=True)
class _Draws(CountedSampler):
    """``clients_per_round`` draws, without replacement unless told otherwise."""

    clients_per_round: int = 50
    replacement: bool = False

    def __post_init__(self) -> None:
        check_whole("clients_per_round", self.clients_per_round, 1)
        check_flag("replacement", self.replacement)

    @property
    def may_repeat(self) -> bool:
        return self.replacement


class _BoundDraws(BoundSampler):
    def __init__(self, sizes: np.ndarray, how: _Draws) -> None:
        self.count, self.repeats = how.clients_per_round, how.replacement
        self.least = 1 if how.replacement else self.count
        super().__init__(sizes, clients_per_round=self.least)

    def words(self, round: int, seed: int) -> np.ndarray:
        """A random word per draw."""
        with np.errstate(over="ignore"):
            return rng.mix(rng.key(seed, rng.COHORT, round) + np.arange(self.count, dtype=np.uint64))


@dataclass(frozen=True)
class Uniform(_Draws):
    """``clients_per_round`` clients, uniformly; without replacement unless told otherwise.

    With replacement, a client drawn twice trains twice, on batches of its own each time. A round costs
    O(clients_per_round), however many clients there are.
    """

    def bind(self, sizes: np.ndarray) -> BoundSampler:
        return _BoundUniform(sizes, self)


class _BoundUniform(_BoundDraws):
    def draw(self, round: int, seed: int, probe: Probe, pool: np.ndarray) -> Cohort:
        if self.repeats:
            return Cohort.of(pool[rng.below(self.words(round, seed), len(pool))], may_repeat=True)
        word = rng.key(seed, rng.COHORT, round)
        return Cohort.of(np.sort(pool[rng.first_of_permutation(len(pool), self.count, word)]))


@dataclass(frozen=True)
class BySize(_Draws):
    """``clients_per_round`` clients, each draw with probability w_i / Σ w over the clients not yet drawn.

    w_i is the number of samples of client i. With replacement the draws are independent, each with
    probability w_i / Σ w over all, and a client drawn twice trains twice.
    """

    def bind(self, sizes: np.ndarray) -> BoundSampler:
        return _BoundBySize(sizes, self)


class _BoundBySize(_BoundDraws):
    def draw(self, round: int, seed: int, probe: Probe, pool: np.ndarray) -> Cohort:
        if not self.repeats:
            return Cohort.of(by_size(pool, self.sizes, self.count, seed, round))
        ends = np.cumsum(self.sizes[pool])
        sample = rng.below(self.words(round, seed), int(ends[-1]))  # a sample's owner is drawn ∝ its samples
        return Cohort.of(pool[np.searchsorted(ends, sample, side="right")], may_repeat=True)


@dataclass(frozen=True)
class Everyone(Sampler):
    """All clients, every round."""

    def bind(self, sizes: np.ndarray) -> BoundSampler:
        return _BoundEveryone(sizes)


class _BoundEveryone(BoundSampler):
    def draw(self, round: int, seed: int, probe: Probe, pool: np.ndarray) -> Cohort:
        return Cohort.of(pool.copy())


@dataclass(frozen=True)
class Poisson(CountedSampler):
    """Each client by a coin of its own, with probability q = ``clients_per_round`` / N.

    The number of clients varies from round to round, and a cohort may be empty. N counts the clients with
    data; where fewer may be drawn q stays the same, as the amplification of privacy by sampling needs it.
    """

    clients_per_round: int = 50

    def __post_init__(self) -> None:
        check_whole("clients_per_round", self.clients_per_round, 1)

    def bind(self, sizes: np.ndarray) -> BoundSampler:
        return _BoundPoisson(sizes, self)


class _BoundPoisson(BoundSampler):
    may_be_empty = True
    least = 0

    def __init__(self, sizes: np.ndarray, how: Poisson) -> None:
        super().__init__(sizes, clients_per_round=how.clients_per_round)
        self.expected = how.clients_per_round

    @property
    def chance(self) -> float:
        return self.expected / len(self.able)

    def draw(self, round: int, seed: int, probe: Probe, pool: np.ndarray) -> Cohort:
        return Cohort.of(pool[rng.uniform(rng.key(seed, rng.COHORT, round, pool)) < self.chance])
