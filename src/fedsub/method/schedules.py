"""Learning-rate schedules: a factor per round that multiplies the local learning rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from fedsub.errors import MethodError
from fedsub.method.batches import check_number


@runtime_checkable
class Schedule(Protocol):
    """What a schedule has, ours or one's own."""

    def factor(self, round: int) -> float: ...  # rounds are counted from 1


@dataclass(frozen=True)
class Exponential:
    """lr · decay^(r−1): the released FedSubAvg code multiplies the rate by 0.999 or so each round."""

    decay: float = 0.999

    def __post_init__(self) -> None:
        check_number("decay of Exponential", self.decay)
        if not 0 < self.decay <= 1:
            raise MethodError(f"decay of Exponential must lie in (0, 1], got {self.decay}.")

    def factor(self, round: int) -> float:
        return self.decay ** (round - 1)


@dataclass(frozen=True)
class Diminishing:
    """lr · b / (b + r − 1): the O(1/r) rate of the convergence theorems; half the rate after ``b`` rounds."""

    offset: float = 100.0

    def __post_init__(self) -> None:
        check_number("offset of Diminishing", self.offset)
        if not self.offset > 0:
            raise MethodError(f"offset of Diminishing must be positive, got {self.offset}.")

    def factor(self, round: int) -> float:
        return self.offset / (self.offset + round - 1)


@dataclass(frozen=True)
class Cosine:
    """lr · (f + (1 − f)(1 + cos(π (r−1)/R))/2) down to the share f = ``floor`` at round R = ``rounds``."""

    rounds: int = 400
    floor: float = 0.0

    def __post_init__(self) -> None:
        check_number("rounds of Cosine", self.rounds, whole=True)
        check_number("floor of Cosine", self.floor)
        if self.rounds < 1 or not 0 <= self.floor <= 1:
            raise MethodError(f"Cosine needs rounds ≥ 1 and 0 ≤ floor ≤ 1, got {self.rounds} and {self.floor}.")

    def factor(self, round: int) -> float:
        done = min(1.0, (round - 1) / self.rounds)
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * done)) / 2
