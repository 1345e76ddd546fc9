"""What is no error in a table, but worth knowing before training: a `DataNotice` each.

Rows that stand twice, a label that is the same everywhere, tables of which most rows can never be trained, and
features so large that gradient steps on them explode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import polars as pl

from fedsub.data.clients import Array, Clients
from fedsub.errors import notice

LOOKED_AT = 5_000_000  # rows of a table that are compared with each other
FAR_LARGER, FEW = 10, 1_000  # a table is far larger than its ids from ten times on, unless it is small
LARGE = 1_000  # the largest size of a feature that usual learning rates bear


def marks(owners: pl.Series, columns: Sequence[pl.Series]) -> Array | None:
    """128 bits for every row, the same for equal rows; None for tables with lists, which are not looked at."""
    if not columns or any(c.dtype.is_nested() for c in columns):
        return None
    table = pl.DataFrame([c.alias(str(i)) for i, c in enumerate([_comparable(c) for c in (owners, *columns)])])
    return np.stack([table.hash_rows(seed).to_numpy() for seed in (1, 2)], axis=1)


def _comparable(column: pl.Series) -> pl.Series:
    """Texts instead of categories, whose numbers depend on what else was read."""
    return column.cast(pl.String) if isinstance(column.dtype, pl.Categorical | pl.Enum) else column


def of_duplicates(marked: Array, name: Callable[[int], tuple[str, int | str]]) -> None:
    """Rows of one client that are equal in all columns that are read; ``name`` says what a row is called."""
    halves = np.sort(marked[:, 0])
    twice = halves[1:][halves[1:] == halves[:-1]]
    if not len(twice):
        return
    some = np.flatnonzero(np.isin(marked[:, 0], twice))
    order = some[np.lexsort((some, marked[some, 1], marked[some, 0]))]
    again = order[1:][(marked[order[1:]] == marked[order[:-1]]).all(axis=1)]
    count = len(again)
    if not count:
        return
    word, where = name(int(again.min()))
    notice(
        f"{count:,} of {len(marked):,} rows {'is' if count == 1 else 'are'} equal to an earlier row of the same client "
        f"in all columns that are read (the first: {word} {where}). Each is trained as a sample; if they were recorded "
        "twice, remove them."
    )


def of_label(name: str, classes: Sequence[str], least: float, most: float, rows: int) -> None:
    """A label that is the same in every row."""
    if rows > 1 and least == most:
        said = repr(classes[int(least)]) if classes else f"{least + 0.0:g}"
        notice(
            f"Label {name!r} is {said} in all {rows:,} rows, so there is nothing to learn from it; check "
            "the column, or the comparison that makes it."
        )


def of_rows(table: str, rows: int, used: int, remedy: str) -> None:
    """A table of which few rows can occur in the data."""
    if rows > FAR_LARGER * max(used, 1) and rows > FEW:
        notice(
            f"{table} has {rows:,} rows, and the data know {used:,} of them; the others are never trained and cost "
            f"memory. {remedy}"
        )


def of_features(clients: Clients, names: Iterable[str]) -> None:
    """Plain columns that a model is about to take as they are."""
    for name in names:
        values = clients.columns[name].values
        largest = _largest(values)
        if largest > LARGE:
            looks = ", as a time has them" if 1e8 < largest < 1e19 and values.dtype.kind == "i" else ""
            notice(
                f"The feature {name!r} has values up to {largest:.3g}{looks}: gradient steps on it will explode. "
                "Rescale it to about −1 to 1 or leave it out of the features; a column that only splits the data "
                "(--time-column, split(column=…)) is none."
            )


def _largest(values: Array) -> float:
    return max(abs(float(values.max())), abs(float(values.min()))) if values.size else 0.0
