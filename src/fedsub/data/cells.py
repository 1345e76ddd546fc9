"""One column of a table with one row per sample: its entries, checked, as ids or as numbers.

A message names the column, the row as the user sees it (counted from 0, or in a text file the line, from 1) and its
client. All problems of a column are collected before it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import NoReturn

import numpy as np
import polars as pl

from fedsub.data.clients import Array, Column
from fedsub.data.problems import ROWS, SHOWN, Places, Problem, short
from fedsub.data.renumber import distinct
from fedsub.errors import ColumnError

LONGEST = 1000  # characters of an id: numpy gives every string of an array the room of the longest
EXACT = 2**53  # integers that a float64 holds exactly
MISSING_ID, MISSING_WORD = -(2**63), "(missing)"  # in a vocabulary, the ids of those that have none (nulls="own")


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
    problems: list[Problem] = field(default_factory=list)
    stage: list[int] = field(default_factory=lambda: [0])  # how many checks were passed

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
            flat, width = series.reshape((-1,)), series.dtype.shape[0]
            return cls(flat, owners, places=places, width=width, fixed=True, stage=[1])
        if not isinstance(series.dtype, pl.List) or series.dtype.inner.is_nested():
            raise ColumnError(f"Column {series.name!r} holds {series.dtype}, expected plain lists.")
        series = series.list.tail(max_len) if max_len is not None else series
        lengths = series.list.len().cast(pl.Int64).to_numpy()
        starts = np.concatenate([[0], np.cumsum(lengths)])
        # Exploding an empty list would give one null, so empty lists step aside.
        flat = series.filter(pl.Series(lengths > 0)).explode()
        width = max(int(lengths.max()), 1) if len(lengths) else 1
        return cls(flat, owners, places=places, width=width, starts=starts, stage=[1])

    def fail(self, bad: pl.Series | Array, said: str) -> NoReturn:
        """Raise for bad entries, naming column, rows and client, with what was noted before."""
        self.note(bad, said)
        raise ColumnError(*self.problems, stage=self.stage[0])

    def problem(self, bad: pl.Series | Array, said: str) -> Problem | None:
        """What is wrong with bad entries, or None if there are none."""
        at = np.flatnonzero(np.asarray(bad))
        if not len(at):
            return None
        rows = at // self.width if self.starts is None else np.searchsorted(self.starts, at, "right") - 1
        count = 1 + int(np.count_nonzero(rows[1:] != rows[:-1]))
        first = list(dict.fromkeys(rows[: (SHOWN + 1) * self.width].tolist()))[: SHOWN + 1]
        name, value = self.flat.name, short.repr(self.flat[int(at[0])])
        owner = "" if self.role == "client" else f", client {short.repr(self.owners[first[0]])}"
        kind = "Client column" if self.role == "client" else "Column"
        return Problem(f"{kind} {name!r}", owner, value, said, self.places.of(first), count, self.places)

    def note(self, bad: pl.Series | Array, said: str) -> None:
        """Keep a problem, if there is one, until `settle`."""
        if found := self.problem(bad, said):
            self.problems.append(found)

    def settle(self) -> None:
        """Raise for all that was noted."""
        if self.problems:
            raise ColumnError(*self.problems, stage=self.stage[0])
        self.stage[0] += 1

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


def ranked(columns: list[pl.Series]) -> tuple[pl.Series, list[Array]]:
    """Sorted distinct values of all columns (integers, or strings), and each column as positions in them."""
    if any(c.dtype == pl.String for c in columns):
        texts = pl.concat([c.unique().alias("") for c in columns]).unique().sort()
        words = pl.Enum(texts)
        return texts, [c.cast(words).to_physical().cast(pl.Int64).to_numpy() for c in columns]
    cells = [c.to_numpy() for c in columns]
    some = [c for c in cells if len(c)]
    least = min((int(c.min()) for c in some), default=0)
    span = max((int(c.max()) for c in some), default=-1) - least + 1
    if span <= 4 * sum(map(len, cells)) + 1024:  # ids without wide gaps: a table is much faster than to sort
        seen = np.zeros(span, np.bool_)
        for c in some:
            seen[c - least] = True
        values = np.flatnonzero(seen)
        place = np.zeros(span, np.int32 if span < 2**31 else np.int64)
        place[values] = np.arange(len(values))
        return pl.Series("", values + least), [place[c - least] for c in cells]
    values = distinct(np.concatenate(cells))
    return pl.Series("", values), [np.searchsorted(values, c) for c in cells]


def encode(columns: list[pl.Series]) -> tuple[Array, list[Array]]:
    """`ranked`, with the distinct values as they are kept: int64, or strings of numpy."""
    distinct, places = ranked(columns)
    return vocabulary_of(distinct), places


def vocabulary_of(distinct: pl.Series, longest: int = 0) -> Array:
    """Ids as numpy keeps them; strings with room for ``longest`` characters, if not for their own longest."""
    if distinct.dtype != pl.String:
        return distinct.to_numpy()
    return np.array(distinct.to_list(), dtype=f"<U{longest}" if longest else np.str_)


def label_column(cells: Cells, binary: bool, classes: tuple[str, ...] = ()) -> Column:
    name = cells.flat.name
    if cells.fixed or cells.starts is not None:
        raise ColumnError(f"Label {name!r} holds lists, expected one number per sample.")
    column = value_column(cells, whole=False)
    if binary and (bad := (column.values != 0) & (column.values != 1)).any():
        cells.fail(bad, NOT_BINARY)
    return replace(column, classes=classes)


NOT_BINARY = "is not a binary label (0 or 1)"


def binary_remedy(name: str, pieces: Callable[[], Iterable[Array]]) -> str:
    """What can be done about a label that is not binary; ``pieces`` are its values."""
    ends = [(float(values.min()), float(values.max())) for values in pieces() if len(values)]
    least, most = np.float32(min(low for low, _ in ends)), np.float32(max(high for _, high in ends))
    middle = (least + most) / np.float32(2)
    above = [float(upper.min()) for values in pieces() if len(upper := values[values > middle])]
    rule = f"{name}>={min(above, default=float(most)) + 0.0:g}"  # not -0
    return (
        f"{NOT_BINARY}; compare it, as in label='{rule}' (--label '{rule}'), or "
        "pass binary_label=False (--set data.binary_label=false) to predict the number itself"
    )


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
