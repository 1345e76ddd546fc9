"""Segments: a model cut into S pieces of consecutive values, whose sizes differ by at most one.

The values of all parameters that are exchanged lie one behind the other, tables with all their rows, as if everybody
held them; segment s is a stretch of that. Of a submodel it has the rows that lie in the stretch, so that all nodes mean
the same by it. A row across a border belongs to two segments with some of its columns each.

    flat      | items.weight: row 0 | row 1 | row 2 | out.weight |
    S = 2     |------- segment 0 -------|-- segment 1 -----------|
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedsub.trees import Tree


def even(pieces: int, values: int) -> np.ndarray:
    """The sizes of so many pieces of ``values`` values: they differ by at most one, the longer ones first."""
    return values // pieces + (np.arange(pieces) < values % pieces).astype(np.int64)


@dataclass(frozen=True)
class Stretch:
    """Values of one vector in one segment: of a dense parameter, or of a row of a table that lies across a border."""

    name: str
    segment: int
    begin: int
    end: int
    row: int | None = None

    @property
    def values(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class Rows:
    """The rows of a table by segment: whole ones first[s] … last[s] − 1, touched ones from[s] … to[s] − 1."""

    first: np.ndarray
    last: np.ndarray
    touched: np.ndarray  # int64 [S, 2]

    @property
    def key(self) -> bytes:
        """Equal for tables that are cut alike."""
        return b"".join(part.tobytes() for part in (self.first, self.last, self.touched))


@dataclass(frozen=True)
class Segments:
    """``count`` segments of the parameters ``names``; ``tables`` are by row."""

    count: int
    values: int  # of the whole model
    edges: np.ndarray  # flat, int64 [S + 1]
    rows: Mapping[str, Rows]
    stretches: tuple[Stretch, ...]

    @classmethod
    def of(cls, count: int, like: Tree, names: Sequence[str], tables: Mapping[str, str]) -> Segments:
        total = sum(like[name].numel() for name in names)
        edges = np.concatenate([[0], np.cumsum(even(count, total))])
        rows, stretches, offset = {}, [], 0
        for name in names:
            size = like[name].numel()
            cut = np.clip(edges - offset, 0, size)
            if name in tables:
                width = math.prod(like[name].shape[1:])
                rows[name], borders = _by_row(name, cut, width)
                stretches += borders
            else:
                found = np.flatnonzero(cut[1:] > cut[:-1]).tolist()
                stretches += [Stretch(name, s, int(cut[s]), int(cut[s + 1])) for s in found]
            offset += size
        return cls(count, total, edges, rows, tuple(stretches))


def _by_row(name: str, cut: np.ndarray, width: int) -> tuple[Rows, list[Stretch]]:
    """A table's rows by segment, and what lies across borders; ``cut`` are the borders within it."""
    low, high = cut[:-1], cut[1:]
    first, last = -(-low // width), high // width
    touched = np.stack([low // width, -(-high // width)], 1)
    touched[low == high] = 0
    stretches = []
    for s in np.flatnonzero(low < high).tolist():
        begin, end = int(low[s]), int(high[s])
        if first[s] > last[s]:  # within one row
            row = begin // width
            stretches.append(Stretch(name, s, begin - row * width, end - row * width, row))
            continue
        if begin % width:
            stretches.append(Stretch(name, s, begin % width, width, begin // width))
        if end % width:
            stretches.append(Stretch(name, s, 0, end % width, end // width))
    empty = (first >= last) | (low == high)
    return Rows(np.where(empty, 0, first), np.where(empty, 0, last), touched), stretches
