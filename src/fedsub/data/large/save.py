"""Any table to a saved `Clients` in bounded memory: the doors for files, frames and LEAF's JSON."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedsub.checks import is_whole
from fedsub.data.clients import Clients
from fedsub.data.heat import said, summarise
from fedsub.data.ingest import planned, told_of
from fedsub.data.large.budget import Budget, bytes_of, default_memory, resident, text_of
from fedsub.data.large.build import Ingest, Progress, check_unchanged, states, tell_changed
from fedsub.data.large.sources import Source, staged_folder, staged_frame, staged_pieces
from fedsub.data.large.work import Work
from fedsub.data.plan import Plan
from fedsub.data.store import check_replaceable, open_clients, say_made, whole_directory
from fedsub.data.tables import Tables
from fedsub.errors import ColumnError, DataError, notice

COPIES = "copies"  # of files of object stores
SAMPLED = 10_000  # rows that are looked at to see how many bytes a row has


@dataclass(frozen=True)
class To:
    """Where the result goes, and what it may take."""

    path: Path
    memory: int
    workers: int = 1
    progress: Progress = lambda what, done, total: None
    made: Mapping[str, Any] | None = None
    budget: Budget | None = None  # instead of one from the memory

    @property
    def text(self) -> int:
        """Bytes of a text file that are read at a time."""
        return self.budget.text if self.budget is not None else text_of(self.memory)

    @classmethod
    def of(
        cls, path: str | os.PathLike[str], memory: Any = None, workers: Any = None, progress: Progress | None = None,
        made: Mapping[str, Any] | None = None,
    ) -> To:  # fmt: skip
        if workers is not None and not (is_whole(workers) and 1 <= int(workers) <= 256):
            raise DataError(f"workers is {workers!r}, expected how many pieces are worked on at a time, 1 to 256.")
        size = default_memory() if memory is None else bytes_of(memory)
        count = min(os.cpu_count() or 1, 8) if workers is None else int(workers)
        return cls(Path(path), size, count, progress or (lambda what, done, total: None), made)


def save_files(open_tables: Callable[[Path], Tables], client: Any, plan: Plan, to: To) -> Clients:
    """Files to the directory ``to.path``: what reading them in memory and saving would write.

    ``open_tables`` gets a folder for copies of files that are elsewhere.
    """
    with _work(to) as work:
        tables = open_tables(work.folder / COPIES)

        def attempt(cut: bool) -> None:
            resolved, names = planned(tables.names, client, plan)
            source = Source(tables, tables.places)
            if tables.in_pieces:
                source = staged_pieces(tables, names, work, to.progress, cut=cut)
            _build(source, client, resolved, work, to, states(tables), only_check=cut, given=tables)

        told_of(tables, attempt)
        return _finished(work, to)


def save_frame(frame: Any, present: list[str], client: Any, plan: Plan, to: To) -> Clients:
    """A frame to the directory ``to.path``."""
    resolved, names = planned(present, client, plan)
    with _work(to) as work:
        work.begin_anew()
        source = staged_frame(frame, names, work, to.progress)
        _build(source, client, resolved, work, to, {})
        return _finished(work, to)


def save_source(make: Callable[[Path, Progress], Source], client: str, plan: Plan, to: To) -> Clients:
    """What ``make`` puts into a folder; it is also given what to tell of its progress."""
    with _work(to) as work:
        work.begin_anew()
        source = make(staged_folder(work), to.progress)
        _build(source, client, plan.resolved(source.tables.names), work, to, {})
        return _finished(work, to)


def _build(
    source: Source, client: str, plan: Plan, work: Work, to: To, before: dict[str, Any], *, only_check: bool = False,
    given: Tables | None = None,
) -> None:  # fmt: skip
    """All steps; the result lies in the folder of work."""
    tables = source.tables
    if not tables.files or not int(tables.begins[-1]):
        raise ColumnError("The data has no rows; expected one row per sample. Check the file or the filter.")
    earlier = work.about()
    if earlier and given is not None:
        tell_changed(given, earlier.get("files", {}))
    budget = to.budget or Budget.of(to.memory, to.workers, _row_bytes(tables, client, plan))
    if 0 < earlier.get("piece", 0) <= 2 * budget.piece:  # what was read in such pieces is used
        budget = replace(budget, piece=earlier["piece"])
    work.say(earlier | {"piece": budget.piece, "files": before})
    ingest = Ingest(tables, source.places, client, plan, work, budget, to.progress)
    try:
        runs = ingest.read()
    except ColumnError:
        if any(work.runs.iterdir()) and before:
            notice(f"What was read is kept in {work.folder}: correct the data and run the same again, or remove it.")
        else:
            work.remove()
        raise
    if only_check:
        return
    if given is not None:
        check_unchanged(given, before)
    with ThreadPoolExecutor(budget.workers) as workers:
        spaces = ingest.number(runs, workers)
        writer = ingest.write(runs, spaces, workers)
    ingest.tell(runs)
    vocabularies = {
        space.name: ingest.vocabulary(runs, i) for i, space in enumerate(spaces) if space.name not in plan.sizes
    }
    to.progress("finish", 0, 1)
    writer.finish(vocabularies=vocabularies)
    free = to.memory - resident()
    options = {"client": client, "ids": plan.spaces, "label": plan.label, "values": plan.values, "nulls": plan.nulls}
    made = {"source": tables.path if given is not None else "a frame", "options": options}
    say_made(work.saved, lambda clients: made | dict(to.made or {}) | statistics(clients, free))


def _finished(work: Work, to: To) -> Clients:
    with whole_directory(to.path) as fresh:
        fresh.rmdir()
        work.saved.rename(fresh)
    work.remove()
    to.progress("finish", 1, 1)
    return open_clients(to.path, verify=False)


def _work(to: To) -> AbstractContextManager[Work]:
    return Work(check_replaceable(to.path)).open()


def _row_bytes(tables: Tables, client: str, plan: Plan) -> float:
    """Bytes of a row in memory, from the beginnings of a few files."""
    names = list(dict.fromkeys([client, *plan.sources]))
    types, sizes = tables.types(names), []
    for which in sorted({0, len(tables.files) // 2, len(tables.files) - 1}):
        some = tables.scan(which, names, types).head(SAMPLED).collect()
        if len(some):
            sizes.append(some.estimated_size() / len(some))
    return max(max(sizes, default=8.0), 8.0 * len(names))


def statistics(clients: Clients, free: int) -> dict[str, Any]:
    """Samples by client, and heat by space, for the manifest; without heat where it would not fit in memory."""
    sizes = clients.sizes
    each = {"min": int(sizes.min()), "max": int(sizes.max()), "mean": clients.samples / len(clients)}
    about: dict[str, Any] = {"samples_per_client": each}
    if 64 * sum(space.size for space in clients.spaces.values()) < max(free, 0):
        about["heat"] = said(summarise(clients))
    return {"statistics": about}
