"""Who holds the shared model between rounds: parameters, what server and parts remember of them, and which rows moved.

All of it goes by rows: `open` brings the rows of a round up to date, `show` gives them, `close` takes their sums.
Nothing here reduces over rows or over parameters, so that a table may be kept in pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsub.method.average import BoundMean
from fedsub.method.part import Part, Total
from fedsub.method.slots import BoundAverage, Server
from fedsub.round.layout import Layout
from fedsub.round.messages import MODEL, UPDATE
from fedsub.round.remembered import Moved
from fedsub.trees import Tree, put_rows, take_rows

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
        tables: Mapping[str, str],
    ):  # fmt: skip
        self.parts, self.rule, self.average, self.params, self.tables = parts, rule, average, params, tables
        self.state: Tree = rule.init(params, tables)
        self.slots: dict[str, dict[str, Tree]] = {
            part.key: {slot: {n: torch.zeros_like(p) for n, p in params.items()} for slot in part.server_slots}
            for part in parts
        }
        self.moved = {name: Moved(len(params[name])) for name in tables}
        self.tracking = True  # whether anybody will ask which rows moved
        self._trees = {MODEL: params} | {
            f"{part.key}.{slot}": self.slots[part.key][slot] for part in parts for slot in part.sent_slots
        }

    def open(self, rows: Rows, time: int) -> None:
        """Bring rows to the end of a round."""
        if self.rule.lazy:
            self.rule.catch_up(self.params, rows, self.state, time)
            self._note(rows)

    def show(self, layout: Layout) -> Shown:
        """What clients of a round may be sent."""
        return Shown(self._trees, {space: rows.rows for space, rows in layout.items()})

    def close(self, totals: Mapping[str, Total], plain: Collection[str], number: int, time: int) -> None:
        """Means, parts (last one first), and the server's step; ``plain`` are not corrected for heat."""
        total, average = totals[UPDATE], self.average()
        mean = {tree: (BoundMean(1.0) if tree in plain else average)(one) for tree, one in totals.items()}
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

    def model(self, time: int) -> Tree:
        """What is evaluated after a round: a copy if rows must be brought up to date first, or of a mean."""
        params, state = self.params, self.state
        if self.rule.lazy:
            params = {name: p.clone() if name in self.tables else p for name, p in params.items()}
            state = {name: v.clone() for name, v in state.items()}
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

    def kept(self) -> dict[str, tuple[Tensor, str | None]]:
        """All that a checkpoint needs besides the parameters, and of what goes by rows the table that it shares."""
        out: dict[str, tuple[Tensor, str | None]] = {}
        for name, value in self.state.items():
            table = name.partition("/")[2]
            by_row = table in self.tables and value.ndim > 0 and len(value) == len(self.params[table])
            out[f"server/{name}"] = value, table if by_row else None
        for name, value in getattr(self.average(), "kept", {}).items():  # an average of the user's own need not say
            out[f"average/{name}"] = value, name
        for part, slots in self.slots.items():
            for slot, tree in slots.items():
                for name, value in tree.items():
                    out[f"part/{part}.{slot}/{name}"] = value, name if name in self.tables else None
        return out
