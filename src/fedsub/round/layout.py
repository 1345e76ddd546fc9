"""Where the rows of a cohort lie: client after client, and their union.

A client names its rows (`Asked`); the server lays them out (`Layouts`). Nothing here looks at the rest of a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsub.data.clients import Space


@dataclass(frozen=True)
class Asked:
    """The rows of one space that the clients of a cohort ask for, one client's behind the other's, each sorted."""

    rows: np.ndarray  # int32 or int64 [Σ|S(i)|]
    counts: np.ndarray  # |S(i)| by client, int64 [K]

    def take(self, which: np.ndarray) -> Asked:
        """The rows of some of the clients."""
        starts = np.cumsum(self.counts) - self.counts
        runs = [self.rows[starts[k] : starts[k] + self.counts[k]] for k in which.tolist()]
        return Asked(np.concatenate(runs) if runs else self.rows[:0], self.counts[which])


@dataclass(frozen=True)
class SpaceRows:
    """The cohort's rows of one space: client after client, and their union."""

    rows: Tensor  # int32 or int64 [Σ|S(i)|] global row of every place
    counts: np.ndarray  # |S(i)| by client
    starts: np.ndarray  # first place of each client
    union: Tensor  # int64 [U] distinct global rows
    inverse: Tensor  # int32 [Σ|S(i)|] place -> position in the union

    def places(self, where: slice) -> slice:
        """Where the rows of some clients of the cohort lie."""
        begin = int(self.starts[where.start])
        return slice(begin, begin + int(self.counts[where].sum()))


Layout = dict[str, SpaceRows]  # by space


def asked_of(spaces: Mapping[str, Space], clients: np.ndarray) -> dict[str, Asked]:
    """What some clients of a simulation ask for: S(i) of each."""
    out = {}
    for name, space in spaces.items():
        counts, begins = space.counts[clients], space.row_offsets[clients]
        # Copying runs is faster than gathering places, and out of a plain array much faster than out of a memmap.
        rows = np.asarray(space.rows)
        runs = zip(begins.tolist(), (begins + counts).tolist(), strict=True)
        out[name] = Asked(np.concatenate([rows[a:b] for a, b in runs]), counts)
    return out


SCRATCH = 1 << 28  # rows of a space up to which an array of that size finds unions; of larger ones they are sorted


def union_of(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(distinct rows in the order of their last places, the position of every row in them)."""
    distinct, last, inverse = np.unique(rows[::-1], return_index=True, return_inverse=True)
    order = np.argsort(-last, kind="stable")  # places were counted from behind
    position = np.empty(len(order), np.int32)
    position[order] = np.arange(len(order), dtype=np.int32)
    return distinct[order].astype(np.intp), np.ascontiguousarray(position[inverse[::-1]])


class Layouts:
    """Lays out the rows of a cohort; keeps one scratch array per space to find unions in O(rows held)."""

    def __init__(self, rows: Mapping[str, int], device: torch.device):
        """``rows``: how many every space has."""
        self.rows, self.device = rows, device
        self._slot: dict[str, np.ndarray] = {}

    def __call__(self, asked: Mapping[str, Asked]) -> Layout:
        return {name: self._lay_out(name, one) for name, one in asked.items()}

    def _lay_out(self, name: str, asked: Asked) -> SpaceRows:
        if self.rows[name] > SCRATCH:
            union, inverse = union_of(asked.rows)
            return self._made(asked, union, inverse)
        index = asked.rows.astype(np.intp, copy=False)  # indexing by machine words is faster, converted once
        # slot[row] = last place that names the row: a place is kept if it is that last one. The scratch
        # array is never cleared: only entries written just above are read.
        if name not in self._slot:
            self._slot[name] = np.empty(self.rows[name], np.int32)
        slot, place = self._slot[name], np.arange(len(index), dtype=np.int32)
        slot[index] = place
        # mode="wrap" changes nothing, all rows lie within the table, but spares a pass that checks it.
        union = index.compress(slot.take(index, mode="wrap") == place)
        slot[union] = place[: len(union)]
        inverse = slot.take(index, mode="wrap")
        return self._made(asked, union, inverse)

    def _made(self, asked: Asked, union: np.ndarray, inverse: np.ndarray) -> SpaceRows:
        starts = np.cumsum(asked.counts) - asked.counts
        return SpaceRows(self._tensor(asked.rows), asked.counts, starts, self._tensor(union), self._tensor(inverse))

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)
