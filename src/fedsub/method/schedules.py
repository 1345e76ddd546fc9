"""Learning-rate schedules: a factor per round that multiplies the local learning rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from fedsub.checks import check_mix, check_positive, check_share, check_whole


@runtime_checkable
class Schedule(Protocol):
    """What a schedule has, ours or one's own."""

    def factor(self, round: int) -> float: ...  # rounds are counted from 1


@dataclass(frozen=True)
class Exponential:
    """lr · decay^(r−1): the released FedSubAvg code multiplies the rate by 0.999 or so each round."""

    decay: float = 0.999

    def __post_init__(self) -> None:
        check_share("decay of Exponential", self.decay)

    def factor(self, round: int) -> float:
        return self.decay ** (round - 1)


@dataclass(frozen=True)
class Diminishing:
    """lr · b / (b + r − 1): the O(1/r) rate of the convergence theorems; half the rate after ``b`` rounds."""

    offset: float = 100.0

    def __post_init__(self) -> None:
        check_positive("offset of Diminishing", self.offset)

    def factor(self, round: int) -> float:
        return self.offset / (self.offset + round - 1)


@dataclass(frozen=True)
class Cosine:
    """lr · (f + (1 − f)(1 + cos(π (r−1)/(R−1)))/2): the full rate in round 1, the share f = ``floor`` from round R on.

    R is ``rounds``; R = 1 is a single round at the full rate.
    """

    rounds: int = 400
    floor: float = 0.0

    def __post_init__(self) -> None:
        check_whole("rounds of Cosine", self.rounds, 1)
        check_mix("floor of Cosine", self.floor)

    def factor(self, round: int) -> float:
        done = min(1.0, (round - 1) / max(1, self.rounds - 1))
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * done)) / 2
