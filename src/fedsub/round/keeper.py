"""Who holds the shared model between rounds: parameters, what server and parts remember of them, and which rows moved.

All of it goes by rows: `open` brings the rows of a round up to date, `show` gives them, `close` takes their sums.
Nothing here reduces over rows or over parameters, so that a table may be kept in pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsub.errors import MethodError
from fedsub.method.average import BoundMean
from fedsub.method.part import Part, Total
from fedsub.method.slots import BoundAverage, Server
from fedsub.objective.directory import FREE, Directory
from fedsub.objective.lazy import Drawn, Touched
from fedsub.round.layout import Layout
from fedsub.round.messages import MODEL, UPDATE
from fedsub.round.remembered import Moved
from fedsub.trees import Model, Tree, put_rows, take_rows

RESIDENT = "resident/"  # what a checkpoint calls the row of every slot, by space
Rows = dict[str, Tensor]  # table -> distinct global rows


@dataclass(frozen=True)
class Shown:
    """Trees of a round, and which of their rows lies at every place of its layout."""

    trees: dict[str, Tree]  # "model", "part.slot"
    at: dict[str, Tensor]  # space -> row of the trees' tables, by place


class Keeper:
    """``params`` is changed in place by rounds. ``average`` gives the fitted one, which may be known later."""

    def __init__(
        self, parts: Sequence[Part], rule: Server, average: Callable[[], BoundAverage], params: Tree,
        tables: Mapping[str, str], lazy: Mapping[str, Drawn] | None = None,
    ):  # fmt: skip
        """``lazy``: tables of which ``params`` has a row from the time on in which it is first opened."""
        self.lazy = dict(lazy or {})
        if self.lazy and rule.whole_tables:
            name = next(iter(self.lazy))
            raise MethodError(
                f"{type(rule).__name__} steps every row of a table in every round, and {name!r} is lazy: its rows are "
                "not there. Use sparse_server=True, or one of fedsub's own servers, whose rows catch up."
            )
        self._known: dict[str, tuple[Tensor, Tensor]] = {}  # by space: the rows last asked for, and their slots
        self.resident = {tables[name]: Directory(_free(params[name])) for name in self.lazy}  # by space
        self.parts, self.rule, self.average, self.params, self.tables = parts, rule, average, params, tables
        self.state: Tree = rule.init(params, tables)
        self.slots: dict[str, dict[str, Tree]] = {
            part.key: {slot: {n: torch.zeros_like(p) for n, p in params.items()} for slot in part.server_slots}
            for part in parts
        }
        self.moved = {name: Moved(len(params[name])) for name in tables}
        self.tracking = True  # whether anybody will ask which rows moved
        self.trees: dict[str, Tree] = {MODEL: params} | {
            f"{part.key}.{slot}": self.slots[part.key][slot] for part in parts for slot in part.sent_slots
        }

    def open(self, rows: Rows, time: int) -> None:
        """Bring rows to the end of a round."""
        self._enter(rows)
        if self.rule.lazy:
            at = self._places(rows)
            self.rule.catch_up(self.params, at, self.state, time)
            self._note(at)

    def show(self, layout: Layout) -> Shown:
        """What clients of a round may be sent."""
        at = {space: rows.rows for space, rows in layout.items()}
        at |= {space: self._slots(space, layout[space].union)[layout[space].inverse.long()] for space in self.resident}
        return Shown(self.trees, at)

    def close(self, totals: Mapping[str, Total], plain: Collection[str], number: int, time: int) -> None:
        """Means, parts (last one first), and the server's step; ``plain`` are not corrected for heat."""
        total, average = totals[UPDATE], self.average()
        mean = {tree: (BoundMean(1.0) if tree in plain else average)(one) for tree, one in totals.items()}
        total = replace(total, rows=self._places(total.rows))
        for part in reversed(self.parts):
            slots = {slot: self._of(tree, total.rows) for slot, tree in self.slots[part.key].items()}
            part.combine(mean, total, slots, number)
            for slot, tree in slots.items():
                self._put(self.slots[part.key][slot], tree, total.rows)
        for part in self.parts:
            part.limit(mean[UPDATE], total)
        if mean[UPDATE]:  # else everything is private
            # The rows are up to date: they have just been sent.
            self.rule.advance(self.params, mean[UPDATE], total.rows, self.state, time)
            self._note(total.rows)

    def _of(self, whole: Tree, rows: Rows) -> Tree:
        return {n: take_rows(v, rows[n]) if n in rows else v for n, v in whole.items()}

    def _put(self, whole: Tree, some: Tree, rows: Rows) -> None:
        for name, value in some.items():
            if name in rows:
                put_rows(whole[name], rows[name], value)
            elif value is not whole[name]:
                whole[name].copy_(value)

    def _note(self, rows: Rows) -> None:
        """These rows have moved, and with them what server and parts keep of them."""
        for table, at in rows.items() if self.tracking else ():
            self.moved[table].add(at)

    # Lazy tables: parameters, and all that is remembered by row, hold the rows that were opened, each in its slot

    def _places(self, rows: Rows) -> Rows:
        """Where rows lie in the tensors here."""
        found = {space: self._slots(space, rows[self._first(space)]) for space in self.resident}
        return {table: found.get(self.tables[table], at) for table, at in rows.items()}

    def _slots(self, space: str, rows: Tensor) -> Tensor:
        """Where rows lie; those of a round are asked for several times."""
        if self._known.get(space, (None,))[0] is not rows:
            self._known[space] = rows, torch.from_numpy(self.resident[space].find(rows.numpy()))
        return self._known[space][1]

    def _first(self, space: str) -> str:
        return next(name for name in self.lazy if self.tables[name] == space)

    def _enter(self, rows: Rows) -> None:
        """Give rows that are opened for the first time their slots, and there what every row begins with."""
        for space, directory in self.resident.items():
            names = [name for name in self.lazy if self.tables[name] == space]
            new = directory.new(rows[names[0]].numpy())
            if not len(new):
                continue
            self._reserve(space, directory.needed(len(new)))
            slots, ids = directory.add(new), torch.from_numpy(new)
            self._known.pop(space, None)
            like = {name: p[:0] if p.ndim else p for name, p in self.params.items()}
            like |= {name: self.lazy[name].take(ids) for name in names}
            begins = self.rule.init(like, self.tables)
            for name in names:
                put_rows(self.params[name], slots, like[name])
                for key in self._by_row(name):
                    put_rows(self.state[key], slots, begins[key])
            self._note(dict.fromkeys(names, slots))

    def _reserve(self, space: str, capacity: int) -> None:
        directory = self.resident[space]
        if capacity == directory.capacity:
            return
        directory.grow(capacity)
        for name in (n for n in self.lazy if self.tables[n] == space):
            for key in self._by_row(name):
                self.state[key] = _longer(self.state[key], capacity)
            for tree in (tree for slots in self.slots.values() for tree in slots.values()):
                tree[name] = _longer(tree[name], capacity)
            self.params[name] = _longer(self.params[name], capacity)
            self.moved[name].grow(capacity)

    def _by_row(self, table: str) -> list[str]:
        """What the rule remembers of every row of a table."""
        rows = len(self.params[table])
        named = {key: value for key, value in self.state.items() if key.partition("/")[2] == table}
        return [key for key, value in named.items() if value.ndim and len(value) == rows]

    def seen(self, params: Tree) -> Model:
        """Parameters, as those see them who ask for rows by their numbers."""
        return {**params, **{name: self._touched(name, params) for name in self.lazy}}

    def _touched(self, name: str, params: Tree) -> Touched:
        return Touched(self.lazy[name], params[name], self.resident[self.tables[name]])

    def restored(self) -> None:
        """After what a checkpoint kept has been put into the tensors here."""
        for directory in self.resident.values():
            directory.fill()
        self._known.clear()

    def model(self, time: int) -> Model:
        """What is evaluated after a round: a copy if rows must be brought up to date first, or of a mean."""
        params, state = self.params, self.state
        if self.rule.lazy:
            params = {name: p.clone() if name in self.tables else p for name, p in params.items()}
            state = {name: v.clone() for name, v in state.items()}
            self.rule.catch_up(params, None, state, time)
        return self.seen(self.rule.outcome(params, state, time))

    def read(self, rows: Rows, time: int) -> Tree:
        """Some rows of `model`."""
        params = {name: take_rows(self.params[name], at) for name, at in rows.items()}
        state: Tree = {}
        for name, value in self.state.items():
            table = name.partition("/")[2]
            if table in rows and name in self._by_row(table):
                state[name] = take_rows(value, rows[table])
            elif table in rows or table not in self.params:
                state[name] = value.clone()
        if self.rule.lazy:
            self.rule.catch_up(params, None, state, time)
        return self.rule.outcome(params, state, time)

    def catch_up(self, time: int) -> None:
        """Bring all rows to the end of a round."""
        if self.rule.lazy:
            self.rule.catch_up(self.params, None, self.state, time)

    def settle(self, time: int) -> None:
        """Make the parameters what is kept at the end of training: every row up to date, or its mean."""
        self.catch_up(time)
        for name, value in self.rule.outcome(self.params, self.state, time).items():
            if value is not self.params[name]:
                self.params[name].copy_(value)

    def save(self, number: int, run: Path) -> dict[str, Any]:
        """Before a checkpoint of a run is written: save what is not at hand, and say where."""
        return {}

    def end(self) -> None:
        """Nobody will ask any more."""

    def kept(self) -> dict[str, tuple[Tensor, str | None]]:
        """All that a checkpoint needs besides the parameters, and of what goes by rows the table that it shares."""
        out: dict[str, tuple[Tensor, str | None]] = {}
        for name, value in self.state.items():
            table = name.partition("/")[2]
            by_row = table in self.tables and name in self._by_row(table)
            out[f"server/{name}"] = value, table if by_row else None
        for space, directory in self.resident.items():
            out[f"{RESIDENT}{space}"] = directory.rows, self._first(space)
        for name, value in getattr(self.average(), "kept", {}).items():  # an average of the user's own need not say
            out[f"average/{name}"] = value, name
        for part, slots in self.slots.items():
            for slot, tree in slots.items():
                for name, value in tree.items():
                    out[f"part/{part}.{slot}/{name}"] = value, name if name in self.tables else None
        return out


def _free(arena: Tensor) -> Tensor:
    """No row in any slot."""
    return torch.full((len(arena),), FREE, dtype=torch.int64)


def _longer(values: Tensor, rows: int) -> Tensor:
    """With rows of zeros behind it."""
    out = torch.zeros((rows, *values.shape[1:]), dtype=values.dtype, device=values.device)
    out[: len(values)] = values
    return out
