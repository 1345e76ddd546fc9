"""A `Keeper` whose tables are in pieces: dense parameters here, rows at the shards.

Rows are asked for when a round opens, and its sums go to the shards that have them. Server, heat correction and parts
work there, on one row as on all. Here the tables have no rows; what is counted for a table as a whole is counted here
too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsub.disk.inshards import Pieces
from fedsub.method.engine import Ray
from fedsub.method.part import Part, Total
from fedsub.method.slots import BoundAverage, Server
from fedsub.objective.lazy import Drawn
from fedsub.round.keeper import Keeper, Rows, Shown
from fedsub.round.layout import Layout
from fedsub.round.messages import MODEL
from fedsub.round.shards.fits import Cut, with_cut
from fedsub.round.shards.holders import Holders
from fedsub.round.shards.shard import Arrays, Piece, Summed
from fedsub.round.shards.share import Share, shares
from fedsub.trees import Tree

Split = list[tuple[np.ndarray, np.ndarray]]  # by shard: places among some rows, and the rows by its own numbers


@dataclass(frozen=True)
class ShardedTable:
    """A table of the model, or what is remembered by its rows, at the shards: a `RowSource`."""

    holders: Holders
    shares: Sequence[Share]
    name: str  # "model/parameter", or as a checkpoint calls it
    dtype: torch.dtype
    shape: torch.Size
    time: int | None = None  # as it is evaluated after so many rounds; None: as it is

    device = torch.device("cpu")

    def __len__(self) -> int:
        return self.shape[0]

    def take(self, rows: Tensor) -> Tensor:
        """A copy of some rows, in their order."""
        out = torch.empty((len(rows), *self.shape[1:]), dtype=self.dtype)
        split = split_rows(rows, self.shares)
        name = self.name if self.time is None else self.name.partition("/")[2]
        calls = {
            share.number: ("take", name, mine) if self.time is None else ("read", name, mine, self.time)
            for share, (at, mine) in zip(self.shares, split, strict=True)
            if len(at)
        }
        for number, values in zip(calls, self.holders.ask(calls), strict=True):
            out.numpy()[split[number][0]] = values
        return out

    def copy_(self, values: Tensor) -> None:
        """Give the shards their rows of ``values``."""
        self.holders.tell({s.number: ("put", {self.name: values[s.rows].numpy().copy()}) for s in self.shares})

    def gather(self, target: Tensor) -> Tensor:
        """All rows, written to a tensor."""
        found = self.holders.ask({s.number: ("take", self.name, slice(None)) for s in self.shares})
        for share, values in zip(self.shares, found, strict=True):
            target.numpy()[share.rows] = values
        return target


def split_rows(rows: Tensor, parts: Sequence[Share]) -> Split:
    ids = rows.numpy()
    places = [share.places(ids) for share in parts]
    return [(at, share.inner(ids[at]).astype(np.int64)) for share, at in zip(parts, places, strict=True)]


class ShardedKeeper(Keeper):
    """``params``: tables are replaced by `ShardedTable` in place, until `settle` puts the trained ones back."""

    def __init__(
        self, parts: Sequence[Part], rule: Server, average: Callable[[], BoundAverage], params: Tree,
        tables: Mapping[str, str], lazy: Mapping[str, Drawn] | None = None, *, shards: int, ray: Ray | None = None,
        scratch: Path | None = None,
    ):  # fmt: skip
        assert not lazy, "refused before"
        bound = with_cut(average())
        none = torch.zeros(0, dtype=torch.int64)
        here = {name: value[:0].clone() if name in tables else value for name, value in params.items()}
        nowhere = bound.cut(dict.fromkeys(tables, none))
        super().__init__(parts, rule, lambda: nowhere, here, tables)
        self.shares, self.first = shares(shards), {name: params[name] for name in tables}
        self.holders = Holders(
            [partial(_piece, share, parts, rule, bound, self.first, dict(tables)) for share in self.shares],
            ray or Ray(),
            scratch,
        )
        (held,) = self.holders.ask({0: ("holds",)})
        self._tables = {
            f"{MODEL}/{name}": ShardedTable(self.holders, self.shares, f"{MODEL}/{name}", value.dtype, value.shape)
            for name, value in self.first.items()
        }
        self._tables |= {
            name: ShardedTable(self.holders, self.shares, name, dtype, torch.Size((len(params[table]), *shape[1:])))
            for name, (table, dtype, shape) in held.items()
            if table is not None
        }
        self._of_table = {name: table for name, (table, _, _) in held.items() if table is not None}
        self.whole = params  # what others see as the model
        for name in tables:
            params[name] = self._tables[f"{MODEL}/{name}"]  # pyright: ignore[reportArgumentType]
        self._split: dict[int, tuple[Tensor, Split]] = {}  # by id of the rows, which are kept so that it stays theirs

    def open(self, rows: Rows, time: int) -> None:
        self._split = {}
        if self.rule.lazy:
            self.holders.tell({s.number: ("open", self._own(rows, s), time) for s in self.shares})

    def show(self, layout: Layout) -> Shown:
        union = {table: layout[space].union for table, space in self.tables.items()}
        found = self.holders.ask({s.number: ("show", self._own(union, s)) for s in self.shares})
        trees = {tree: dict(values) for tree, values in self.trees.items()}
        for tree, values in trees.items():
            for table, rows in union.items():
                like = values[table]
                values[table] = out = torch.empty((len(rows), *like.shape[1:]), dtype=like.dtype)
                for (at, _), one in zip(self._cut(rows), found, strict=True):
                    out.numpy()[at] = one[tree][table]
        return Shown(trees, {space: layout[space].inverse for space in layout})

    def close(self, totals: Mapping[str, Total], plain: Collection[str], number: int, time: int) -> None:
        told = {s.number: {tree: self._summed(one, s) for tree, one in totals.items()} for s in self.shares}
        self.holders.tell({s: ("close", sums, set(plain), number, time) for s, sums in told.items()})
        super().close({tree: self._rest(one) for tree, one in totals.items()}, plain, number, time)

    def _rest(self, total: Total) -> Total:
        """Of dense parameters, and of no rows."""
        values = {n: v[:0] if n in self.tables else v for n, v in total.values.items()}
        none = {name: rows[:0] for name, rows in total.rows.items()}
        return replace(total, values=values, rows=none, held={n: v[:0] for n, v in total.held.items()})

    def _summed(self, total: Total, share: Share) -> Summed:
        def cut(values: Tree) -> Arrays:
            at = {name: self._cut(total.rows[name])[share.number][0] for name in values if name in self.tables}
            return {name: values[name].numpy()[places] for name, places in at.items()}

        return Summed(
            cut(total.values), self._own(total.rows, share), cut(total.held), total.weight, total.count,
            total.numbers, total.share,
        )  # fmt: skip

    def _own(self, rows: Rows, share: Share) -> Arrays:
        return {name: self._cut(at)[share.number][1] for name, at in rows.items()}

    def _cut(self, rows: Tensor) -> Split:
        if id(rows) not in self._split:
            self._split[id(rows)] = rows, split_rows(rows, self.shares)
        return self._split[id(rows)][1]

    def model(self, time: int) -> Tree:
        there = {name: replace(self._tables[f"{MODEL}/{name}"], time=time) for name in self.tables}
        return {name: there.get(name, value) for name, value in super().model(time).items()}  # type: ignore[return-value]

    def catch_up(self, time: int) -> None:
        super().catch_up(time)
        self.holders.tell({s.number: ("catch_up", time) for s in self.shares})

    def settle(self, time: int) -> None:
        """Training is at its end: the tables come back."""
        super().settle(time)
        self.holders.tell({s.number: ("settle", time) for s in self.shares})
        for name, target in self.first.items():
            self.whole[name] = self._tables[f"{MODEL}/{name}"].gather(target)

    def save(self, number: int, run: Path) -> dict[str, Any]:
        found = self.holders.save(number, run)
        rows = {name.removeprefix(f"{MODEL}/"): len(table) for name, table in self._tables.items()}
        return Pieces(tuple(f for f, _ in found), tuple(s for _, s in found), rows).meta()

    def end(self) -> None:
        self.holders.close()

    def restored(self) -> None:
        small = {name: value.numpy().copy() for name, (value, table) in super().kept().items() if table is None}
        self.holders.tell({share.number: ("put", small) for share in self.shares})

    @property
    def tracking(self) -> bool:
        return self._tracking

    @tracking.setter
    def tracking(self, on: bool) -> None:
        self._tracking = on
        if hasattr(self, "holders"):
            self.holders.tell({share.number: ("track", on) for share in self.shares})

    def kept(self) -> dict[str, tuple[Tensor, str | None]]:
        return {
            name: (self._tables.get(name, value), table)  # type: ignore[misc]
            for name, (value, table) in super().kept().items()
        }


def _piece(
    share: Share, parts: Sequence[Part], rule: Server, average: Cut, params: Tree, tables: dict[str, str]
) -> Piece:
    """What a shard begins with."""
    rows = {name: torch.arange(share.number, len(value), share.count) for name, value in params.items()}
    mine = {name: np.ascontiguousarray(value[share.rows].numpy()) for name, value in params.items()}
    return Piece(parts, rule, average.cut(rows), mine, tables)
