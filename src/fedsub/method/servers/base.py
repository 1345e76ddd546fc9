"""What fedsub's servers share: a rule by element, and rows that catch up when they are needed.

A rule says where one round moves a parameter (`RowServer.move`) and where k rounds in which nobody sent a row
move it (`RowServer.drift`). The rest is bookkeeping: gather the round's rows, apply the rule, put them back.
The state "last" holds the round up to which a row is current.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsub.checks import check_positive
from fedsub.method.patterns import Groups, check_groups, check_patterns, setting
from fedsub.method.servers.rule import ServerRule
from fedsub.trees import Tree, add_rows, put_rows, take_rows

CHUNK = 1 << 18  # elements of a table that catch up at once: all rows of a large one would take much memory


class RowServer(ServerRule):
    """A server whose rule treats every element alike. Subclasses are frozen dataclasses."""

    lr: float
    groups: Groups | None

    def __post_init__(self) -> None:
        check_positive("server_lr", self.lr)
        check_groups(self.groups, ("lr",), type(self).__name__)
        for pattern, values in (self.groups or {}).items():
            for key, value in values.items():
                check_positive(f"groups[{pattern!r}][{key!r}]", value)

    @property
    def rowwise(self) -> bool:
        return True

    @property
    def slots(self) -> tuple[str, ...]:
        """What is remembered of every parameter."""
        return ()

    def first(self, slot: str, param: Tensor, table: bool) -> Tensor:
        """What a slot holds before the first round."""
        return torch.zeros_like(param)

    def move(self, update: Tensor, held: Tree) -> Tensor:
        """Where one round moves a parameter (before lr); changes what is held, by slot, in place."""
        raise NotImplementedError

    def drift(self, held: Tree, gaps: Gaps) -> Tensor:
        """Where ``gaps`` rounds with update 0 move each row (before lr); changes what is held in place."""
        raise NotImplementedError

    def mean_drift(self, held: Tree, gaps: Gaps, fade: float) -> Tensor:
        """The mean of the places to which `drift` moves each row in its ``gaps`` rounds (before lr); held stays.

        Of two rounds the earlier one counts ``fade`` times as much as the later one, 0 < fade ≤ 1. This is round by
        round, for any rule; rules with a closed form have it.
        """
        held = {slot: value.clone() for slot, value in held.items()}
        heard, mass = gaps.rounds, 0.0
        place = mean = torch.zeros(())
        for j in range(1, gaps.most + 1):
            moved = self.drift(held, Gaps(torch.ones_like(heard)))
            place, mass = place + moved, 1 + fade * mass
            mean = mean + torch.where(by_row(heard, moved) >= j, (place - mean) / mass, 0.0)
        return mean

    def init(self, params: Tree, tables: Collection[str]) -> Tree:
        state = {
            f"{slot}/{name}": self.first(slot, param, name in tables)
            for name, param in params.items()
            for slot in self.slots
        }
        if self.lazy:
            for name in tables:
                rows, device = len(params[name]), params[name].device
                state[f"last/{name}"] = torch.zeros(rows, dtype=torch.int32, device=device)
        return state

    def wait(self, held: Tree, gaps: Gaps) -> None:
        """`drift` of rows that nobody ever sent, from what slots hold at first: they stay, and `waits` may change."""

    @property
    def waits(self) -> tuple[str, ...]:
        """The slots that `wait` changes."""
        return ()

    def step(self, params: Tree, mean: Tree, rows: dict[str, Tensor], state: Tree, round: int) -> None:
        self.catch_up(params, rows, state, round - 1)
        self.advance(params, mean, rows, state, round)

    def advance(self, params: Tree, mean: Tree, rows: dict[str, Tensor], state: Tree, round: int) -> None:
        for name, update in mean.items():
            lr = setting(self.groups, name, "lr", self.lr)
            if name not in rows:
                held = {slot: state[f"{slot}/{name}"] for slot in self.slots}
                params[name].add_(self.move(update, held), alpha=lr)
                continue
            at = rows[name].long()  # torch is many times slower to add rows at int32 places
            held = self._take(name, at, state, self.slots)
            add_rows(params[name], at, times(self.move(update, held), lr))
            self._put(name, at, held, state)
            if self.lazy:
                _stamp(state[f"last/{name}"], at, round)

    def catch_up(self, params: Tree, rows: dict[str, Tensor] | None, state: Tree, round: int) -> None:
        for name, param in params.items() if self.lazy else ():
            last = state.get(f"last/{name}")
            if last is None or (rows is not None and name not in rows):
                continue
            since = last if rows is None else take_rows(last, rows[name])
            behind = since < round
            at = indices(behind) if rows is None else selected(rows[name], behind).long()
            lr = setting(self.groups, name, "lr", self.lr)
            most = max(1, CHUNK * len(param) // max(1, param.numel()))
            for start in range(0, len(at), most):
                self._catch_up(name, param, at[start : start + most] if len(at) > most else at, state, round, lr)

    def _catch_up(self, name: str, param: Tensor, rows: Tensor, state: Tree, round: int, lr: float) -> None:
        last = state[f"last/{name}"]
        since = take_rows(last, rows)
        _stamp(last, rows, round)
        gaps = Gaps(round - since)
        if gaps.most == round:  # most often rows that nobody ever sent: what is at rest stays at rest
            if self.waits:
                new = selected(rows, since == 0)
                held = {slot: self.first(slot, param[:1], True) for slot in self.waits}  # one row: all are alike
                self.wait(held, Gaps(torch.full((1,), round, device=since.device)))
                self._put(name, new, {slot: one.expand(len(new), *one.shape[1:]) for slot, one in held.items()}, state)
            sent = since > 0
            rows, gaps = selected(rows, sent), Gaps(selected(gaps.rounds, sent))
        if len(rows):
            held = self._take(name, rows, state, self.slots)
            add_rows(param, rows, times(self.drift(held, gaps), lr))
            self._put(name, rows, held, state)

    def _take(self, name: str, rows: Tensor, state: Tree, slots: tuple[str, ...]) -> Tree:
        return {slot: take_rows(state[f"{slot}/{name}"], rows) for slot in slots}

    def _put(self, name: str, rows: Tensor, held: Tree, state: Tree) -> None:
        for slot, values in held.items():
            put_rows(state[f"{slot}/{name}"], rows, values)


def check_groups_of(rule: object, names: Collection[str]) -> None:
    """Refuse settings of a server, or of one that it goes on with, whose pattern fits no parameter."""
    while rule is not None:
        check_patterns(getattr(rule, "groups", None), names, type(rule).__name__)
        rule = getattr(rule, "server", None)


def _stamp(last: Tensor, rows: Tensor, round: int) -> None:
    if last.device.type == "cpu":  # numpy takes a third of the time
        last.numpy()[rows.numpy()] = round
    else:
        last.index_fill_(0, rows, round)


def indices(mask: Tensor) -> Tensor:
    """Where a mask holds, int64."""
    if mask.device.type == "cpu":  # numpy is ten times as fast
        return torch.from_numpy(np.flatnonzero(mask.numpy()))
    return mask.nonzero().view(-1)


def selected(values: Tensor, mask: Tensor) -> Tensor:
    """The values at which a mask holds."""
    if mask.device.type == "cpu":
        return torch.from_numpy(values.numpy().compress(mask.numpy()))
    return values[mask]


def look_up(values: Tensor, places: Tensor) -> Tensor:
    """The values at places that are known to exist."""
    if values.device.type == "cpu":  # without looking at every place first, which takes as long again
        return torch.from_numpy(values.numpy().take(places.numpy(), mode="clip"))
    return values.index_select(0, places)


def times(values: Tensor, factor: float) -> Tensor:
    return values if factor == 1 else values * factor


def by_row(values: Tensor, like: Tensor) -> Tensor:
    """One number per row (or one for all, [1]), in the shape and dtype that multiply ``like``."""
    return values.to(like.dtype).reshape([-1] + [1] * (like.ndim - 1) if like.ndim else [])


class Gaps:
    """For how many rounds each row heard nothing, [n], and functions of it.

    Few gaps differ, so a function is tabulated for all that are possible (in double precision) and looked up.
    """

    def __init__(self, rounds: Tensor):
        self.rounds = rounds.long()
        self._known: dict[tuple, Tensor] = {}

    @cached_property
    def most(self) -> int:
        return int(self.rounds.max()) if len(self.rounds) else 0

    def power(self, base: float, like: Tensor) -> Tensor:
        """base^k for each row."""
        return self._look_up(_powers, base, like)

    def geometric(self, ratio: float, like: Tensor) -> Tensor:
        """ratio + ratio² + … + ratio^k for each row; 0 ≤ ratio < 1."""
        return self._look_up(_geometric, ratio, like)

    def mean_geometric(self, ratio: float, fade: float, like: Tensor) -> Tensor:
        """The mean of ratio + … + ratio^j over j = 1 … k, weighted by fade^(k−j), for each row; 0 if k = 0."""
        return self._look_up(_mean_geometric, (ratio, fade), like)

    def mass(self, fade: float, like: Tensor) -> Tensor:
        """1 + fade + … + fade^(k−1) for each row."""
        return self._look_up(_mass, fade, like)

    def times(self, factor: float, like: Tensor) -> Tensor:
        """k · factor for each row."""
        return self._look_up(_multiples, factor, like)

    def _look_up(self, function: Callable[[Any, Tensor], Tensor], base: Any, like: Tensor) -> Tensor:
        key = (function, base, like.dtype)
        if key not in self._known:
            self._known[key] = self._values(function, base, like)
        return by_row(self._known[key], like)

    def _values(self, function: Callable[[Any, Tensor], Tensor], base: Any, like: Tensor) -> Tensor:
        if self.most >= max(4096, len(self.rounds)):
            return function(base, self.rounds.double()).to(like.dtype)
        table = _tabulated(function, base, 1 << self.most.bit_length(), like.dtype, like.device)
        return look_up(table, self.rounds)


def _multiples(factor: float, k: Tensor) -> Tensor:
    return k * factor


def _powers(base: float, k: Tensor) -> Tensor:
    return torch.pow(base, k)


def _geometric(ratio: float, k: Tensor) -> Tensor:
    if ratio == 0:
        return torch.zeros_like(k)
    # 1 − ratio^k by expm1: a ratio close to 1 would cancel digits.
    return torch.expm1(k * math.log(ratio)) * (-ratio / (1 - ratio))


def _mass(fade: float, k: Tensor) -> Tensor:
    return k if fade == 1 else torch.expm1(k * math.log(fade)) / (fade - 1)


def _mean_geometric(both: tuple[float, float], k: Tensor) -> Tensor:
    ratio, fade = both
    if ratio == 0:
        return torch.zeros_like(k)
    # Σ_j fade^(k−j) (ratio + … + ratio^j) is ratio/(1−ratio) times what follows, over the mass.
    late = k * fade**k if ratio == fade else ratio * (fade**k - ratio**k) / (fade - ratio)
    mass = _mass(fade, k)
    return torch.where(k > 0, (mass - late) / mass.clamp(min=1), 0.0) * (ratio / (1 - ratio))


@lru_cache(maxsize=64)
def _tabulated(function, base: Any, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return function(base, torch.arange(size, dtype=torch.float64, device=device)).to(dtype)
