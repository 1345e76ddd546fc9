"""From sorted runs to the saved directory: stretches of clients, gathered from all runs, numbered, appended.

A stretch (a *part*) fits in memory. Within a client the runs follow each other as the pieces did, and a run kept the
order of its piece, so that samples stand in the order of the data.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedsub.data.clients import Array, Column, Space
from fedsub.data.large.arrays import blocks, get, order_of
from fedsub.data.large.runs import CLIENTS, Run
from fedsub.data.plan import Plan
from fedsub.data.renumber import reorder
from fedsub.data.stream import ClientsWriter, Numbered
from fedsub.disk.files import write_atomic
from fedsub.disk.reading import read_json

STATE = "state.json"
EVERY = 5.0  # seconds between notes of how far it is: each waits for the disk
BLOCK = 1 << 20


def cuts_of(loads: Path, limit: int) -> Array:
    """The clients with which the parts begin, and their number: parts of at most ``limit`` bytes, or one client."""
    cuts, held, before = [0], 0, 0
    for block in blocks(loads, "i8", BLOCK):
        ends, base, at = np.cumsum(block), 0, 0
        while at < len(block):
            end = int(np.searchsorted(ends, base + limit - held, side="right"))
            if end <= at:  # the next client does not fit
                if held:
                    cuts.append(before + at)
                    held = 0
                    continue
                end = at + 1
            held, base, at = held + int(ends[end - 1]) - base, int(ends[end - 1]), end
        before += len(block)
    return np.array([*cuts, before])


@dataclass(frozen=True)
class Parts:
    """How the runs are cut: part p has the clients ``cuts[p]`` to ``cuts[p + 1]``."""

    runs: Sequence[Run]
    plan: Plan
    spaces: Sequence[Space]  # without rows and vocabularies
    clients: Path  # the vocabulary of the clients
    kind: str  # its dtype
    classes: tuple[str, ...]
    cuts: Array
    among: list[Array]  # of every run: where the clients of every part begin among the run's
    rows: list[Array]  # and its rows

    @classmethod
    def of(
        cls,
        runs: Sequence[Run],
        plan: Plan,
        spaces: Sequence[Space],
        folder: Path,
        classes: tuple[str, ...],
        limit: int,
    ) -> Parts:
        some = [run for run in runs if run.rows]
        cuts = cuts_of(folder / f"{CLIENTS}.loads", limit)
        among = [np.searchsorted(get(run.folder / f"{CLIENTS}.ranks", "i8"), cuts) for run in some]
        rows = [run.starts[places] for run, places in zip(some, among, strict=True)]
        about = [run.meta["ids"][CLIENTS] for run in some]
        longest = max(one["longest"] for one in about)
        kind = f"<U{longest}" if about[0]["kind"] == "String" else "i8"
        return cls(some, plan, spaces, folder / f"{CLIENTS}.vocabulary", kind, classes, cuts, among, rows)

    def __len__(self) -> int:
        return len(self.cuts) - 1

    def gather(self, part: int) -> Numbered:
        """The clients of one part with all their samples."""
        first, last = int(self.cuts[part]), int(self.cuts[part + 1])
        owners, columns = [], []
        for run, among, rows in zip(self.runs, self.among, self.rows, strict=True):
            begin, end = int(among[part]), int(among[part + 1])
            if begin == end:
                continue
            counts = np.diff(get(run.folder / "clients.starts", "i8", begin, end + 1))
            ranks = get(run.folder / f"{CLIENTS}.ranks", "i8", begin, end)
            owners.append(np.repeat((ranks - first).astype(np.int32), counts))
            sizes = [space.size for space in self.spaces]
            columns.append(run.columns(self.plan, sizes, int(rows[part]), int(rows[part + 1])))
        codes = np.concatenate(owners)
        order = order_of(codes)
        offsets = np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=last - first))])
        del owners, codes
        joined = []
        for i, name in enumerate(self.plan.names):
            column = reorder(_joined([some[i] for some in columns]), order)
            joined.append(replace(column, classes=self.classes) if name == self.plan.label else column)
            for some in columns:
                some[i] = replace(some[i], values=some[i].values[:0], starts=None)
        del columns, order
        return Numbered.of(self.spaces, get(self.clients, self.kind, first, last), offsets, joined)

    def write(
        self, folder: Path, key: str, workers: Executor, ahead: int, tell: Callable[[int], object]
    ) -> ClientsWriter:
        """Append all parts, from where an earlier process stopped; ``tell`` is called with the samples written."""
        writer, done = self._begun(folder, key)
        tell(writer.samples)
        noted = time.monotonic()
        try:
            for part, block in _in_order(self.gather, range(done, len(self)), workers, ahead):
                writer.append(block)
                tell(writer.samples)
                if time.monotonic() < noted + EVERY:
                    continue
                said = {"key": key, "done": part + 1, "writer": writer.state()}
                write_atomic(folder.with_name(STATE), json.dumps(said).encode())
                noted = time.monotonic()
        except BaseException:
            writer.discard()
            raise
        return writer

    def _begun(self, folder: Path, key: str) -> tuple[ClientsWriter, int]:
        label = self.plan.label
        try:
            said = read_json(folder.with_name(STATE))
            if said["key"] == key:
                return ClientsWriter.resumed(folder, self.spaces, label, said["writer"]), int(said["done"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return ClientsWriter(folder, self.spaces, label, exist_ok=True), 0


def _in_order(
    make: Callable[[int], Numbered], parts: range, workers: Executor, ahead: int
) -> Iterator[tuple[int, Numbered]]:
    """What ``make`` makes of every part, in order, ``ahead`` of them at a time."""
    waiting: deque[tuple[int, Future[Numbered]]] = deque()
    left = iter(parts)
    try:
        for part in left:
            waiting.append((part, workers.submit(make, part)))
            if len(waiting) >= ahead:
                first, made = waiting.popleft()
                yield first, made.result()
        while waiting:
            first, made = waiting.popleft()
            yield first, made.result()
    finally:
        for _, made in waiting:
            made.cancel()


def _joined(parts: list[Column]) -> Column:
    """The columns of several runs as one; the widest list counts."""
    if len(parts) == 1:
        return parts[0]
    starts = None
    if parts[0].starts is not None:
        lengths = [np.diff(p.starts) for p in parts if p.starts is not None]
        starts = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    values = np.concatenate([p.values for p in parts])
    return replace(parts[0], values=values, starts=starts, width=max(p.width for p in parts))
