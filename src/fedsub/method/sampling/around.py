"""What samplers around another one share: all that they leave to it."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedsub.errors import MethodError
from fedsub.method.sampling.base import BoundSampler, Sampler


class Around(Sampler):
    """A sampler that changes when, or of whom, another one draws: ``sampler``."""

    sampler: Sampler

    def __post_init__(self) -> None:
        if not isinstance(self.sampler, Sampler):
            raise MethodError(
                f"sampler of {type(self).__name__} must be an object like Uniform(50), a Sampler, got {self.sampler!r}."
            )

    @property
    def clients_per_round(self) -> int:
        """As of the sampler; `Everyone` has none."""
        sampler: Any = self.sampler
        return sampler.clients_per_round

    @property
    def may_repeat(self) -> bool:
        return self.sampler.may_repeat

    @property
    def probes(self) -> bool:
        return self.sampler.probes

    def share(self, population: int) -> float:
        return self.sampler.share(population)


class BoundAround(BoundSampler):
    """The same, fitted to a population; ``inner`` is what is around."""

    def __init__(self, sizes: np.ndarray, how: Around) -> None:
        super().__init__(sizes)
        self.inner = how.sampler.bind(sizes)
        self.state, self.reports, self.repeats = self.inner.state, self.inner.reports, self.inner.repeats

    def meet(self, sizes: np.ndarray) -> None:
        super().meet(sizes)
        self.inner.meet(sizes)

    def observe(self, round: int, clients: np.ndarray, losses: np.ndarray, deviations: np.ndarray) -> None:
        self.inner.observe(round, clients, losses, deviations)
