"""One table in a file, or in several: a folder of Parquet files is read as one table, in the order of their names.

Rows are named by file ("part-3.parquet:12") where there are several. Files may have columns of their own; those that
are read must be in all of them, and of one type.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedsub.data.problems import ROWS, Places, short
from fedsub.data.reading import LINES, TABLES, TEXT, TableFile, existing, kind_of
from fedsub.data.remote import copied, is_remote
from fedsub.data.store import MANIFEST
from fedsub.errors import ColumnError, DataError, nearest

DICT = "dataset_dict.json"
HIDDEN = (".", "_")  # how files begin that are no data, such as _SUCCESS


class Unreadable(Exception):
    """A file of a table cannot be read; polars says why."""

    def __init__(self, file: TableFile, reason: Exception) -> None:
        super().__init__(str(reason))
        self.file, self.reason = file, reason


@dataclass(frozen=True)
class Tables:
    """Files with one row per sample, in order; ``path`` is what was given."""

    path: str
    files: tuple[TableFile, ...]
    loose: bool = False  # whole numbers in one file and fractions in another are both numbers

    @classmethod
    def of(
        cls, path: Any, separator: str | None = None, encoding: str | None = None, place: Path | None = None,
        piece: int = 0,
    ) -> Tables:  # fmt: skip
        """Of a file, a folder, a pattern such as "log/*.parquet", or a list of files.

        Those of an object store are copied into the folder ``place``. ``piece``: bytes of text that are read at a time.
        """
        local = path
        if is_remote(path):
            if place is None:
                raise DataError(f"{path} is in an object store; copy it to this computer first.")
            local = copied(path, place)
        files = tuple(TableFile.of(file, separator, encoding, piece) for file in paths_of(local))
        kinds = sorted({file.kind for file in files})
        if len({(kind in TEXT, kind in LINES) for kind in kinds}) > 1:
            raise DataError(f"{said(path)} holds files of several kinds ({', '.join(kinds)}); name those of one.")
        return cls(said(path), files)

    @property
    def text(self) -> bool:
        return self.files[0].kind in TEXT

    @property
    def in_pieces(self) -> bool:
        """Whether some of the files have to be rewritten to be read in bounded memory."""
        return any(file.in_pieces for file in self.files)

    @cached_property
    def schemas(self) -> list[dict[str, pl.DataType]]:
        """The columns of every file, with their types."""
        found = []
        for file in self.files:
            try:
                found.append(file.schema())
            except (pl.exceptions.PolarsError, OSError) as error:
                raise Unreadable(file, error) from error
        return found

    @property
    def names(self) -> list[str]:
        """The columns of any of the files."""
        return list(dict.fromkeys(name for schema in self.schemas for name in schema))

    def types(self, names: Iterable[str]) -> dict[str, pl.DataType]:
        """The types of columns, which every file must have."""
        out, problems = {}, []
        for name in names:
            kind, first = None, None
            for file, schema in zip(self.files, self.schemas, strict=True):
                if name not in schema:
                    there = nearest(name, schema)
                    problems.append(f"There is no column {name!r} in {file.path.name}, but in other files; {there}")
                    break
                if kind is None:
                    kind, first = schema[name], file
                    continue
                both = _common(kind, schema[name], self.text, self.loose or file.kind in (*TEXT, *LINES))
                if both is None:
                    assert first is not None
                    problems.append(
                        f"Column {name!r} holds {kind} in {first.path.name} and {schema[name]} in {file.path.name}; "
                        "write all files with one type."
                    )
                    break
                kind = both
            if kind is not None:
                out[name] = kind
        if problems:
            raise ColumnError(*problems)
        return out

    def scan(
        self, which: int, names: Sequence[str], types: dict[str, pl.DataType], *, cut: bool = False
    ) -> pl.LazyFrame:
        """Some columns of one file, as ``types`` say (those of all files)."""
        return self._as(self.files[which].scan(cut=cut, words=self._words(which, names, types)), which, names, types)

    def scans(
        self, which: int, names: Sequence[str], types: dict[str, pl.DataType], *, cut: bool = False
    ) -> Iterator[pl.LazyFrame]:
        """`scan` of a file that is `in_pieces`, piece by piece; of another one, all of it."""
        if not self.files[which].in_pieces:
            yield self.scan(which, names, types, cut=cut)
            return
        own = self.schemas[which] | dict.fromkeys(self._words(which, names, types), pl.String())
        for piece in self.files[which].scans(own, cut=cut):
            yield self._as(piece, which, names, types)

    def _words(self, which: int, names: Sequence[str], types: dict[str, pl.DataType]) -> list[str]:
        """Columns that are text only because of other files."""
        return [n for n in names if self.text and types[n] == pl.String and self.schemas[which][n] != pl.String]

    def _as(self, read: pl.LazyFrame, which: int, names: Sequence[str], types: dict[str, pl.DataType]) -> pl.LazyFrame:
        schema, words = self.schemas[which], self._words(which, names, types)
        # Of a line that is too long polars sees that only if the last column is read, too.
        last = [list(schema)[-1]] if self.text else []
        read = read.select(list(dict.fromkeys([*names, *last])))
        changed = [n for n in names if n not in words and schema[n] != types[n]]
        return read.with_columns(pl.col(n).cast(types[n]) for n in changed) if changed else read

    def fetch(self, names: list[str], *, cut: bool = False) -> pl.DataFrame:
        """Some columns of all rows, in memory."""
        types, parts = self.types(names), []
        for which, file in enumerate(self.files):
            try:
                parts.append(self.scan(which, names, types, cut=cut).collect().select(names))
            except (pl.exceptions.PolarsError, OSError) as error:
                raise Unreadable(file, error) from error
        return parts[0] if len(parts) == 1 else pl.concat(parts)

    @cached_property
    def begins(self) -> np.ndarray:
        """The row with which every file begins, and the number of rows."""
        counts = []
        for file in self.files:
            try:
                counts.append(rows_in(file))
            except (pl.exceptions.PolarsError, OSError) as error:
                raise Unreadable(file, error) from error
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    @property
    def places(self) -> Places:
        if len(self.files) == 1:
            return Places(self.files[0].lines, "line") if self.text else ROWS
        return Places(self._named, "line" if self.text else "row")

    def _named(self, rows: Sequence[int]) -> list[int | str]:
        out: list[int | str] = []
        for row in rows:
            which = int(np.searchsorted(self.begins, row, side="right")) - 1
            file, own = self.files[which], int(row - self.begins[which])
            out.append(f"{file.path.name}:{file.lines([own])[0] if self.text else own}")
        return out

    def first_line(self) -> str:
        return self.files[0].first_line()


def rows_in(file: TableFile) -> int:
    if file.kind not in TEXT and not file.piece:
        return int(file.scan().select(pl.len()).collect().item())
    last = file.names[-1]
    parts = file.scans({} if file.kind in TEXT else file.schema()) if file.piece else [file.scan()]
    return sum(part.select(last).collect().height for part in parts)


def said(path: Any) -> str:
    if isinstance(path, str | os.PathLike):
        return os.fspath(path)
    return ", ".join(os.fspath(one) for one in path[:3]) + (", …" if len(path) > 3 else "")


def paths_of(path: Any) -> list[Path]:
    """The files that a path, a folder, a pattern or a list stands for."""
    if isinstance(path, list | tuple):
        if not path or not all(isinstance(one, str | os.PathLike) for one in path):
            raise DataError(f"Got {short.repr(path)}, expected the path of a file or of a folder, or a list of files.")
        return [existing(one) for one in path]
    try:
        place = Path(path)
        folder = place.is_dir()
        pattern = not folder and glob.has_magic(str(path)) and not place.exists()
    except (OSError, ValueError, TypeError):  # `existing` says what is wrong with it
        return [existing(path)]
    if pattern:
        found = sorted(
            Path(one) for one in glob.glob(str(path), recursive=True) if kind_of(one) and Path(one).is_file()
        )
        if not found:
            raise DataError(f"No file is called like {path}, with an ending of {', '.join(TABLES)}; check the pattern.")
        return found
    return tables_in(place) if folder and not (place / MANIFEST).exists() else [existing(place)]


def has_tables(folder: Path) -> bool:
    """Whether a folder is a table in several files, and no saved `Clients`."""
    if (folder / MANIFEST).exists():
        return False
    try:
        return bool(tables_in(folder))
    except DataError:
        return False


def tables_in(folder: Path) -> list[Path]:
    """The tables in a folder and those below it, by name; what begins with a dot or _ is left out."""
    if (folder / DICT).exists():  # what `datasets.DatasetDict.save_to_disk` writes
        parts = sorted(path.parent.name for path in folder.glob("*/state.json"))
        raise DataError(
            f"{folder} holds several data sets ({', '.join(parts)}); name one of them, such as {folder / parts[0]}."
            if parts else f"{folder} holds no data set that can be read."
        )  # fmt: skip
    inside = (path for path in folder.rglob("*") if kind_of(path) and path.is_file() and not _cached(path))
    found = [path for path in inside if not any(part.startswith(HIDDEN) for part in path.relative_to(folder).parts)]
    if not found:
        raise DataError(
            f"{folder} is a directory without a file of {', '.join(TABLES)}; for one written by Clients.save() use "
            "Clients.open()."
        )
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def _cached(path: Path) -> bool:
    """Whether it is what Hugging Face's `map` left beside a data set."""
    return path.name.startswith("cache-") and (path.parent / "state.json").exists()


def _common(one: pl.DataType, other: pl.DataType, text: bool, loose: bool) -> pl.DataType | None:
    """The type that holds both, None if nothing does without a guess."""
    if one == other:
        return one
    for empty, full in ((one, other), (other, one)):
        if empty == pl.Null:
            return full
    if one.is_integer() and other.is_integer():
        return pl.Int64() if pl.UInt64 not in (one, other) else None
    if one.is_float() and other.is_float():
        return pl.Float64()
    if isinstance(one, pl.List) and isinstance(other, pl.List):
        inner = _common(_instance(one.inner), _instance(other.inner), False, loose)
        return pl.List(inner) if inner is not None else None
    if loose and one.is_numeric() and other.is_numeric():
        return pl.Float64()
    return pl.String() if text else None  # the types of text files are only seen from what is in them


def _instance(kind: Any) -> pl.DataType:
    return kind() if isinstance(kind, type) else kind
