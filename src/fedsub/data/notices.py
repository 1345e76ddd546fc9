"""What is no error in a table, but worth knowing before training: a `DataNotice` each.

Rows that stand twice, a label that is the same everywhere, tables of which most rows can never be trained, and
features so large that gradient steps on them explode.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import polars as pl

from fedsub.data.cells import Places
from fedsub.data.clients import Array, Clients, Column
from fedsub.errors import notice

LOOKED_AT = 5_000_000  # rows of a table that are compared with each other
FAR_LARGER, FEW = 10, 1_000  # a table is far larger than its ids from ten times on, unless it is small
LARGE = 1_000  # the largest size of a feature that usual learning rates bear


def of_duplicates(owners: pl.Series, columns: Sequence[pl.Series], places: Places) -> None:
    """Rows of one client that are equal in all columns that are read; tables with lists are not looked at."""
    if not columns or any(c.dtype.is_nested() for c in columns):
        return
    table = pl.DataFrame([c.head(LOOKED_AT).alias(str(i)) for i, c in enumerate([owners, *columns])])
    again = ~table.select(pl.struct(pl.all()).is_first_distinct()).to_series()
    count = int(again.sum())
    if not count:
        return
    word, (where,) = places.of([int(np.argmax(again.to_numpy()))])
    notice(
        f"{count:,} of {len(table):,} rows {'is' if count == 1 else 'are'} equal to an earlier row of the same client "
        f"in all columns that are read (the first: {word} {where}). Each is trained as a sample; if they were recorded "
        "twice, remove them."
    )


def of_label(column: Column) -> None:
    """A label that is the same in every row."""
    values = column.values
    if len(values) > 1 and (values == values[0]).all():
        said = repr(column.classes[int(values[0])]) if column.classes else f"{float(values[0]):g}"
        notice(
            f"Label {column.name!r} is {said} in all {len(values):,} rows, so there is nothing to learn from it; check "
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
