"""A share of the clients instead of a number of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from fedsub.checks import check_share
from fedsub.errors import MethodError
from fedsub.method.sampling.base import BoundSampler, CountedSampler, Sampler


@dataclass(frozen=True)
class Fraction(Sampler):
    """Any sampler of a number of clients, with K = max(⌈C · N⌉, 1) of them; C is ``fraction``.

    N counts the clients with data. McMahan et al., "Communication-Efficient Learning of Deep Networks from
    Decentralized Data", AISTATS 2017, algorithm 1.
    """

    fraction: float
    sampler: CountedSampler

    def __post_init__(self) -> None:
        check_share("clients_fraction", self.fraction, hint="it is C, the share of the clients in a round")
        if not isinstance(self.sampler, CountedSampler):
            raise MethodError(f"sampler of Fraction must be one of a number, like Uniform(), got {self.sampler!r}.")

    @property
    def may_repeat(self) -> bool:
        return self.sampler.may_repeat

    @property
    def probes(self) -> bool:
        return self.sampler.probes

    def count(self, population: int) -> int:
        """K for so many clients with data. What C · N is too much by rounding, as 0.1 · 30, does not count."""
        return max(1, math.ceil(self.fraction * population * (1 - 1e-12)))

    def share(self, population: int) -> float:
        return min(1.0, self.count(population) / population)

    def bind(self, sizes: np.ndarray) -> BoundSampler:
        count = self.count(int(np.count_nonzero(sizes)))
        return replace(self.sampler, clients_per_round=count).bind(sizes)  # type: ignore[type-var]
