"""What all mechanisms of private heat have in common: `PrivateHeat`, and the `Estimate` it comes to.

    n_m = |{i : m in S(i)}|,  W_m = Σ_{i : m in S(i)} w_i

(Ding et al., NeurIPS 2022, say that n_m can be had by randomised response or secure aggregation.) Three readings of ε
are told apart, because a client holds many rows: ``epsilon_row`` for one row more or less, ``epsilon_set(k)`` for all k
rows of a client (what a budget counts), and that of one row in place of another, at most twice the first.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Protocol

import numpy as np

from fedsub.checks import check_decay, check_positive
from fedsub.errors import MethodError
from fedsub.privacy.heat.holdings import Holdings
from fedsub.privacy.heat.words import Array, Words, simulated
from fedsub.privacy.spending import Spend

BIT_BY_BIT = 2**24  # clients × rows up to which a simulation has every client answer
_BLOCK = 2**21  # words of clients that answer together


@dataclass(frozen=True, eq=False)
class Estimate:
    """Heat as it was estimated; unbiased, and therefore sometimes below 1 or above everybody."""

    heat: Array  # float64 [rows]
    deviation: Array  # standard deviation of each, as far as the server knows it
    whole: float  # N, or W
    laplace: bool = False  # how the errors are distributed; normally otherwise

    @property
    def clipped(self) -> tuple[int, int]:
        """(rows whose estimate is below 1, rows above the whole): an average clips these."""
        return int(np.count_nonzero(self.heat < 1)), int(np.count_nonzero(self.heat > self.whole))

    def interval(self, level: float = 0.95) -> tuple[Array, Array]:
        """A confidence interval of each row at this level, within what is possible."""
        check_decay("level", level)
        scale = -math.log(1 - level) / math.sqrt(2) if self.laplace else NormalDist().inv_cdf((1 + level) / 2)
        reach = scale * self.deviation
        return np.clip(self.heat - reach, 0, self.whole), np.clip(self.heat + reach, 0, self.whole)


class PrivateHeat(ABC):
    """A way to learn heat without learning who holds what. Subclasses are frozen dataclasses of settings."""

    rows: int | None  # what a client tells of at most; with more, it draws as many of its own

    @property
    @abstractmethod
    def title(self) -> str:
        """For people: "randomised response, ε 1 a row"."""

    @property
    @abstractmethod
    def epsilon_row(self) -> float:
        """For one row of one client more or less."""

    @abstractmethod
    def epsilon_set(self, rows: int) -> float:
        """For a client with so many rows, or none of them."""

    @abstractmethod
    def variance(self, heat: Any, whole: float) -> Any:
        """Var n̂_m of a row with this heat among ``whole`` clients; of weighted heat with Σ w² for both."""

    @abstractmethod
    def upload(self, rows: int) -> int:
        """Bytes that a client sends, for a table of so many rows."""

    @abstractmethod
    def spends(self, spaces: int = 1) -> tuple[Spend, ...]:
        """What it costs a client (all of its rows) to be asked about so many spaces, however often."""

    def check_fits(self, weighted: bool) -> None:  # noqa: B027
        """Raise MethodError if it cannot be an average's heat, by clients or weighted by samples."""

    def estimate(self, held: Holdings, seed: int, question: int = 0) -> Estimate:
        """What a server learns, in a simulation. The same seed and question give the same numbers."""
        self.check_fits(held.weighted)
        return with_padding(self._estimate(held, seed, question), held.padded)

    @abstractmethod
    def _estimate(self, held: Holdings, seed: int, question: int) -> Estimate: ...

    def resolvable(self, whole: float, deviations: float = 1.0) -> float:
        """The heat that is so many standard deviations of its own estimate; a row below it drowns in the noise.

        Var is a + b n, so that n² = d² (a + b n).
        """
        check_positive("deviations", deviations)
        a = float(self.variance(0.0, whole)) * deviations**2
        b = (float(self.variance(whole, whole)) * deviations**2 - a) / whole
        return (b + math.sqrt(b * b + 4 * a)) / 2


def with_padding(found: Estimate, padded: bool) -> Estimate:
    """Everybody holds the padding row: that is known, and was not asked."""
    if padded:
        found.heat[0], found.deviation[0] = found.whole, 0.0
    return found


class Tally(Protocol):
    """A server's sum over answers."""

    def add(self, answers: Array, weights: Array) -> None: ...
    def estimate(self) -> Estimate: ...


@dataclass(frozen=True)
class LocalHeat(PrivateHeat):
    """Clients randomise what they say, and need to trust nobody.

    With ``public_sizes`` a client's number of samples w_i is known, as everywhere in fedsub where clients are drawn or
    weighted by it; only then can its answer be weighted.
    """

    rows: int | None = field(default=None, kw_only=True)
    public_sizes: bool = field(default=True, kw_only=True)

    @abstractmethod
    def memo(self, held: Holdings, words: Words) -> Array:
        """What clients decide on once and for all, [clients, …]."""

    def decide(self, held: Holdings, words: Words) -> Array:
        """The `memo` of as many rows of each client as it tells of."""
        return self.memo(held if self.rows is None else held.bounded(self.rows, words), words)

    def answers(self, memo: Array, words: Words, question: int) -> Array:
        """What they say to a question."""
        return memo

    @abstractmethod
    def effort(self, size: int) -> int:
        """Words that a client draws."""

    @abstractmethod
    def tally(self, size: int) -> Tally: ...
    @abstractmethod
    def pack(self, answer: Array, size: int) -> bytes:
        """One client's answer, or memo, as `upload` bytes."""

    @abstractmethod
    def unpack(self, data: bytes, size: int) -> Array:
        """The answer of one client, [1, …]; ValueError if it is none."""

    def check_fits(self, weighted: bool) -> None:
        if weighted and not self.public_sizes:
            raise MethodError(
                f"Weighted heat by {self.title} is Σ w_i (answer_i − q)/(p − q), for which the server must know every "
                "client's number of samples w_i; with public_sizes=False it does not. Take weighting='clients', or "
                "secure-sum counts (heat='secure'), where clients weight before they are added."
            )

    def ask(self, held: Holdings, seed: int, question: int = 0) -> Iterator[tuple[Array, Array]]:
        """(answers, weights) of a simulation's clients, some at a time."""
        step = max(1, _BLOCK // max(self.effort(held.size), 1))
        for begin in range(0, len(held), step):
            some = held.take(begin, min(begin + step, len(held)))
            words = simulated(seed, held.space.name, np.arange(begin, begin + len(some)))
            yield self.answers(self.decide(some, words), words, question), some.weights

    def total(self, answers: Iterable[tuple[Array, Array]], size: int) -> Estimate:
        """The estimate from answers."""
        tally = self.tally(size)
        for some, weights in answers:
            tally.add(some, weights)
        return tally.estimate()
