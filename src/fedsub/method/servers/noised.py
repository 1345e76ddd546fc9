"""Rows that owe noise: a server that adds, and to which every round gives noise for every row of a table."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedsub.method.patterns import setting
from fedsub.method.servers.add import Add
from fedsub.method.servers.base import CHUNK, indices, selected
from fedsub.method.servers.rule import ServerRule
from fedsub.trees import Tree, add_rows, put_rows, take_rows

UNTIL = "noised"  # the round up to which a row has its noise

# What the mean has of the noise of some rows, for the rounds after `since` up to one: (table, rows, since, round).
Owed = Callable[[str, Tensor, Tensor, int], Tensor]


@dataclass(frozen=True)
class LateNoise(ServerRule):
    """``server`` with the noise of the rounds in which nobody sent a row, given to it when the row is next read.

    In a round of its own a row's noise is in the mean already. As adding is linear, noise that comes late is the noise
    that would have come in time, up to rounding.
    """

    server: Add
    owed: Owed = field(repr=False)
    tables: frozenset[str]  # those that are noised

    @property
    def lazy(self) -> bool:
        return True

    def init(self, params: Tree, tables: Collection[str]) -> Tree:
        until = {
            f"{UNTIL}/{name}": torch.zeros(len(params[name]), dtype=torch.int32, device=params[name].device)
            for name in tables
            if name in self.tables
        }
        return dict(self.server.init(params, tables)) | until

    def step(self, params: Tree, mean: Tree, rows: dict[str, Tensor], state: Tree, round: int) -> None:
        self.catch_up(params, rows, state, round - 1)
        self.advance(params, mean, rows, state, round)

    def advance(self, params: Tree, mean: Tree, rows: dict[str, Tensor], state: Tree, round: int) -> None:
        self.server.advance(params, mean, rows, state, round)
        for name in self.tables:
            state[f"{UNTIL}/{name}"][rows[name].long()] = round

    def catch_up(self, params: Tree, rows: dict[str, Tensor] | None, state: Tree, round: int) -> None:
        for name in sorted(self.tables):
            if rows is not None and name not in rows:
                continue
            param, until = params[name], state[f"{UNTIL}/{name}"]
            behind = (until if rows is None else take_rows(until, rows[name])) < round
            at = indices(behind) if rows is None else selected(rows[name], behind).long()
            rate = setting(self.server.groups, name, "lr", self.server.lr)
            for some in at.split(max(1, CHUNK * len(param) // max(1, param.numel()))) if len(at) else ():
                add_rows(param, some, self.owed(name, some, take_rows(until, some), round) * rate)
                put_rows(until, some, torch.full_like(some, round, dtype=until.dtype))
