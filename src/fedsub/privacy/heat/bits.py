"""A bit for every row of the table, each answered at random: `RandomizedResponse` and `PermanentResponse`.

An answer is drawn once for every client and row and then stands. Were it drawn anew for every question, the mean of a
client's answers would give its bit away. `PermanentResponse` answers each question with a second randomised response to
the first, so that one question tells less than all of them together, and all of them no more than the first answer
(Erlingsson, Pihur, Korolova, "RAPPOR", CCS 2014; the presets are those of Niu et al., "Billion-Scale Federated Learning
on Mobile Clients", MobiCom 2020).

A simulation touches no clients × rows bits: of the n_m holders of a row Binomial(n_m, p) say 1, and of the others
Binomial(N − n_m, q), which is exactly how the sum of their answers is distributed. Where that is few enough anyway
(`BIT_BY_BIT`) every client answers by itself, as a node does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedsub.checks import check_number, check_whole
from fedsub.errors import MethodError, nearest
from fedsub.privacy.heat.holdings import Holdings
from fedsub.privacy.heat.mechanism import BIT_BY_BIT, Estimate, LocalHeat
from fedsub.privacy.heat.response import Response
from fedsub.privacy.heat.words import FRESH, PERMANENT, Array, Words, draws, simulated
from fedsub.privacy.spending import Spend
from fedsub.rng import uniform

KINDS = ("symmetric", "optimal")
PRESETS = {  # p1 = p3, p2 = p4
    1: (1.0, 0.0), 2: (15 / 16, 1 / 16), 3: (7 / 8, 1 / 8), 4: (3 / 4, 1 / 4), 5: (1.0, 1.0),
}  # fmt: skip


@dataclass(frozen=True)
class Bits(LocalHeat):
    """Both are this: a ``lasting`` answer, and perhaps a ``fresh`` one to it."""

    @property
    def lasting(self) -> Response:
        raise NotImplementedError

    @property
    def fresh(self) -> Response | None:
        return None

    @cached_property
    def once(self) -> Response:
        """What an answer to one question is altogether."""
        return self.lasting if self.fresh is None else self.lasting.then(self.fresh)

    def _check(self) -> None:
        if self.rows is not None:
            check_whole(f"rows of {type(self).__name__}", self.rows, 1)

    def check_fits(self, weighted: bool) -> None:
        super().check_fits(weighted)
        self.once.check_tells(self.title)

    @property
    def epsilon_row(self) -> float:
        return self.lasting.epsilon

    def epsilon_set(self, rows: int) -> float:
        """Basic composition: k ε for k rows."""
        told = rows if self.rows is None else min(rows, self.rows)
        return told * self.epsilon_row if told else 0.0

    def variance(self, heat: Any, whole: float) -> Any:
        return self.once.variance(heat, whole)

    def upload(self, rows: int) -> int:
        return -(-rows // 8)

    def spends(self, spaces: int = 1, what: str = "heat") -> tuple[Spend, ...]:
        """Once, for all questions: the lasting answers. Without ``rows`` a client's ε has no bound."""
        if self.rows is None and self.epsilon_row:
            return (Spend.pure(f"{what} by {self.title}; rows=k bounds it for all rows of a client", math.inf),)
        return (Spend.pure(f"{what} by {self.title}", self.epsilon_set(self.rows or 0), times=spaces),)

    # Clients

    def effort(self, size: int) -> int:
        return size

    def memo(self, held: Holdings, words: Words) -> Array:
        chance = np.where(held.mask(), self.lasting.p, self.lasting.q)
        return uniform(words(PERMANENT, 0, held.size)) < chance

    def answers(self, memo: Array, words: Words, question: int) -> Array:
        if self.fresh is None:
            return memo
        chance = np.where(memo, self.fresh.p, self.fresh.q)
        return uniform(words(FRESH, question, memo.shape[1])) < chance

    def pack(self, answer: Array, size: int) -> bytes:
        return np.packbits(answer).tobytes()

    def unpack(self, data: bytes, size: int) -> Array:
        if len(data) != self.upload(size):
            raise ValueError(f"{len(data)} bytes for the bits of {size} rows")
        return np.unpackbits(np.frombuffer(data, np.uint8), count=size).astype(bool)[None]

    # The server

    def tally(self, size: int) -> BitTally:
        return BitTally(self.once, np.zeros(size), np.zeros(size))

    def _estimate(self, held: Holdings, seed: int, question: int) -> Estimate:
        if len(held) * held.size <= BIT_BY_BIT:
            return self.total(self.ask(held, seed, question), held.size)
        if self.rows is not None:
            held = held.bounded(self.rows, simulated(seed, held.space.name, np.arange(len(held))))
        tally = self.tally(held.size)
        for weight, clients, own in held.groups():
            ones = _ones(self.lasting, own, clients, draws(seed, held.space.name, PERMANENT, 0, int(weight)))
            if self.fresh is not None:
                again = draws(seed, held.space.name, FRESH, question, int(weight))
                ones = _ones(self.fresh, ones, clients, again)
            tally.add_ones(ones, weight, clients)
        return tally.estimate()


def _ones(response: Response, having: Array, clients: int, draw: np.random.Generator) -> Array:
    """How many of so many clients say 1, of whom ``having`` have the bit."""
    ones = draw.binomial(clients - having, response.q)
    some = having.nonzero()[0]
    ones[some] += draw.binomial(having[some], response.p)
    return ones


@dataclass
class BitTally:
    """Σ w_i answer_i and Σ w_i² answer_i: the estimate, and its variance."""

    response: Response
    first: Array
    second: Array
    whole: float = 0.0
    squares: float = 0.0

    def add(self, answers: Array, weights: Array) -> None:
        bits = answers.astype(np.float64)
        self.first += weights @ bits
        self.second += (weights**2) @ bits
        self.whole += float(weights.sum())
        self.squares += float((weights**2).sum())

    def add_ones(self, ones: Array, weight: float, clients: int) -> None:
        """Of so many clients of one weight, how many said 1."""
        self.first += weight * ones
        self.second += weight**2 * ones
        self.whole += weight * clients
        self.squares += weight**2 * clients

    def estimate(self) -> Estimate:
        squares = np.clip(self.response.estimate(self.second, self.squares), 0, self.squares)
        deviation = np.sqrt(self.response.variance(squares, self.squares))
        return Estimate(self.response.estimate(self.first, self.whole), deviation, self.whole)


@dataclass(frozen=True)
class RandomizedResponse(Bits):
    """Randomised response with ε, or with p and q.

    ``kind`` "symmetric": ε is for one row of a client more or less. "optimal" (p = 1/2): ε is for one row in place of
    another, and a smaller one for a row more or less; its variance for cold rows is the least at that ε. ``rows``: a
    client tells of at most so many of its rows, which bounds ε for all of them at rows · ε, and makes heat too low
    where clients hold more.
    """

    epsilon: float | None = None
    kind: str = "symmetric"
    p: float | None = None
    q: float | None = None

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.p is None) or (self.p is None) != (self.q is None):
            raise MethodError(
                "RandomizedResponse takes epsilon, or both p and q; got "
                f"epsilon={self.epsilon!r}, p={self.p!r}, q={self.q!r}."
            )
        if self.kind not in KINDS:
            raise MethodError(f"kind must be one of {', '.join(KINDS)}; {nearest(str(self.kind), KINDS)}")
        if self.epsilon is not None:
            check_number("epsilon", self.epsilon, least=0)
        self._check()
        self.lasting.check_tells("RandomizedResponse")

    @property
    def lasting(self) -> Response:
        if self.epsilon is None:
            assert self.p is not None
            assert self.q is not None
            return Response(self.p, self.q)
        return Response.symmetric(self.epsilon) if self.kind == "symmetric" else Response.optimal(self.epsilon)

    @property
    def title(self) -> str:
        kind = "optimal randomised response" if self.kind == "optimal" else "randomised response"
        return f"{kind}, ε {self.epsilon_row:.4g} a row"


@dataclass(frozen=True)
class PermanentResponse(Bits):
    """A permanent randomised response (p1, p2), and to it an instantaneous one (p3, p4) for every question.

    ``preset`` 1 (no privacy) to 5 (says 1 for everything), or p1 to p4. ``epsilon_row`` is that of all questions ever,
    ε∞ = ln max(p1/p2, (1 − p2)/(1 − p1)); ``epsilon_once`` that of a single one, of p5 and p6. A client that names the
    rows it wants (`fedsub.SecureSum`) gives the same answers, to questions about some rows: `settle`, then `report`.
    """

    preset: int | None = None
    p1: float | None = None
    p2: float | None = None
    p3: float | None = None
    p4: float | None = None

    def __post_init__(self) -> None:
        given = (self.p1, self.p2, self.p3, self.p4)
        if given.count(None) != (0 if self.preset is None else 4):
            raise MethodError(
                f"PermanentResponse takes a preset, or all of p1, p2, p3, p4; got preset={self.preset!r} and {given}."
            )
        if self.preset is not None and self.preset not in PRESETS:
            raise MethodError(f"preset must be one of 1 to 5, got {self.preset!r}.")
        self._check()
        _ = self.lasting, self.fresh  # refuses what is no chance

    @property
    def lasting(self) -> Response:
        return Response(*PRESETS[self.preset]) if self.preset is not None else Response(self.p1, self.p2)  # type: ignore[arg-type]

    @property
    def fresh(self) -> Response:
        return self.lasting if self.preset is not None else Response(self.p3, self.p4)  # type: ignore[arg-type]

    @property
    def epsilon_once(self) -> float:
        return self.once.epsilon

    @property
    def title(self) -> str:
        which = f"preset {self.preset}" if self.preset is not None else f"p1 {self.p1:g}, p2 {self.p2:g}"
        return f"permanent response, {which}, ε {self.epsilon_row:.4g} a row for ever and {self.epsilon_once:.4g} once"

    def settle(self, held: Array, asked: Array, words: Words) -> Array:
        """Does one client hold the rows ``asked``? Its lasting answers, bool."""
        chance = np.where(np.isin(asked, held), self.lasting.p, self.lasting.q)
        return uniform(words(PERMANENT, 0, asked))[0] < chance

    def report(self, settled: Array, asked: Array, words: Words, question: int) -> Array:
        """What it says of them in the question of this number."""
        return uniform(words(FRESH, question, asked))[0] < np.where(settled, self.fresh.p, self.fresh.q)

    def told(self, held: Array, size: int, words: Words) -> Array:
        """The rows that it tells of, of those that it holds."""
        if self.rows is None or len(held) <= self.rows:
            return held
        return np.asarray(Holdings.alone("", held, size).bounded(self.rows, words).space.rows)
