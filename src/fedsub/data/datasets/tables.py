"""Tables of a release with the types that they must have; a bad line is named by its number.

polars reads them in one go. Only if it stumbles, or leaves a hole, the file is read again line by line to say where.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from fedsub.errors import ColumnError, DataError, nearest

Schema = Mapping[str, type[pl.DataType]]
SHOWN = 60  # characters of a bad line in a message


def parquet(path: Path, schema: Schema) -> pl.DataFrame:
    """The columns of a Parquet file, cast to the wanted types, without holes."""
    try:
        lazy = pl.scan_parquet(path, glob=False)
        _require(path, list(schema), lazy.collect_schema().names())
        frame = lazy.select(pl.col(name).cast(kind) for name, kind in schema.items()).collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(
            f"{path.name} cannot be read as Parquet: {_brief(error)}. It may be truncated; copy it again."
        ) from error
    for name in schema:
        if frame[name].null_count():
            row = int(frame[name].is_null().arg_max() or 0)
            raise ColumnError(f"{path.name}: column {name!r} is empty in row {row} (counted from 0); copy it again.")
    return _some(frame, path)


@dataclass(frozen=True)
class Text:
    """A text table: separated fields (',', tab or '::'), or with ``separator=None`` one JSON object a line.

    With a header, or in JSON, columns are found by name; else the schema lists all fields of a line, in order.
    """

    path: Path
    schema: Schema
    separator: str | None = ","
    header: bool = False
    encoding: str = "utf8"
    may_be_empty: tuple[str, ...] = ()

    def collect(self) -> pl.DataFrame:
        """The table, after checking that no wanted field is missing."""
        frame = self.reduce(lambda lazy: lazy, engine="in-memory")
        self._no_gaps(frame.lazy())
        return _some(frame, self.path)

    def check(self) -> None:
        """The same check of a table that is larger than the memory."""
        self._no_gaps(self._scan())

    def reduce(self, change: Callable[[pl.LazyFrame], pl.LazyFrame], engine: Any = "streaming") -> pl.DataFrame:
        """What ``change`` makes of the table, read in pieces."""
        if self.path.stat().st_size == 0:
            raise DataError(f"{self.path.name} is empty; download it again.")
        self._check_header()
        try:
            return change(self._scan()).collect(engine=engine)
        except (pl.exceptions.PolarsError, OSError, UnicodeError) as error:
            raise self._explained(_brief(error)) from error

    def _no_gaps(self, lazy: pl.LazyFrame) -> None:
        needed = [name for name in self.schema if name not in self.may_be_empty]
        gaps = self.reduce(lambda _: lazy.select(pl.col(needed).null_count()))
        if sum(gaps.row(0)):
            raise self._explained("a field is missing")

    def _scan(self) -> pl.LazyFrame:
        if self.separator is None:
            return pl.scan_ndjson(self.path, schema=dict(self.schema))
        wide = dict(self.schema)
        if self.separator == "::":  # to polars, two separators with an empty field in between
            wide = {
                key: kind for name, own in self.schema.items() for key, kind in ((name, own), (f" {name}", pl.String))
            }
            wide.popitem()
        options: dict[str, Any] = {
            "separator": self.separator[:1],
            "has_header": self.header,
            "quote_char": None if self.separator == "::" else '"',
            "schema_overrides" if self.header else "schema": wide,
        }
        if self.encoding == "utf8":
            lazy = pl.scan_csv(self.path, glob=False, **options)
        else:
            lazy = pl.read_csv(self.path, encoding=self.encoding, **options).lazy()
        return lazy.select(list(self.schema))

    def _check_header(self) -> None:
        if self.header:
            _require(self.path, list(self.schema), self._columns())

    def _columns(self) -> list[str]:
        with open(self.path, encoding="utf-8-sig", errors="replace") as file:
            return next(csv.reader([file.readline()], delimiter=self.separator or ","), [])

    def _explained(self, seen: str) -> DataError:
        """The first bad line, in words; ``seen`` if all lines look well."""
        for number, problem in self._problems():
            return DataError(f"{self.path.name}, line {number}: {problem}. The file is damaged; download it again.")
        return DataError(f"{self.path.name} cannot be read: {seen}. The file may be damaged; download it again.")

    def _problems(self) -> Iterator[tuple[int, str]]:
        columns = self._columns() if self.header else list(self.schema)
        needed = {name: kind for name, kind in self.schema.items() if name not in self.may_be_empty}
        with open(self.path, encoding=self.encoding, errors="replace", newline="") as file:
            if self.separator is None:
                for number, line in enumerate(file, 1):
                    if problem := _json_problem(line, self.schema):
                        yield number, problem
                return
            if self.separator == "::":
                rows = (line.rstrip("\r\n").split("::") for line in file)
            else:
                rows = csv.reader(file, delimiter=self.separator)
            number = 0
            try:
                for number, row in enumerate(rows, 1):
                    if number == 1 and self.header:
                        continue
                    if problem := _row_problem(row, columns, needed):
                        yield number, problem
            except csv.Error as error:
                yield number + 1, str(error)


def _row_problem(row: list[str], columns: list[str], schema: Schema) -> str:
    if len(row) != len(columns):
        return f"{len(row)} fields, expected {len(columns)} ({', '.join(columns)}), in {_short(row)}"
    return next(filter(None, (_field_problem(n, v, schema.get(n)) for n, v in zip(columns, row, strict=True))), "")


def _field_problem(name: str, value: Any, kind: type[pl.DataType] | None) -> str:
    try:
        if kind == pl.Int64:
            int(value)
        elif kind == pl.Float64:
            float(value)
        elif kind is not None and value in ("", None):
            raise ValueError
    except (TypeError, ValueError):
        wanted = {pl.Int64: "a whole number", pl.Float64: "a number"}.get(kind, "some text")  # type: ignore[call-overload]
        return f"{name} is {_short(value)}, expected {wanted}"
    return ""


def _json_problem(line: str, schema: Schema) -> str:
    try:
        found = json.loads(line)
    except ValueError:
        return f"no JSON object in {_short(line)}"
    if not isinstance(found, dict):
        return f"no JSON object in {_short(line)}"
    if missing := [name for name in schema if name not in found]:
        return f"there is no field {missing[0]!r}"
    return next(filter(None, (_field_problem(n, found[n], kind) for n, kind in schema.items())), "")


def _require(path: Path, names: list[str], present: list[str]) -> None:
    for name in names:
        if name not in present:
            raise ColumnError(f"{path.name} has no column {name!r}; {nearest(name, present)}")


def _some(frame: pl.DataFrame, path: Path) -> pl.DataFrame:
    if not len(frame):
        raise DataError(f"{path.name} holds no rows; it is empty or truncated. Download it again.")
    return frame


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def _brief(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
