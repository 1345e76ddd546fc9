"""What is no local Parquet file becomes some, in the folder of work: text files, frames, files of an object store.

A text file is rewritten some megabytes at a time, a frame slice by slice. Rows keep their numbers, so that messages
name them as they stand in what was given.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from fedsub.data.frames import brief, slices_of
from fedsub.data.large.work import Work, key_of
from fedsub.data.problems import ROWS, Places
from fedsub.data.reading import TableFile
from fedsub.data.tables import Tables, Unreadable
from fedsub.errors import DataError

STAGED = "staged"
SLICE = 1 << 18  # rows of a frame that are written at a time
Tell = Callable[[str, int, int], object]


@dataclass(frozen=True)
class Source:
    """Local Parquet files, and where their rows stand in what was given."""

    tables: Tables
    places: Places


def staged_pieces(given: Tables, names: list[str], work: Work, tell: Tell, *, cut: bool = False) -> Source:
    """Text files and Arrow streams, a Parquet file for every piece of one.

    A piece of a file that has not changed is not read again.
    """
    types = given.types(names)
    folder = staged_folder(work)
    files, states = [], [os.stat(file.path) for file in given.files]
    before, total = 0, sum(state.st_size for state in states)
    for which, (file, state) in enumerate(zip(given.files, states, strict=True)):
        said = (str(file.path), state.st_size, state.st_mtime_ns, file.separator, file.encoding, file.piece)
        key = key_of(said, names, {n: str(t) for n, t in types.items()}, cut)
        for number, piece in enumerate(given.scans(which, names, types, cut=cut)):
            tell("copy", before + min(number * file.piece, state.st_size), total)  # of a packed file: at most
            to = folder / f"{key}-{number:06}.parquet"
            if not to.exists():
                with _appearing(to) as part:
                    try:
                        piece.sink_parquet(part, compression="lz4")
                    except pl.exceptions.PolarsError as error:
                        raise Unreadable(file, error) from error
            files.append(TableFile(to, ".parquet"))
        before += state.st_size
    _only(folder, {file.path for file in files})
    return Source(Tables(given.path, tuple(files)), given.places)


def staged_frame(frame: Any, names: list[str], work: Work, tell: Tell) -> Source:
    """A frame as Parquet files. Nobody can tell whether it is that of an earlier process, so it is read anew."""
    folder = staged_folder(work)
    _only(folder, set())
    if isinstance(frame, pl.LazyFrame):
        to = folder / "frame.parquet"
        try:
            frame.select(names).sink_parquet(to, compression="lz4", maintain_order=True)
        except pl.exceptions.PolarsError as error:
            raise DataError(f"The frame cannot be read: {brief(error)}") from error
        return Source(Tables("", (TableFile(to, ".parquet"),)), ROWS)
    return staged_slices(slices_of(frame, names, SLICE), folder, tell)


def staged_slices(slices: Iterator[pl.DataFrame], folder: Path, tell: Tell, *, loose: bool = False) -> Source:
    files, rows = [], 0
    for table in slices:
        to = folder / f"slice-{len(files):08}.parquet"
        table.write_parquet(to, compression="lz4")
        files.append(TableFile(to, ".parquet"))
        rows += len(table)
        tell("copy", rows, 0)
    return Source(Tables("", tuple(files), loose=loose), ROWS)


def staged_folder(work: Work) -> Path:
    folder = work.folder / STAGED
    folder.mkdir(exist_ok=True)
    return folder


def _only(folder: Path, kept: set[Path]) -> None:
    for path in folder.iterdir():
        if path not in kept:
            path.unlink()


@contextmanager
def _appearing(path: Path) -> Iterator[Path]:
    """A file that appears whole or not at all."""
    part = path.with_suffix(".part")
    try:
        yield part
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)
