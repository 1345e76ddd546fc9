"""One column of a table with one row per sample: its entries, checked, as ids or as numbers.

A message names the column, the row as the user sees it (counted from 0, or in a text file the line, from 1) and its
client. All problems of a column are collected before it is refused.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

import numpy as np
import polars as pl

from fedsub.data.clients import Array, Column
from fedsub.errors import ColumnError

LONGEST = 1000  # characters of an id: numpy gives every string of an array the room of the longest
EXACT = 2**53  # integers that a float64 holds exactly
SHOWN = 5  # bad rows that a message names
GAPS = ("", "na", "n/a", "nan", "null", "none")  # texts that mean a missing number; an id "NA" may be Namibia
MISSING_ID, MISSING_WORD = -(2**63), "(missing)"  # in a vocabulary, the ids of those that have none (nulls="own")

short = reprlib.Repr()  # values in messages
short.maxstring = short.maxother = 80


@dataclass(frozen=True)
class Places:
    """Where the rows of a table stand in what the user gave: ``rows`` are those that are left, all if None."""

    lines: Callable[[Sequence[int]], list[int]] | None = None  # of rows, in a text file
    rows: Array | None = None

    def of(self, rows: Sequence[int]) -> tuple[str, list[int]]:
        """("line" or "row", their numbers)."""
        before = list(rows) if self.rows is None else [int(self.rows[row]) for row in rows]
        return ("row", before) if self.lines is None else ("line", self.lines(before))

    def only(self, kept: pl.Series) -> Places:
        """With some rows left out of those that are left."""
        rows = np.flatnonzero(kept.to_numpy())
        return replace(self, rows=rows if self.rows is None else self.rows[rows])


ROWS = Places()


def listed(word: str, numbers: Sequence[int]) -> str:
    """ "line 3", "lines 3 and 5" or "lines 3, 5, 8, 9, 12 and 7 more"."""
    shown = [str(n) for n in numbers[:SHOWN]]
    if len(numbers) == 1:
        return f"{word} {shown[0]}"
    if len(numbers) > SHOWN:
        return f"{word}s {', '.join(shown)} and {len(numbers) - SHOWN:,} more"
    return f"{word}s {', '.join(shown[:-1])} and {shown[-1]}"


def missing(series: pl.Series) -> pl.Series:
    """Which entries are missing: null, not a number, or lists that are or hold such."""
    gap = series.is_null()
    if isinstance(series.dtype, pl.List | pl.Array):
        lists = series.arr.to_list() if isinstance(series.dtype, pl.Array) else series
        return gap | lists.list.eval(pl.element().is_null()).list.any().fill_null(False)
    return gap | series.is_nan().fill_null(False) if series.dtype.is_float() else gap


@dataclass(frozen=True)
class Cells:
    """The entries of one column, flat, and how they belong to samples."""

    flat: pl.Series
    owners: pl.Series
    role: str = "column"
    places: Places = ROWS
    width: int = 1
    starts: Array | None = None
    fixed: bool = False  # [samples, width]
    problems: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, series: pl.Series, owners: pl.Series, max_len: int | None = None, places: Places = ROWS) -> Cells:
        whole = cls(series, owners, places=places)
        if not series.dtype.is_nested():
            return whole
        if series.null_count():
            whole.fail(series.is_null(), "is not a list; use an empty list or drop the row")
        if isinstance(series.dtype, pl.Array):
            if len(series.dtype.shape) != 1 or not series.dtype.shape[0]:
                raise ColumnError(f"Column {series.name!r} is {series.dtype}, expected one list per sample.")
            return cls(series.reshape((-1,)), owners, places=places, width=series.dtype.shape[0], fixed=True)
        if not isinstance(series.dtype, pl.List) or series.dtype.inner.is_nested():
            raise ColumnError(f"Column {series.name!r} holds {series.dtype}, expected plain lists.")
        series = series.list.tail(max_len) if max_len is not None else series
        lengths = series.list.len().cast(pl.Int64).to_numpy()
        starts = np.concatenate([[0], np.cumsum(lengths)])
        # Exploding an empty list would give one null, so empty lists step aside.
        flat = series.filter(pl.Series(lengths > 0)).explode()
        return cls(flat, owners, places=places, width=max(int(lengths.max()), 1), starts=starts)

    def fail(self, bad: pl.Series | Array, problem: str) -> NoReturn:
        """Raise for bad entries, naming column, rows and client, with what was noted before."""
        self.note(bad, problem)
        raise ColumnError(*self.problems)

    def note(self, bad: pl.Series | Array, problem: str) -> None:
        """Keep a problem, if there is one, until `settle`."""
        at = np.flatnonzero(np.asarray(bad))
        if not len(at):
            return
        rows = at // self.width if self.starts is None else np.searchsorted(self.starts, at, "right") - 1
        rows = list(dict.fromkeys(rows.tolist()))
        word, numbers = self.places.of(rows[: SHOWN + 1])
        name, value = self.flat.name, short.repr(self.flat[int(at[0])])
        owner = "" if self.role == "client" else f", client {short.repr(self.owners[rows[0]])}"
        more = f" (also {listed(word, [*numbers[1:], *rows[SHOWN + 1 :]])})" if len(rows) > 1 else ""
        kind = "Client column" if self.role == "client" else "Column"
        self.problems.append(f"{kind} {name!r}, {word} {numbers[0]}{owner}: {value} {problem}{more}.")

    def settle(self) -> None:
        """Raise for all that was noted."""
        if self.problems:
            raise ColumnError(*self.problems)

    def plain(self, own: bool = False) -> pl.Series:
        """The entries as ids: Int64 or String, none missing; with ``own`` missing ones are ids of their own."""
        flat, dtype = self.flat, self.flat.dtype
        gaps = missing(flat).to_numpy()
        if not own:
            own_row = "" if self.role == "client" else " or give missing ids a row of their 'own'"
            self.note(gaps, f"is not an id; drop the row (nulls='drop', --nulls drop){own_row}")
        if isinstance(dtype, pl.String | pl.Categorical | pl.Enum):
            return self.words()
        if dtype.is_float():
            numbers = np.where(gaps, 0, flat.cast(pl.Float64).to_numpy())
            self.note(np.isinf(numbers), "is not an id; drop the row or give it an id")
            numbers[np.isinf(numbers)] = 0
            self.note(
                numbers != np.floor(numbers), "is a fraction, expected a whole number; ids are integers or strings"
            )
            self.note(
                np.abs(numbers) > EXACT, "is too large to be exact as a float; store the ids as integers or strings"
            )
            self.settle()
            return pl.Series(flat.name, np.where(gaps, MISSING_ID, numbers.astype(np.int64)))
        if not (dtype.is_integer() or dtype in (pl.Boolean, pl.Null)):
            raise ColumnError(f"Column {flat.name!r} holds {dtype}, expected integers or strings; cast it.")
        ids = self.int64("cast the column to strings", gaps)
        return ids.fill_null(MISSING_ID) if own else ids

    def numbers(self) -> pl.Series:
        """Texts that mean numbers, or points in time, as such, null where they say "missing". Others as they are."""
        if not isinstance(self.flat.dtype, pl.String | pl.Categorical | pl.Enum):
            return self.flat
        text = self.flat.cast(pl.String).str.strip_chars()
        text = text.set(text.str.to_lowercase().is_in(GAPS).fill_null(False), None)
        given = text.is_not_null()
        best, bad = text, given
        # Last a decimal comma, as files have it whose columns are separated by semicolons.
        commas = text.filter(text.str.contains(",").fill_null(False))
        if len(commas) and commas.str.contains(r"^[+-]?[1-9]\d{0,2}(,\d{3})+$").all():
            self.fail(
                given & text.str.contains(","),
                "may mean thousands or a fraction; write 1000 or 1.0, without a comma",
            )
        for read in (
            _whole,
            _fraction,
            _moment,
            lambda t: _fraction(t.str.replace(r"^([+-]?\d+),(\d+)$", "${1}.${2}")),
        ):
            found = read(text)
            if int((wrong := given & found.is_null()).sum()) < int(bad.sum()):
                best, bad = found, wrong
            if not bad.any():
                return best
        if bad.sum() == given.sum():
            raise ColumnError(
                f"Column {self.flat.name!r} holds {self.flat.dtype}, expected numbers, and "
                f"{short.repr(text.filter(given)[0])} is none; write plain numbers or leave the column out."
            )
        if best.dtype.is_temporal():
            self.fail(bad, "is not a time like those in other rows; write times as 2020-12-31 10:00")
        self.fail(bad, "is not a number, expected one as in the other rows; correct it or leave it empty")

    def words(self) -> pl.Series:
        """The entries as strings that numpy keeps apart at a bearable price."""
        words = self.flat.cast(pl.String)
        self.note(
            words.str.len_chars().fill_null(0) > LONGEST,
            f"is an id of more than {LONGEST:,} characters; hash the ids first, then use the hashes",
        )
        self.note(
            words.str.contains("\0", literal=True).fill_null(False),
            "contains a NUL character, which ids cannot keep; remove it or hash the ids first",
        )
        self.settle()
        return words.fill_null(MISSING_WORD)

    def int64(self, remedy: str, gaps: Array | bool = False) -> pl.Series:
        cast = self.flat.to_physical().cast(pl.Int64, strict=False)
        self.note(cast.is_null().to_numpy() & ~np.asarray(gaps), f"exceeds int64; {remedy}")
        self.settle()
        return cast


def _whole(text: pl.Series) -> pl.Series:
    return text.cast(pl.Int64, strict=False)


def _fraction(text: pl.Series) -> pl.Series:
    return text.cast(pl.Float64, strict=False)


def _moment(text: pl.Series) -> pl.Series:
    try:
        return text.str.to_datetime(strict=False)
    except pl.exceptions.PolarsError:  # no known way to write a time
        return pl.Series([None], dtype=pl.Datetime).new_from_index(0, len(text))


def prenumbered(cells: Cells, plain: pl.Series, size: int, space: str, zero_ok: bool) -> Array:
    if plain.dtype == pl.String:
        raise ColumnError(
            f"Column {plain.name!r} holds strings, but sizes[{space!r}] says its ids are table rows; "
            "leave it out of sizes to have the ids numbered."
        )
    rows = plain.to_numpy()
    cells.note(rows < 0, f"is negative, expected a row from 0 to {size - 1}; or drop sizes[{space!r}]")
    cells.note(rows >= size, f"is past the table of {size:,} rows; raise sizes[{space!r}] or leave it out")
    if not zero_ok:
        cells.note(
            rows == 0,
            f"is the row that lists in space {space!r} reserve for 'nothing here'; number from 1, or pass "
            f"padding=[{space!r}] if 0 does mean nothing",
        )
    cells.settle()
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


def label_column(cells: Cells, binary: bool, classes: tuple[str, ...] = ()) -> Column:
    name = cells.flat.name
    if cells.fixed or cells.starts is not None:
        raise ColumnError(f"Label {name!r} holds lists, expected one number per sample.")
    column = value_column(cells, whole=False)
    if binary and (bad := (column.values != 0) & (column.values != 1)).any():
        seen = np.unique(column.values)
        above = seen[seen > (seen[0] + seen[-1]) / 2]
        rule = f"{name}>={above[0] if len(above) else seen[-1]:g}"
        cells.fail(
            bad,
            f"is not a binary label (0 or 1); compare it, as in label='{rule}' (--label '{rule}'), or "
            "pass binary_label=False (--set data.binary_label=false) to predict the number itself",
        )
    return replace(column, classes=classes)


def value_column(cells: Cells, whole: bool = True) -> Column:
    """A plain column; ``whole`` keeps integers and times as int64, where float32 would lose digits."""
    flat, name = cells.flat, cells.flat.name
    if cells.starts is not None:
        raise ColumnError(
            f"Column {name!r} holds lists, expected a fixed width; cast it to pl.Array with lists of one length, "
            "or read it as ids."
        )
    cells.note(flat.is_null(), "is missing, expected a number; fill it or drop the row (nulls='drop', --nulls drop)")
    if flat.dtype.is_temporal():
        flat = flat.to_physical()
    if not (flat.dtype.is_numeric() or flat.dtype in (pl.Boolean, pl.Null)):
        raise ColumnError(f"Column {name!r} holds {flat.dtype}, expected numbers; cast it or leave it out.")
    gaps = flat.is_null().to_numpy()
    if whole and flat.dtype.is_integer():
        numbers = cells.int64("rescale the column", gaps).to_numpy()
    else:
        with np.errstate(over="ignore"):
            numbers = flat.cast(pl.Float64).to_numpy().astype(np.float32)
        cells.note(~np.isfinite(numbers) & ~gaps, "is not a finite number of 32 bits; fill, rescale or drop it")
    cells.settle()
    return Column(name, numbers.reshape(-1, cells.width) if cells.fixed else numbers, width=cells.width)
