"""Means of iterates: the server goes on as it is, and what is evaluated and kept is a mean of where it has been.

    TailMean   X̄ = (X_s + … + X_t) / (t − s + 1)                 the last rounds, each alike
    EMA        X̄ = Σ_j b^(t−j) X_j / Σ_j b^(t−j),  j = 1 … t      b^(age), every round less

Steps of constant size end in a walk around the optimum, whose mean is nearer to it than its last point (B. T. Polyak
and A. B. Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992; of the last part of the way:
A. Rakhlin et al., "Making Gradient Descent Optimal for Strongly Convex Stochastic Optimization", ICML 2012).

Both are one rule with different weights. Of a row there are its mean M over n rounds and the round up to which
they are counted. Where the row stood at X for k rounds more,

    M ← M + w (X − M)        w = k / (n + k), or (1 − b^k) / (1 − b^(n+k))

so nothing is computed of a row until it moves or is read, and the mean of a row that never moved is the row, bit for
bit. A row that a server with momentum moved unseen counts with the mean of its way, X + lr · `RowServer.mean_drift`.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedsub.checks import check_decay, check_number, check_whole
from fedsub.errors import MethodError
from fedsub.method.patterns import setting
from fedsub.method.servers.add import Add
from fedsub.method.servers.base import CHUNK, Gaps, RowServer, by_row, indices, selected, times
from fedsub.method.servers.rule import ServerRule
from fedsub.method.slots import Server, check_slot
from fedsub.trees import Tree, put_rows, take_rows

MEAN, UNTIL, FIRST = "iterates.mean", "iterates.until", "iterates/first"  # FIRST: the first round that counts, or 0


class MeanOfIterates(ServerRule):
    """A server whose model is evaluated and kept as a mean of its iterates. Subclasses are frozen dataclasses."""

    server: Server

    def __post_init__(self) -> None:
        if isinstance(self.server, MeanOfIterates):
            raise MethodError(f"A mean of means is not known here: {self.server!r} is one already.")
        check_slot("server", self.server, type(self).__name__)
        if self.server.lazy and not isinstance(self.server, RowServer):
            raise MethodError(
                f"{type(self).__name__} cannot tell where {type(self.server).__name__} moved rows that nobody sent; "
                "make it a RowServer (docs/extending.md), or one that is not lazy."
            )

    def begins(self) -> int:
        """The first round that counts."""
        return 1

    @property
    def fade(self) -> float:
        """A round counts so many times what the next one does."""
        return 1.0

    def weights(self, n: Tensor, k: Tensor) -> Tensor:
        """What k rounds weigh in the mean of n + k, of which they are the last; double precision."""
        b = self.fade
        if b == 1:
            return k.double() / (n + k)
        return torch.expm1(k.double() * math.log(b)) / torch.expm1((n + k).double() * math.log(b))

    @property
    def lazy(self) -> bool:
        return self.server.lazy

    @property
    def rowwise(self) -> bool:
        return getattr(self.server, "rowwise", False)

    @property
    def whole_tables(self) -> bool:
        return self.server.whole_tables

    def init(self, params: Tree, tables: Collection[str]) -> Tree:
        self.begins()  # refused here if that is not known
        state = dict(self.server.init(params, tables))
        for name, param in params.items():
            rows = (len(param),) if name in tables else ()
            state[f"{MEAN}/{name}"] = torch.zeros_like(param)
            state[f"{UNTIL}/{name}"] = torch.zeros(rows, dtype=torch.int32, device=param.device)
        return state | {FIRST: torch.zeros((), dtype=torch.int32)}

    def step(self, params: Tree, mean: Tree, rows: dict[str, Tensor], state: Tree, round: int) -> None:
        self.catch_up(params, rows, state, round - 1)
        self.advance(params, mean, rows, state, round)

    def advance(self, params: Tree, mean: Tree, rows: dict[str, Tensor], state: Tree, round: int) -> None:
        first = state[FIRST]
        if round < self.begins():
            first.fill_(0)
        elif not first:
            first.fill_(round)
        for name in mean if round > int(first) > 0 else ():  # what is about to move stood still until now
            at = None if self.whole_tables else rows.get(name)
            self._count(name, params[name], at, state, round - 1)
        self.server.advance(params, mean, rows, _without(state), round)

    def catch_up(self, params: Tree, rows: dict[str, Tensor] | None, state: Tree, round: int) -> None:
        if not self.lazy:
            return
        first, inner = int(state[FIRST]), _without(state)
        if not 0 < first <= round:
            self.server.catch_up(params, rows, inner, round)
            return
        self.server.catch_up(params, rows, inner, first - 1)
        for name, param in params.items():
            if f"last/{name}" in state and (rows is None or name in rows):
                self._count_way(name, param, None if rows is None else rows[name], state, round)
        self.server.catch_up(params, rows, inner, round)

    def outcome(self, params: Tree, state: Tree, round: int) -> Tree:
        if not 0 < int(state[FIRST]) <= round:
            return params
        out: Tree = {}
        for name, param in params.items():
            seen = {key: state[key].clone() for key in (f"{MEAN}/{name}", f"{UNTIL}/{name}")}
            self._count(name, param, None, seen | {FIRST: state[FIRST]}, round)
            out[name] = seen[f"{MEAN}/{name}"]
        return out

    def _count(self, name: str, param: Tensor, rows: Tensor | None, state: Tree, round: int) -> None:
        """Rows (None: all) have stood where they are up to the end of a round."""
        mean, until, first = state[f"{MEAN}/{name}"], state[f"{UNTIL}/{name}"], int(state[FIRST])
        if not until.ndim:  # a dense parameter
            begun = max(int(until), first - 1)
            if begun < round:
                weight = self.weights(torch.tensor(begun - first + 1), torch.tensor(round - begun))
                torch.lerp(mean, param, float(weight), out=mean)
                until.fill_(round)
            return
        behind = (until if rows is None else take_rows(until, rows)) < round
        at = indices(behind) if rows is None else selected(rows, behind).long()
        for some in _pieces(at, param):
            begun = take_rows(until, some).clamp(min=first - 1)
            self._enter(mean, take_rows(param, some), some, begun - first + 1, round - begun)
            put_rows(until, some, torch.full_like(begun, round))

    def _count_way(self, name: str, param: Tensor, rows: Tensor | None, state: Tree, round: int) -> None:
        """Rows (None: all) that the server has not moved yet move by themselves up to the end of a round."""
        server = self.server
        assert isinstance(server, RowServer)
        last, first = state[f"last/{name}"], int(state[FIRST])
        mean, until = state[f"{MEAN}/{name}"], state[f"{UNTIL}/{name}"]
        behind = (last if rows is None else take_rows(last, rows)) < round
        at = indices(behind) if rows is None else selected(rows, behind).long()
        lr = setting(server.groups, name, "lr", server.lr)
        for some in _pieces(at, param):
            values, since = take_rows(param, some), take_rows(last, some)
            begun = take_rows(until, some).clamp(min=first - 1)
            self._enter(mean, values, some, begun - first + 1, since - begun)  # as the last update left it
            held = {slot: take_rows(state[f"{slot}/{name}"], some) for slot in server.slots}
            gaps = Gaps(round - since)
            way = times(server.mean_drift(held, gaps, self.fade), lr)
            self._enter(mean, values + way, some, since - first + 1, gaps.rounds)
            put_rows(until, some, torch.full_like(begun, round))

    def _enter(self, mean: Tensor, values: Tensor, rows: Tensor, n: Tensor, k: Tensor) -> None:
        """Some rows stood at ``values`` for k rounds, after n that are in their means."""
        before = take_rows(mean, rows)
        weight = by_row(torch.where(k > 0, self.weights(n, k.clamp(min=1)), 0.0), before)
        put_rows(mean, rows, torch.lerp(before, values, weight.expand_as(before)))


@dataclass(frozen=True)
class TailMean(MeanOfIterates):
    """The mean of the last iterates of ``server``: of a share of all rounds (0 < ``last`` < 1) or of so many (a whole
    number).

    Training itself is that of ``server``, bit for bit; what is evaluated and kept is the mean, from the round where it
    begins. Rounds in which nobody took part do not count. A run that goes on to more rounds than it was begun with
    begins a new mean, unless the old one began late enough to belong to the new one: then it goes on.
    """

    last: float = 0.5
    server: Server = field(default_factory=Add)
    rounds: int | None = field(default=None, repr=False)  # of the whole run; `fitted` knows

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("last of TailMean", self.last)
        if not (0 < self.last < 1 or (self.last >= 1 and self.last == int(self.last))):
            raise MethodError(
                f"last of TailMean must be a share of the rounds, between 0 and 1, or a whole number of them; got "
                f"{self.last!r}."
            )
        if self.rounds is not None:
            check_whole("rounds of TailMean", self.rounds, 1)

    def fitted(self, share: float, rounds: int | None = None) -> TailMean:
        return replace(self, server=self.server.fitted(share, rounds), rounds=rounds or self.rounds)

    def begins(self) -> int:
        if self.rounds is None:
            raise MethodError("TailMean needs to know how many rounds there will be; give rounds.")
        window = round(self.rounds * self.last) if self.last < 1 else int(self.last)
        return max(1, self.rounds - max(1, window) + 1)


@dataclass(frozen=True)
class EMA(MeanOfIterates):
    """The exponential mean of the iterates of ``server``: a round counts b = ``decay`` times what the next one does.

    Weights are divided by their sum, so that the first rounds are not mixed with zeros. About the last 1/(1−b) rounds
    count. Training itself is that of ``server``, bit for bit; rounds in which nobody took part do not count.
    """

    decay: float = 0.99
    server: Server = field(default_factory=Add)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decay("decay of EMA", self.decay)
        if self.decay == 0:
            raise MethodError("decay of EMA is 0, which leaves the last iterate alone; leave EMA out.")

    def fitted(self, share: float, rounds: int | None = None) -> EMA:
        return replace(self, server=self.server.fitted(share, rounds))

    @property
    def fade(self) -> float:
        return self.decay


def _without(state: Tree) -> Tree:
    """What the server itself remembers."""
    return {name: value for name, value in state.items() if not name.startswith("iterates")}


def _pieces(rows: Tensor, param: Tensor) -> tuple[Tensor, ...]:
    """Rows in pieces that take a bounded memory."""
    return rows.split(max(1, CHUNK * len(param) // max(1, param.numel()))) if len(rows) else ()
