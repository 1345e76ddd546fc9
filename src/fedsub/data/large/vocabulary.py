"""The distinct ids of all runs, merged: what the vocabulary is, and which number every id of a run has.

Every run has its ids sorted. Of each a block is held; all ids up to the least of the blocks' ends can be numbered, so
that memory holds a block of every run and no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from fedsub.data.cells import ranked, vocabulary_of
from fedsub.data.clients import Array
from fedsub.data.large.arrays import get, put
from fedsub.data.large.runs import CLIENTS, Run


class _Cursor:
    """The sorted ids of one run, block by block."""

    def __init__(self, run: Run, name: str, block: int) -> None:
        self.run, self.name, self.block = run, name, block
        self.count = int(run.meta["ids"][name]["count"])
        self.read = self.taken = 0
        self.held = pl.Series("", [], dtype=pl.Int64)

    def fill(self) -> bool:
        """Hold a block, if there is as much; else all that is left."""
        if 2 * len(self.held) < self.block and self.read < self.count:
            end = min(self.read + self.block - len(self.held), self.count)
            more = self.run.ids(self.name, self.read, end)
            self.held, self.read = pl.concat([self.held, more]) if len(self.held) else more, end
        return len(self.held) > 0

    def take(self, upto: int | str | None) -> pl.Series:
        """What is held up to a value, which is then held no more; everything if it is None."""
        end = len(self.held) if upto is None else int(self.held.search_sorted(upto, side="right"))  # type: ignore
        found, self.held = self.held[:end], self.held[end:]
        self.taken += end
        return found


def merged(runs: Sequence[Run], name: str, block: int) -> Iterator[tuple[pl.Series, list[tuple[int, int, Array]]]]:
    """(distinct ids, [(run, its ids before, where its next ids are among the distinct)]), block after block."""
    cursors = [_Cursor(run, name, block) if name in run.meta["ids"] else None for run in runs]
    while active := [(i, c) for i, c in enumerate(cursors) if c is not None and c.fill()]:
        ends = [c.held[-1] for _, c in active if c.read < c.count]
        upto = min(ends) if ends else None
        before = [(i, c.taken) for i, c in active]
        taken = [c.take(upto) for _, c in active]
        some = [(place, part) for place, part in zip(before, taken, strict=True) if len(part)]
        distinct, places = ranked([part for _, part in some])
        yield distinct, [(i, begin, codes) for ((i, begin), _), codes in zip(some, places, strict=True)]


def number(runs: Sequence[Run], name: str, folder: Path, block: int, first: int = 0) -> int:
    """Write the vocabulary of one space, and to every run the numbers of its ids; how many ids there are.

    ``first`` 1 leaves number 0 to what is no id. Of clients the file ``clients.loads`` gets the bytes of each.
    """
    for run in runs:
        put(run.folder / f"{name}.ranks", np.empty(0, np.int64))
    longest = max((run.meta["ids"][name]["longest"] for run in runs if name in run.meta["ids"]), default=1)
    words = any(run.meta["ids"][name]["kind"] == "String" for run in runs if name in run.meta["ids"])
    nothing = np.zeros(first, f"<U{longest}" if words else np.int64)
    put(folder / f"{name}.vocabulary", nothing)
    loads = folder / f"{name}.loads"
    loads.unlink(missing_ok=True)
    count = first
    for distinct, shares in merged(runs, name, block):
        put(folder / f"{name}.vocabulary", vocabulary_of(distinct, longest), "ab")
        sums = np.zeros(len(distinct), np.int64)
        for i, begin, codes in shares:
            put(runs[i].folder / f"{name}.ranks", count + codes.astype(np.int64), "ab")
            if name == CLIENTS:
                sums[codes] += _loads(runs[i], begin, len(codes))
        if name == CLIENTS:
            put(loads, sums, "ab")
        count += len(distinct)
    return count


def _loads(run: Run, begin: int, count: int) -> Array:
    """The bytes of some clients of a run."""
    starts = get(run.folder / "clients.starts", "i8", begin, begin + count + 1)
    fixed = 16.0
    sums = np.zeros(count, np.float64)
    for place, about in enumerate(run.meta["columns"]):
        size = 8 * (1 if about["ragged"] else about["width"])
        if about["ragged"]:
            edges = get(run.folder / f"column{place}.starts", "i8", int(starts[0]), int(starts[-1]) + 1)
            sums += 8.0 * np.diff(edges[starts - starts[0]])
        fixed += size
    return (sums + fixed * np.diff(starts)).astype(np.int64)
