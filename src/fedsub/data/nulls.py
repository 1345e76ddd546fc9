"""What becomes of missing entries: ``refuse`` them (the default), ``drop`` their rows, or give ids their ``own`` row.

A missing id that has its own row is trained like any other. A missing label, client or plain value has no value that
would be right, so that ``own`` refuses it as ``refuse`` does.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from fedsub.data.cells import missing
from fedsub.errors import DataError, notice

POLICIES = ("refuse", "drop", "own")


def without_missing(columns: list[pl.Series]) -> tuple[pl.Series, dict[str, int]]:
    """Which rows have everything, and how many lack which column."""
    gaps = [missing(column) for column in columns]
    whole = (
        ~pl.DataFrame([gap.alias(str(i)) for i, gap in enumerate(gaps)]).select(pl.any_horizontal(pl.all())).to_series()
    )
    return whole, {column.name: int(gap.sum()) for column, gap in zip(columns, gaps, strict=True) if gap.any()}


def tell_dropped(left: int, rows: int, counts: Mapping[str, int]) -> None:
    """Tell how many rows were left out, by column; refuse to leave out all."""
    parts = ", ".join(f"{count:,} without {name!r}" for name, count in counts.items())
    if not left:
        raise DataError(f"nulls='drop' leaves no row of {rows:,}: {parts}. Leave that column out, or fill it.")
    if left < rows:
        notice(f"Dropped {rows - left:,} of {rows:,} rows with something missing: {parts}.")


def tell_own(name: str, count: int) -> None:
    """Tell how many missing ids of a column share a row of their own."""
    if count:
        notice(f"{count:,} missing ids of {name!r} share a table row of their own.")
