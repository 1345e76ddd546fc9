"""One column of a table with one row per sample: its entries, checked, as ids or as numbers.

A message names the column, the row as the user sees it (counted from 0) and its client.
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import polars as pl

from fedsub.data.clients import Array, Column
from fedsub.errors import ColumnError

LONGEST = 1000  # characters of an id: numpy gives every string of an array the room of the longest
EXACT = 2**53  # integers that a float64 holds exactly

short = reprlib.Repr()  # values in messages
short.maxstring = short.maxother = 80


@dataclass(frozen=True)
class Cells:
    """The entries of one column, flat, and how they belong to samples."""

    flat: pl.Series
    owners: pl.Series
    role: str = "column"
    width: int = 1
    starts: Array | None = None
    fixed: bool = False  # [samples, width]

    @classmethod
    def of(cls, series: pl.Series, owners: pl.Series, max_len: int | None = None) -> Cells:
        whole = cls(series, owners)
        if not series.dtype.is_nested():
            return whole
        if series.null_count():
            whole.fail(series.is_null(), "is not a list; use an empty list or drop the row")
        if isinstance(series.dtype, pl.Array):
            if len(series.dtype.shape) != 1 or not series.dtype.shape[0]:
                raise ColumnError(f"Column {series.name!r} is {series.dtype}, expected one list per sample.")
            return cls(series.reshape((-1,)), owners, width=series.dtype.shape[0], fixed=True)
        if not isinstance(series.dtype, pl.List) or series.dtype.inner.is_nested():
            raise ColumnError(f"Column {series.name!r} holds {series.dtype}, expected plain lists.")
        series = series.list.tail(max_len) if max_len is not None else series
        lengths = series.list.len().cast(pl.Int64).to_numpy()
        starts = np.concatenate([[0], np.cumsum(lengths)])
        # Exploding an empty list would give one null, so empty lists step aside.
        flat = series.filter(pl.Series(lengths > 0)).explode()
        return cls(flat, owners, width=max(int(lengths.max()), 1), starts=starts)

    def fail(self, bad: pl.Series | Array, problem: str) -> NoReturn:
        """Raise for the first bad entry, naming column, row and client."""
        at = int(np.argmax(np.asarray(bad)))
        row = at // self.width if self.starts is None else int(np.searchsorted(self.starts, at, "right")) - 1
        name, value = self.flat.name, short.repr(self.flat[at])
        if self.role == "client":
            raise ColumnError(f"Client column {name!r}, row {row}: {value} {problem}.")
        owner = short.repr(self.owners[row])
        raise ColumnError(f"Column {name!r}, row {row}, client {owner}: {value} {problem}.")

    def plain(self) -> pl.Series:
        """The entries as ids: Int64 or String, none missing."""
        flat, dtype = self.flat, self.flat.dtype
        if flat.null_count():
            self.fail(flat.is_null(), "is not an id; drop the row or give missing ids a value of their own")
        if isinstance(dtype, pl.String | pl.Categorical | pl.Enum):
            return self.words()
        if dtype.is_float():
            numbers = flat.cast(pl.Float64).to_numpy()
            if (bad := ~np.isfinite(numbers)).any():
                self.fail(bad, "is not an id; drop the row or give missing ids a value of their own")
            if (bad := numbers != np.floor(numbers)).any():
                self.fail(bad, "is a fraction, expected a whole number; ids are integers or strings")
            if (bad := np.abs(numbers) > EXACT).any():
                self.fail(bad, "is too large to be exact as a float; store the ids as integers or strings")
        elif not (dtype.is_integer() or dtype in (pl.Boolean, pl.Null)):
            raise ColumnError(f"Column {flat.name!r} holds {dtype}, expected integers or strings; cast it.")
        return self.int64("cast the column to strings")

    def words(self) -> pl.Series:
        """The entries as strings that numpy keeps apart at a bearable price."""
        words = self.flat.cast(pl.String)
        if (bad := words.str.len_chars() > LONGEST).any():
            self.fail(bad, f"is an id of more than {LONGEST:,} characters; hash the ids first, then use the hashes")
        if (bad := words.str.contains("\0", literal=True)).any():
            self.fail(bad, "contains a NUL character, which ids cannot keep; remove it or hash the ids first")
        return words

    def int64(self, remedy: str) -> pl.Series:
        cast = self.flat.to_physical().cast(pl.Int64, strict=False)
        if cast.null_count():
            self.fail(cast.is_null(), f"exceeds int64; {remedy}")
        return cast


def prenumbered(cells: Cells, plain: pl.Series, size: int, space: str, zero_ok: bool) -> Array:
    if plain.dtype == pl.String:
        raise ColumnError(
            f"Column {plain.name!r} holds strings, but sizes[{space!r}] says its ids are table rows; "
            "leave it out of sizes to have the ids numbered."
        )
    rows = plain.to_numpy()
    if (bad := rows < 0).any():
        cells.fail(bad, f"is negative, expected a row from 0 to {size - 1}; or drop sizes[{space!r}]")
    if (bad := rows >= size).any():
        cells.fail(bad, f"is past the table of {size:,} rows; raise sizes[{space!r}] or leave it out")
    if not zero_ok and (bad := rows == 0).any():
        cells.fail(
            bad,
            f"is the row that lists in space {space!r} reserve for 'nothing here'; number from 1, or pass "
            f"padding=[{space!r}] if 0 does mean nothing",
        )
    return rows


def encode(columns: list[pl.Series]) -> tuple[Array, list[Array]]:
    """Sorted distinct values of all columns, and each column as positions in them."""
    distinct = pl.concat([c.unique().alias("") for c in columns]).unique().sort()
    if distinct.dtype == pl.String:
        words = pl.Enum(distinct)
        return (
            np.array(distinct.to_list(), dtype=np.str_),
            [c.cast(words).to_physical().cast(pl.Int64).to_numpy() for c in columns],
        )
    values = distinct.to_numpy()
    cells = [c.to_numpy() for c in columns]
    span = int(values[-1]) - int(values[0]) + 1 if len(values) else 0
    if span > 4 * sum(map(len, cells)) + 1024:
        return values, [np.searchsorted(values, c) for c in cells]
    place = np.zeros(span, np.int64)  # ids without wide gaps: a table is much faster than a search
    place[values - values[:1]] = np.arange(len(values))
    return values, [place[c - values[:1]] for c in cells]


def label_column(cells: Cells, binary: bool) -> Column:
    name = cells.flat.name
    if cells.fixed or cells.starts is not None:
        raise ColumnError(f"Label {name!r} holds lists, expected one number per sample.")
    column = value_column(cells, whole=False)
    if binary and (bad := (column.values != 0) & (column.values != 1)).any():
        cells.fail(
            bad,
            "is not a binary label (0 or 1); make it one first, for example "
            f"frame.with_columns(pl.col({name!r}) >= threshold), or pass binary_label=False",
        )
    return column


def value_column(cells: Cells, whole: bool = True) -> Column:
    """A plain column; ``whole`` keeps integers and times as int64, where float32 would lose digits."""
    flat, name = cells.flat, cells.flat.name
    if cells.starts is not None:
        raise ColumnError(f"Column {name!r} holds lists, expected a fixed width; cast it to pl.Array.")
    if flat.null_count():
        cells.fail(flat.is_null(), "is missing, expected a number; fill it or drop the row")
    if flat.dtype.is_temporal():
        flat = flat.to_physical()
    if not (flat.dtype.is_numeric() or flat.dtype == pl.Boolean):
        raise ColumnError(f"Column {name!r} holds {flat.dtype}, expected numbers; cast it or leave it out.")
    if whole and flat.dtype.is_integer():
        numbers = cells.int64("rescale the column").to_numpy()
    else:
        with np.errstate(over="ignore"):
            numbers = flat.cast(pl.Float64).to_numpy().astype(np.float32)
        if (bad := ~np.isfinite(numbers)).any():
            cells.fail(bad, "is not a finite number; fill it, rescale it or drop the row")
    return Column(name, numbers.reshape(-1, cells.width) if cells.fixed else numbers, width=cells.width)
