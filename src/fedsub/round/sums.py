"""The sum across clients: the only operation that mixes what clients send.

Rows are summed over the union of the cohort's submodels, never over the whole table. Clients are added
one after the other in cohort order, so neither the chunk size nor the number of workers changes a bit.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from fedsub.method.part import Total
from fedsub.round.layout import Layout
from fedsub.round.messages import UPDATE, Uplink
from fedsub.trees import Tree, add_rows


class Sums:
    """Σ of everything that the uplinks of a round carry; `add` takes them in cohort order."""

    def __init__(
        self, like: Tree, tables: Mapping[str, str], layout: Layout, trees: Mapping[str, tuple[str, ...]], *, held: bool
    ):
        """``trees`` names the parameters of each tree that is sent; ``held``: also Σ a_i by row."""
        self.tables, self.layout = tables, layout
        self.trees = {tree: {n: self._zeros(n, like) for n in names} for tree, names in trees.items()}
        self.held = {
            space: torch.zeros(len(rows.union), dtype=torch.float64, device=rows.union.device)
            for space, rows in layout.items()
            if held
        }
        self.numbers: dict[str, float] = {"weight": 0.0, "count": 0.0}
        self.refused = 0  # clients that answered and sent nothing

    def _zeros(self, name: str, like: Tree) -> torch.Tensor:
        shape = list(like[name].shape)
        if name in self.tables:
            shape[0] = len(self.layout[self.tables[name]].union)
        return torch.zeros(shape, dtype=like[name].dtype, device=like[name].device)

    def add(self, uplink: Uplink, where: slice) -> None:
        """Add the clients ``where`` of the layout."""
        self.refused += int(uplink.refused.sum())
        for tree, values in uplink.trees.items():
            for name, value in values.items():
                total = self.trees[tree][name]
                if name in self.tables:
                    rows = self.layout[self.tables[name]]
                    at = rows.inverse[rows.places(where)]
                    # Torch adds rows of several values five times as fast at int64 places, in the same order.
                    add_rows(total, at if value.numel() == len(value) else at.long(), value)
                elif len(value) == 1:
                    total.add_(value[0])
                else:
                    # Every entry goes to the same place, in order: the sum does not depend on the grouping.
                    first = torch.zeros(len(value), dtype=torch.int32, device=value.device)
                    add_rows(total.reshape(1, -1), first, value.reshape(len(value), -1))
        for space, held in self.held.items():
            rows = self.layout[space]
            weights = np.repeat(uplink.sums["weight"], rows.counts[where])
            held.index_add_(0, rows.inverse[rows.places(where)], torch.from_numpy(weights).to(held.device))
        for name, values in uplink.sums.items():
            total = self.numbers.get(name, 0.0)
            for value in values.tolist():  # in order: no matter how grouped
                total += value
            self.numbers[name] = total

    @property
    def count(self) -> int:
        """Clients that delivered."""
        return int(self.numbers["count"])

    @property
    def loss(self) -> float:
        """The mean training loss of those who delivered; NaN if they do not tell."""
        return self.numbers.get("loss", float("nan")) / self.count if self.count else float("nan")

    def total(self, tree: str = UPDATE) -> Total:
        weight = self.numbers["weight"]
        return Total(
            values=self.trees[tree],
            rows={table: self.layout[space].union for table, space in self.tables.items()},
            held={table: self.held[space] for table, space in self.tables.items() if space in self.held},
            weight=weight,
            count=self.count,
            numbers={n: v / weight for n, v in self.numbers.items() if n not in ("weight", "count", "loss") and weight},
        )
