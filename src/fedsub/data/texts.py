"""Texts that mean numbers, or points in time: how a whole column writes them.

That is for all its rows to say: a column is read in the way that fails for the fewest of them, and they are whole
numbers, fractions, times and decimal commas, tried in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import polars as pl

from fedsub.data.cells import Cells
from fedsub.data.problems import Problem, short
from fedsub.errors import ColumnError

GAPS = ("", "na", "n/a", "nan", "null", "none")  # texts that mean a missing number; an id "NA" may be Namibia
Pieces = Callable[[], Iterable[Cells]]  # one column, piece by piece; every call begins anew


@dataclass(frozen=True)
class Written:
    """How a column writes numbers: one of `WAYS`, None for a column that holds no texts (or only missing ones)."""

    way: int | None = None
    first: str | None = None  # the first text: by it polars sees how times are written

    def read(self, flat: pl.Series) -> pl.Series:
        """The entries as numbers or times, null where they say "missing"."""
        if not is_text(flat.dtype):
            return flat
        text = _bare(flat)
        return text if self.way is None else WAYS[self.way](text, self.first)


def is_text(dtype: pl.DataType) -> bool:
    return isinstance(dtype, pl.String | pl.Categorical | pl.Enum)


def numbers(cells: Cells) -> pl.Series:
    """Texts that mean numbers, or points in time, as such, null where they say "missing". Others as they are."""
    return how_written(lambda: [cells]).read(cells.flat)


def how_written(pieces: Pieces) -> Written:
    """How the column writes numbers; refused if no way fits all of its entries."""
    given, name, dtype, first = 0, "", None, None
    commas, thousands, ambiguous = False, True, None
    for cells in pieces():
        if not is_text(cells.flat.dtype):
            return Written()
        name, dtype, text = cells.flat.name, cells.flat.dtype, _bare(cells.flat)
        there = text.drop_nulls()
        given += len(there)
        first = there[0] if first is None and len(there) else first
        having = text.str.contains(",", literal=True).fill_null(False)
        if having.any():
            commas = True
            thousands &= bool(text.filter(having).str.contains(r"^[+-]?[1-9]\d{0,2}(,\d{3})+$").all())
            ambiguous = _sum(
                ambiguous,
                cells.problem(having, "may mean thousands or a fraction; write 1000 or 1.0, without a comma"),
            )
    if commas and thousands:
        raise ColumnError(ambiguous)
    best, fewest, wrong = None, given, None
    for way in range(len(WAYS)):
        if not fewest:
            break
        failures, count = None, 0
        for cells in pieces():
            text = _bare(cells.flat)
            bad = text.is_not_null() & WAYS[way](text, first).is_null()
            count += int(bad.sum())
            failures = _sum(failures, cells.problem(bad, SAID[way == MOMENT]))
        if count < fewest:
            best, fewest, wrong = way, count, failures
    if given and best is None:
        raise ColumnError(
            f"Column {name!r} holds {dtype}, expected numbers, and {short.repr(first)} is none; write plain numbers or "
            "leave the column out."
        )
    if fewest:
        raise ColumnError(wrong)
    return Written(best, first)


def _sum(before: Problem | None, found: Problem | None) -> Problem | None:
    return found if before is None else before if found is None else before + found


def _bare(flat: pl.Series) -> pl.Series:
    text = flat.cast(pl.String).str.strip_chars()
    return text.set(text.str.to_lowercase().is_in(GAPS).fill_null(False), None)


def _whole(text: pl.Series, first: str | None) -> pl.Series:
    return text.cast(pl.Int64, strict=False)


def _fraction(text: pl.Series, first: str | None = None) -> pl.Series:
    return text.cast(pl.Float64, strict=False)


def _moment(text: pl.Series, first: str | None) -> pl.Series:
    try:
        # Polars reads all times as the first is written, so that every piece begins with the column's first.
        return pl.concat([pl.Series(text.name, [first], pl.String), text]).str.to_datetime(strict=False)[1:]
    except pl.exceptions.PolarsError:  # no known way to write a time
        return pl.Series(text.name, [None], dtype=pl.Datetime).new_from_index(0, len(text))


def _comma(text: pl.Series, first: str | None) -> pl.Series:
    """A decimal comma, as files have it whose columns are separated by semicolons."""
    return _fraction(text.str.replace(r"^([+-]?\d+),(\d+)$", "${1}.${2}"))


WAYS = (_whole, _fraction, _moment, _comma)
MOMENT = 2
SAID = (
    "is not a number, expected one as in the other rows; correct it or leave it empty",
    "is not a time like those in other rows; write times as 2020-12-31 10:00",
)
