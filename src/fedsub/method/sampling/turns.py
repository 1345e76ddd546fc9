"""The same clients for a few rounds: for methods whose step takes more than one exchange."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsub.checks import check_whole
from fedsub.errors import MethodError
from fedsub.method.groups import Cohort
from fedsub.method.sampling.around import Around, BoundAround
from fedsub.method.sampling.base import BoundSampler, Sampler
from fedsub.method.slots import Probe


@dataclass(frozen=True)
class InTurns(Around):
    """Any sampler, whose cohort of its round t takes part in the rounds (t−1) R + 1 … t R, R = ``rounds``.

    A sampler that learns hears of the last of them alone. One that asks for losses asks in every round.
    """

    sampler: Sampler
    rounds: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.sampler, InTurns):
            raise MethodError(f"InTurns around another InTurns keeps clients twice; give it {self.sampler.sampler!r}.")
        check_whole("rounds of InTurns", self.rounds, 1)

    def bind(self, sizes: np.ndarray) -> BoundSampler:
        return _BoundInTurns(sizes, self)


class _BoundInTurns(BoundAround):
    def __init__(self, sizes: np.ndarray, how: InTurns) -> None:
        super().__init__(sizes, how)
        self.rounds = how.rounds
        self.least, self.may_be_empty = self.inner.least, self.inner.may_be_empty

    def draw(self, round: int, seed: int, probe: Probe, pool: np.ndarray) -> Cohort:
        return self.inner.select(self._turn(round), seed, probe, pool)

    def observe(self, round: int, clients: np.ndarray, losses: np.ndarray, deviations: np.ndarray) -> None:
        if round % self.rounds == 0:
            super().observe(self._turn(round), clients, losses, deviations)

    def _turn(self, round: int) -> int:
        return (round - 1) // self.rounds + 1
