"""Samplers: who takes part in a round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsub import rng
from fedsub.batches import check_number
from fedsub.core import Cohort
from fedsub.errors import MethodError


@dataclass(frozen=True)
class Uniform:
    """``clients_per_round`` clients, uniformly; without replacement unless told otherwise.

    With replacement, a client drawn twice trains twice, on batches of its own each time.
    """

    clients_per_round: int = 50
    replacement: bool = False

    def __post_init__(self) -> None:
        check_number("clients_per_round", self.clients_per_round, whole=True)
        if self.clients_per_round < 1:
            raise MethodError(f"clients_per_round must be at least 1, got {self.clients_per_round}.")

    def select(self, round: int, population: int, seed: int) -> Cohort:
        k = self.clients_per_round
        word = rng.key(seed, rng.COHORT, round)
        if self.replacement:
            with np.errstate(over="ignore"):
                drawn = rng.below(rng.mix(word + np.arange(k, dtype=np.uint64)), population)
            return Cohort.of(drawn, may_repeat=True)
        if k > population:
            raise MethodError(
                f"clients_per_round={k} but there are only {population} clients; "
                "lower it, take everyone, or sample with replacement."
            )
        return Cohort.of(np.sort(rng.first_of_permutation(population, k, word)))


@dataclass(frozen=True)
class Everyone:
    """All clients, every round."""

    def select(self, round: int, population: int, seed: int) -> Cohort:
        return Cohort.of(np.arange(population))
