"""What is wrong with entries of a table, by row and client, so that it can be told of a table read in pieces.

A `Problem` names the column, the row as the user sees it (counted from 0, or in a text file the line, from 1) and its
client. The same problem of two pieces of a table is one (`+`); it is put into words only when it is told, because to
find a line may take a pass over the file.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

SHOWN = 5  # bad rows that a message names

short = reprlib.Repr()  # values in messages
short.maxstring = short.maxother = 80


@dataclass(frozen=True)
class Places:
    """Where the rows of a table, or of a piece of it, stand in what the user gave.

    ``begin`` is the table's row with which the piece begins, ``rows`` are those of the piece that are left (all if
    None), and ``names`` says what rows of the table are called, if not by their number.
    """

    names: Callable[[Sequence[int]], Sequence[int | str]] | None = None
    word: str = "row"
    begin: int = 0
    rows: np.ndarray | None = None

    def of(self, rows: Sequence[int]) -> tuple[int, ...]:
        """The rows of the table that rows of what is left of a piece are."""
        return tuple(self.begin + (row if self.rows is None else int(self.rows[row])) for row in rows)

    def named(self, rows: Sequence[int]) -> list[int | str]:
        """What rows of the table are called."""
        return list(rows if self.names is None else self.names(rows))

    def name(self, row: int) -> tuple[str, int | str]:
        """("line" or "row", which one) of a row of what is left."""
        return self.word, self.named(self.of([row]))[0]

    def only(self, kept: pl.Series) -> Places:
        """With some rows left out of those that are left."""
        rows = np.flatnonzero(kept.to_numpy())
        return replace(self, rows=rows if self.rows is None else self.rows[rows])


ROWS = Places()


def listed(word: str, numbers: Sequence[int | str], count: int | None = None) -> str:
    """ "line 3", "lines 3 and 5" or "lines 3, 5, 8, 9, 12 and 7 more", of ``count`` in all."""
    count = len(numbers) if count is None else count
    shown = [str(n) for n in numbers[:SHOWN]]
    if count == 1:
        return f"{word} {shown[0]}"
    if count > SHOWN:
        return f"{word}s {', '.join(shown)} and {count - SHOWN:,} more"
    return f"{word}s {', '.join(shown[:-1])} and {shown[-1]}"


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with entries of a column; ``value`` and ``owner`` are those of the first."""

    column: str
    owner: str
    value: str
    said: str
    rows: tuple[int, ...]  # of the table, the first SHOWN + 1
    count: int  # rows in all
    places: Places = ROWS

    def __add__(self, later: Problem) -> Problem:
        """With what is wrong alike further down."""
        return replace(self, rows=(self.rows + later.rows)[: SHOWN + 1], count=self.count + later.count)

    def __str__(self) -> str:
        word, names = self.places.word, self.places.named(self.rows)
        more = f" (also {listed(word, names[1:], self.count - 1)})" if self.count > 1 else ""
        return f"{self.column}, {word} {names[0]}{self.owner}: {self.value} {self.said}{more}."
