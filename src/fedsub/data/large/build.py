"""Parquet files to a saved `Clients`, in bounded memory: the steps, one after the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from fedsub.data import notices
from fedsub.data.cells import Cells
from fedsub.data.clients import Array, Space
from fedsub.data.ingest import UNFILLED, planned
from fedsub.data.large.arrays import blocks, get
from fedsub.data.large.budget import Budget
from fedsub.data.large.parts import BLOCK, Parts
from fedsub.data.large.runs import CLIENTS, Run
from fedsub.data.large.vocabulary import merged, number
from fedsub.data.large.work import Work, key_of
from fedsub.data.pieces import Form, Found, Piece, check_client, filled, label_values, padded, read
from fedsub.data.plan import Plan
from fedsub.data.problems import Places
from fedsub.data.stream import ClientsWriter
from fedsub.data.tables import Tables, Unreadable
from fedsub.data.texts import is_text
from fedsub.errors import DataError, notice

Progress = Callable[[str, int, int], object]  # what is done, how many rows of it, of how many
VERSION = 1  # of what lies in a folder of work


@dataclass(frozen=True)
class Stretch:
    """Some rows of one file, which are read at a time."""

    which: int
    offset: int
    rows: int
    begin: int  # the table's row with which it begins
    key: str


class Ingest:
    """One table, on its way to disk."""

    def __init__(
        self, tables: Tables, places: Places, client: str, plan: Plan, work: Work, budget: Budget, progress: Progress
    ) -> None:
        self.tables, self.places, self.client, self.work = tables, places, client, work
        self.budget, self.progress = budget, progress
        self.plan, names = planned(tables.names, client, plan)
        self.names, self.types = names, tables.types(names)
        self.rows = int(tables.begins[-1])
        if self.rows:
            check_client(client, self.types[client])
        self.form = Form.of(self.plan, self._column) if self.rows else Form()
        self.stretches = list(self._stretches())

    # ------------------------------------------------------------------ runs

    def read(self) -> list[Run]:
        """All pieces as sorted runs; refused if something is wrong with the data."""
        found, done, runs = Found(), 0, {}
        self.work.keep_runs({one.key for one in self.stretches})
        left = []
        for i, one in enumerate(self.stretches):
            if (run := Run.open(self.work.runs / one.key)) is not None:
                runs[i], done = run, done + one.rows
            else:
                left.append(i)
        broken: dict[int, Found] = {}
        self.progress("read", done, self.rows)
        with ThreadPoolExecutor(self.budget.workers) as workers:
            jobs = {workers.submit(self._run, self.stretches[i]): i for i in left}
            try:
                for job in as_completed(jobs):
                    i, made = jobs[job], job.result()
                    if isinstance(made, Run):
                        runs[i] = made
                    else:
                        broken[i] = made
                    done += self.stretches[i].rows
                    self.progress("read", done, self.rows)
            except BaseException:
                workers.shutdown(cancel_futures=True)
                raise
        for i in range(len(self.stretches)):
            found = found + (runs[i].found if i in runs else broken[i])
        self.found = found
        found.settle(self.client, self.plan, self.form, self._label_values)
        return [runs[i] for i in range(len(self.stretches))]

    def _run(self, one: Stretch) -> Run | Found:
        piece = self._piece(one, marked=notices.LOOKED_AT if one.begin < notices.LOOKED_AT else 0)
        found = piece.found
        if found.problems or self.form.problems or any(found.mixed(self.plan, space) for space in self.plan.spaces):
            return found
        return Run.write(self.work.runs / one.key, piece, self.plan, kept=True)

    def _piece(self, one: Stretch, marked: int = 0) -> Piece:
        table, places, blank = self._table(one, self.names)
        return read(table, table[self.client], self.plan, self.form, places, marked=marked, blank=blank)

    def _table(self, one: Stretch, names: list[str]) -> tuple[pl.DataFrame, Places, int]:
        file = self.tables.files[one.which]
        try:
            table = self.tables.scan(one.which, names, self.types).slice(one.offset, one.rows).collect()
        except (pl.exceptions.PolarsError, OSError) as error:
            raise Unreadable(file, error) from error
        return filled(table, replace(self.places, begin=one.begin))

    def _label_values(self) -> Iterator[Array]:
        for one in self.stretches:
            table, places, _ = self._table(one, self.names)
            yield label_values(table, table[self.client], self.plan, self.form, places)

    def _column(self, name: str) -> Iterator[Cells]:
        """One column, piece by piece; of one that holds no texts, and needs no look, only its type."""
        kind = self.types[name]
        if not is_text(kind) and kind != pl.Boolean:
            nothing = pl.Series(name, [], dtype=kind)
            yield Cells(nothing, nothing)
            return
        for one in self._stretches():
            table, places, _ = self._table(one, list(dict.fromkeys([self.client, name])))
            yield Cells(table[name], table[self.client], places=places)

    def _stretches(self) -> Iterator[Stretch]:
        options = (VERSION, pl.__version__, self.client, asdict(self.plan), {n: str(t) for n, t in self.types.items()})
        decided = (self.form.classes, self.form.written) if hasattr(self, "form") else ()
        for which, file in enumerate(self.tables.files):
            begin, end = int(self.tables.begins[which]), int(self.tables.begins[which + 1])
            state = os.stat(file.path)
            for at in range(begin, end, self.budget.piece):
                rows = min(self.budget.piece, end - at)
                mark = (str(file.path), state.st_size, state.st_mtime_ns, at - begin, rows)
                key = key_of(options, decided, mark, at < notices.LOOKED_AT)
                yield Stretch(which, at - begin, rows, at, key)

    # ------------------------------------------------------------------ vocabularies and parts

    def number(self, runs: list[Run], workers: Executor) -> list[Space]:
        """Vocabularies, and every run's ids as rows of the tables."""
        names = [(CLIENTS, 0)]
        pads = {}
        for i, (space, columns) in enumerate(self.plan.spaces.items()):
            pads[space] = padded(self.plan, space, any(isinstance(self.types[n], pl.List) for n in columns))
            if space not in self.plan.sizes:
                names.append((f"space{i}", int(pads[space])))
        ready = self.work.about().get("vocabularies", {})
        counts: dict[str, int] = dict(ready.get("counts", {})) if ready.get("key") == self._key(runs) else {}
        for done, (name, first) in enumerate(names):
            self.progress("number", done, len(names))
            if name not in counts:
                count = sum(run.meta["ids"][name]["count"] for run in runs if name in run.meta["ids"])
                size = sum(run.meta["ids"][name]["bytes"] for run in runs if name in run.meta["ids"])
                block = self.budget.ids(len(runs), 8 + 3 * size / max(count, 1))
                counts[name] = number(runs, name, self.work.folder, block, first)
                self.work.say(self.work.about() | {"vocabularies": {"key": self._key(runs), "counts": counts}})
        spaces = []
        for i, (space, columns) in enumerate(self.plan.spaces.items()):
            size = int(self.plan.sizes[space]) if space in self.plan.sizes else max(counts[f"space{i}"], 1)
            spaces.append(Space(space, size, tuple(columns), UNFILLED, UNFILLED, pads[space]))
        sizes = [space.size for space in spaces]
        for _ in workers.map(lambda run: run.translate(self.plan, sizes), runs):
            pass
        self.progress("number", len(names), len(names))
        return spaces

    def write(self, runs: list[Run], spaces: list[Space], workers: Executor) -> ClientsWriter:
        """The parts, one behind the other, in the folder of work."""
        parts = Parts.of(runs, self.plan, spaces, self.work.folder, self.form.classes, self.budget.part)
        key = key_of(self._key(runs), parts.cuts.tolist())
        rows = self.found.kept
        return parts.write(
            self.work.saved, key, workers, self.budget.workers, lambda done: self.progress("write", done, rows)
        )

    def vocabulary(self, runs: list[Run], place: int) -> Iterator[Array]:
        """The vocabulary of a space, piece by piece."""
        about = [run.meta["ids"][f"space{place}"] for run in runs if f"space{place}" in run.meta["ids"]]
        longest = max((one["longest"] for one in about), default=1)
        words = any(one["kind"] == "String" for one in about)
        yield from blocks(
            self.work.folder / f"space{place}.vocabulary", f"<U{longest}" if words else "i8", max(BLOCK // longest, 1)
        )

    def tell(self, runs: list[Run]) -> None:
        """What is worth knowing of the data, as `fedsub.data.pieces` says it."""
        marked, names = self._marked(runs)
        self.found.tell(self.plan, self.form.classes, lambda space: self._used(runs, space), marked, names)

    def _used(self, runs: list[Run], space: str) -> int:
        """How many rows of a table the data know that are numbered already."""
        name = f"used{list(self.plan.spaces).index(space)}"
        return sum(len(distinct) for distinct, _ in merged(runs, name, self.budget.ids(len(runs), 32)))

    def _marked(self, runs: list[Run]) -> tuple[Array | None, Callable[[int], tuple[str, int | str]]]:
        """The marks of the first rows that are kept, and what they are called."""
        parts, begins, count = [], [], 0
        for one, run in zip(self.stretches, runs, strict=True):
            if count < notices.LOOKED_AT and run.meta["marks"]:
                parts.append(get(run.folder / "marks", "u8", width=2))
                begins.append((count, one, run))
                count += len(parts[-1])

        def name(row: int) -> tuple[str, int | str]:
            before, one, run = next(entry for entry in reversed(begins) if entry[0] <= row)
            kept = run.folder / "kept"
            at = int(get(kept, "i8", row - before, row - before + 1)[0]) if kept.exists() else row - before
            return replace(self.places, begin=one.begin).name(at)

        return (np.concatenate(parts)[: notices.LOOKED_AT] if parts else None), name

    def _key(self, runs: Iterable[Run]) -> str:
        return key_of([run.folder.name for run in runs])


def check_unchanged(tables: Tables, before: dict[str, Any]) -> None:
    """Refuse what was read of files that somebody writes to."""
    after = states(tables)
    changed = [path for path in before if before[path] != after.get(path)]
    if changed:
        raise DataError(f"{changed[0]} has changed while it was read; run the same again when nobody writes to it.")


def states(tables: Tables) -> dict[str, Any]:
    """By which a file is known to be what it was: its size and time."""
    seen = {str(file.path): os.stat(file.path) for file in tables.files}
    return {path: [state.st_size, state.st_mtime_ns] for path, state in seen.items()}


def tell_changed(tables: Tables, before: dict[str, Any]) -> None:
    """Of files that have changed since an earlier process read them."""
    now = states(tables)
    for path in [path for path in before if path in now and before[path] != now[path]][:3]:
        notice(f"{path} has changed since it was read, so it is read again.")
