"""Who can be reached in a round: a sampler restricted to the clients at hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from fedsub import rng
from fedsub.checks import check_share, check_whole
from fedsub.errors import MethodError
from fedsub.method.groups import Cohort
from fedsub.method.sampling.around import Around, BoundAround
from fedsub.method.sampling.base import BoundSampler, Sampler
from fedsub.method.slots import Probe


@runtime_checkable
class Availability(Protocol):
    """Which of ``population`` clients can be reached in a round, bool [population]."""

    def mask(self, round: int, seed: int, population: int) -> np.ndarray: ...


@dataclass(frozen=True, eq=False)
class Mask:
    """A given pattern: bool [N], the same in every round, or [R, N], row by row from round 1, then again."""

    pattern: np.ndarray

    def __post_init__(self) -> None:
        pattern = np.array(self.pattern)
        if pattern.dtype != bool or pattern.ndim not in (1, 2) or not pattern.size:
            raise MethodError(
                f"A Mask needs an array of bool, [clients] or [rounds, clients], got {pattern.dtype} "
                f"{list(pattern.shape)}; True means that the client can be reached."
            )
        pattern.flags.writeable = False
        object.__setattr__(self, "pattern", pattern)

    def mask(self, round: int, seed: int, population: int) -> np.ndarray:
        if self.pattern.shape[-1] != population:
            raise MethodError(
                f"The Mask is for {self.pattern.shape[-1]} clients but there are {population}; give one bool for each."
            )
        return self.pattern if self.pattern.ndim == 1 else self.pattern[(round - 1) % len(self.pattern)]


@dataclass(frozen=True)
class Random:
    """Each client can be reached in each round with probability ``share``, independently, by the run's seed."""

    share: float

    def __post_init__(self) -> None:
        check_share("share", self.share)

    def mask(self, round: int, seed: int, population: int) -> np.ndarray:
        return rng.uniform(rng.key(seed, rng.AVAILABLE, round, np.arange(population))) < self.share


@dataclass(frozen=True)
class Daily:
    """Client i can be reached in one window of ``share`` of each day of ``period`` rounds.

    It can in round t when (t / period + φ_i) mod 1 < share. The phase φ_i is uniform on [0, 1), by the run's
    seed and the same every day; the window is ``share · period`` rounds, rounded up or down by the phase.
    """

    period: int
    share: float

    def __post_init__(self) -> None:
        check_whole("period", self.period, 1)
        check_share("share", self.share)
        if self.share * self.period < 1 - 1e-9:
            raise MethodError(
                f"share={self.share} of period={self.period} rounds is less than one round, so that some clients "
                "could never be reached; raise one of them."
            )

    def mask(self, round: int, seed: int, population: int) -> np.ndarray:
        phase = rng.uniform(rng.key(seed, rng.PHASE, np.arange(population)))
        return (round % self.period / self.period + phase) % 1.0 < self.share


@dataclass(frozen=True)
class Available(Around):
    """Any sampler, drawing only from the clients that can be reached in the round.

    Where they are fewer than the sampler needs (``clients_per_round`` of a draw without replacement), all of
    them take part and nobody is probed; where there is none, the cohort is empty. The sampler's state is its
    own. A client that is chosen and cannot be reached later is lost, which is another matter.
    """

    sampler: Sampler
    availability: Availability

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.availability, type) or not isinstance(self.availability, Availability):
            raise MethodError(
                f"availability of Available must be an object like Random(0.8), got {self.availability!r}."
            )

    def bind(self, sizes: np.ndarray) -> BoundSampler:
        return _BoundAvailable(sizes, self)


class _BoundAvailable(BoundAround):
    may_be_empty = True
    least = 0

    def __init__(self, sizes: np.ndarray, how: Available) -> None:
        super().__init__(sizes, how)
        self.availability = how.availability
        self._mask(1, 0)  # a pattern that does not fit is refused here

    def draw(self, round: int, seed: int, probe: Probe, pool: np.ndarray) -> Cohort:
        here = pool[self._mask(round, seed)[pool]]
        if len(here) < max(1, self.inner.least):
            return Cohort.of(here)
        return self.inner.select(round, seed, probe, here)

    def _mask(self, round: int, seed: int) -> np.ndarray:
        mask = np.asarray(self.availability.mask(round, seed, len(self.sizes)))
        if mask.dtype != bool or mask.shape != self.sizes.shape:
            raise MethodError(
                f"The mask of {self.availability!r} must be bool [{len(self.sizes)}], one per client; "
                f"got {mask.dtype} {list(mask.shape)}."
            )
        return mask
