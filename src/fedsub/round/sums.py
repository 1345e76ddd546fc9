"""The sum across clients: the only operation that mixes what clients send.

Rows are summed over the union of the cohort's submodels, never over the whole table. Clients are added
one after the other in cohort order, so neither the chunk size nor the number of workers changes a bit.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsub.data.clients import Space
from fedsub.method.groups import Cohort
from fedsub.method.slots import Total
from fedsub.objective.problem import Problem
from fedsub.trees import Tree, add_rows


@dataclass(frozen=True)
class SpaceRows:
    """The cohort's rows of one space: client after client, and their union."""

    rows: Tensor  # int32 or int64 [Σ|S(i)|] global row of every place
    counts: np.ndarray  # |S(i)| by client
    starts: np.ndarray  # first place of each client
    union: Tensor  # int64 [U] distinct global rows
    inverse: Tensor  # int32 [Σ|S(i)|] place -> position in the union


class CohortRows:
    """Lays out the rows of a cohort; keeps one scratch array per space to find unions in O(rows held)."""

    def __init__(self, problem: Problem, device: torch.device):
        self.problem, self.device = problem, device
        self._slot: dict[str, np.ndarray] = {}

    def __call__(self, cohort: Cohort) -> dict[str, SpaceRows]:
        return {name: self._lay_out(space, cohort.clients) for name, space in self.problem.spaces.items()}

    def _lay_out(self, space: Space, clients: np.ndarray) -> SpaceRows:
        counts, begins = space.counts[clients], space.row_offsets[clients]
        # Copying runs is faster than gathering places; so is indexing by machine words, converted once.
        runs = zip(begins.tolist(), (begins + counts).tolist(), strict=True)
        rows = np.concatenate([space.rows[a:b] for a, b in runs])
        index = rows.astype(np.intp, copy=False)
        # slot[row] = last place that names the row: a place is kept if it is that last one. The scratch
        # array is never cleared: only entries written just above are read.
        if space.name not in self._slot:
            self._slot[space.name] = np.empty(space.size, np.int32)
        slot, place = self._slot[space.name], np.arange(len(rows), dtype=np.int32)
        slot[index] = place
        # mode="wrap" changes nothing, all rows lie within the table, but spares a pass that checks it.
        union = index.compress(slot.take(index, mode="wrap") == place)
        slot[union] = place[: len(union)]
        inverse = slot.take(index, mode="wrap")
        starts = np.cumsum(counts) - counts
        return SpaceRows(self._tensor(rows), counts, starts, self._tensor(union), self._tensor(inverse))

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)


class Sum:
    """Accumulates Σ a_i Δ_i group by group."""

    def __init__(
        self,
        problem: Problem,
        params: Tree,
        layout: dict[str, SpaceRows],
        *,
        held: bool,
        private: Collection[str] = (),
    ):
        """``held``: also of the weights by row; ``private`` parameters are not sent."""
        self.problem, self.layout = problem, layout
        self.values: Tree = {}
        for name in (n for n in problem.names if n not in private):
            shape = list(params[name].shape)
            if name in problem.tables:
                shape[0] = len(layout[problem.tables[name].name].union)
            self.values[name] = torch.zeros(shape, dtype=params[name].dtype, device=params[name].device)
        self.held = {
            s: torch.zeros(len(rows.union), dtype=torch.float64, device=rows.union.device)
            for s, rows in layout.items()
            if held
        }
        self.weight, self.count = 0.0, 0

    def add(self, deltas: Tree, where: slice, weights: np.ndarray, *, stacked: bool) -> None:
        """Add the clients ``where`` of the cohort. ``weights`` [c] are the a_i; 0 leaves a client out."""
        plain = bool((weights == 1).all())
        for name, delta in deltas.items():
            total = self.values[name]
            if name in self.problem.tables:
                rows = self.layout[self.problem.tables[name].name]
                places = places_of(rows, where)
                if not plain:
                    delta = delta * _column(weights, delta, rows.counts[where])
                at = rows.inverse[places]
                # Torch adds rows of several values five times as fast at int64 places, in the same order.
                add_rows(total, at if delta.numel() == len(delta) else at.long(), delta)
            elif not stacked:
                total.add_(delta, alpha=float(weights[0]))
            else:
                if not plain:
                    delta = delta * _column(weights, delta)
                # Every entry goes to the same place, in order: the sum does not depend on the grouping.
                first = torch.zeros(len(delta), dtype=torch.int32, device=delta.device)
                add_rows(total.reshape(1, -1), first, delta.reshape(len(delta), -1))
        for space, held in self.held.items():
            rows = self.layout[space]
            owner = np.repeat(weights, rows.counts[where])
            held.index_add_(0, rows.inverse[places_of(rows, where)], torch.from_numpy(owner).to(held.device))
        self.weight += float(weights.sum())
        self.count += int(np.count_nonzero(weights))

    def total(self, numbers: dict[str, float] | None = None) -> Total:
        """The sums; ``numbers`` are the clients' weighted means of what else they sent."""
        space_of = {table: space.name for table, space in self.problem.tables.items()}
        return Total(
            values=self.values,
            rows={table: self.layout[space].union for table, space in space_of.items()},
            held={table: self.held[space] for table, space in space_of.items() if space in self.held},
            weight=self.weight,
            count=self.count,
            numbers=numbers or {},
        )


def places_of(rows: SpaceRows, where: slice) -> slice:
    """Where the rows of some clients of the cohort lie."""
    begin = int(rows.starts[where.start])
    return slice(begin, begin + int(rows.counts[where].sum()))


def _column(weights: np.ndarray, like: Tensor, counts: np.ndarray | None = None) -> Tensor:
    """The clients' weights (each repeated for its rows), shaped to multiply ``like``."""
    if like.dtype == torch.float32:
        weights = weights.astype(np.float32)
    column = torch.from_numpy(weights if counts is None else np.repeat(weights, counts))
    return column.to(device=like.device, dtype=like.dtype).reshape(-1, *[1] * (like.ndim - 1))
