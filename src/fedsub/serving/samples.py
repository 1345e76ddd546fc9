"""A table of samples as a trained model reads it: ids become rows as they were in training; labels are not needed.

Every row of the table keeps its place. What becomes of it where training had nothing like it:

    an id that training never saw        counted; ``unknown`` says what for: "zero", "empty" or "refuse"
    an entry that is missing, no number  the row has no score; counted
    a list                               ids that training never saw are left out of it; its last ids count, as many
                                         as the longest list in training had
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl

from fedsub.data.cells import EXACT, MISSING_ID, MISSING_WORD, Cells, missing
from fedsub.data.clients import Array, Clients, Column, Space
from fedsub.data.ingest import as_table
from fedsub.data.problems import short
from fedsub.data.reading import TEXT, TableFile
from fedsub.data.renumber import assemble, reorder
from fedsub.data.texts import numbers
from fedsub.errors import ColumnError, ConfigError, DataError, nearest
from fedsub.serving.asked import Asked, width_of

UNKNOWN = ("zero", "empty", "refuse")


@dataclass(frozen=True)
class Samples:
    """``clients`` are the rows that have a score, grouped by client; ``rows`` says where in the table each stands."""

    frame: pl.DataFrame = field(repr=False)
    clients: Clients | None
    rows: Array = field(repr=False)
    unknown: Mapping[str, int]  # ids that training never saw, by column
    incomplete: Mapping[str, int]  # rows with something missing, by column
    spare: set[str]  # spaces in which the row behind all others is asked for


def read(
    found: Asked, data: Any, *, client: str | None, unknown: str = "zero", separator: str | None = None,
    encoding: str | None = None, more: tuple[str, ...] = (),
) -> Samples:  # fmt: skip
    """``client`` is the column of the clients, if they matter; ``more`` are columns beside what the model reads."""
    if unknown not in UNKNOWN:
        raise ConfigError(f"unknown is {short.repr(unknown)}; {nearest(str(unknown), UNKNOWN)}")
    columns = tuple(dict.fromkeys((*found.columns, *more)))
    frame = table(found, data, columns, client, separator, encoding)
    wanted = [*columns, *([client] if client is not None else [])]
    if lacking := [n for n in wanted if n not in frame.columns]:
        raise ColumnError(
            *(f"There is no column {n!r} in the data, which the model reads; {nearest(n, frame.columns)}"
              for n in lacking)
        )  # fmt: skip
    if not len(frame):
        raise DataError("The data has no rows; expected one row per sample.")
    lost, strange, spare = {}, {}, set[str]()
    whole = np.ones(len(frame), bool)
    made: dict[str, Column] = {}
    for name in columns:
        column = found.like.columns[name]
        if column.space is None:
            made[name], gaps = _values(frame[name], column)
        else:
            space = found.like.spaces[column.space]
            made[name], gaps, new = _ids(frame[name], column, found, space)
            if new.sum():
                strange[name] = int(new.sum())
                if unknown == "refuse":
                    at = int(np.flatnonzero(new)[0])
                    raise DataError(
                        f"{strange[name]:,} ids of {name!r} were not in training, such as "
                        f"{short.repr(frame[name][at])} in row {at}; let them count as zero (unknown='zero', "
                        "--unknown zero) or leave their rows without a score ('empty')."
                    )
                if not column.ragged and unknown == "empty":
                    whole &= ~_any(new, len(frame))
                elif not column.ragged and not space.padding:
                    _check_spare(found, space)
                    spare.add(space.name)
        if gaps.any():
            lost[name] = int(gaps.sum())
        whole &= ~gaps
    owners, ids = _owners(frame, client, found)
    if client is not None and (gaps := missing(frame[client]).to_numpy()).any():
        lost[client] = int(gaps.sum())
        whole &= ~gaps
    rows = np.flatnonzero(whole)
    rows = rows[np.argsort(owners[rows], kind="stable")]
    built = _clients(found, made, owners[rows], ids, rows, spare) if len(rows) else None
    return Samples(frame, built, rows, strange, lost, spare)


def table(
    found: Asked, data: Any, columns: tuple[str, ...], client: str | None, separator: str | None, encoding: str | None
) -> pl.DataFrame:
    """The whole table, as it came; ids that were text are text."""
    if not isinstance(data, str | os.PathLike):
        return as_table(data)
    reading = found.like.reading
    file = TableFile.of(data, separator or _text(data, reading, "separator"), encoding or reading.get("encoding"))
    words = [n for n in columns if _vocabulary_kind(found.like, n) == "U"]
    if client is not None and found.personal is not None and found.like.client_ids.dtype.kind == "U":
        words.append(client)
    try:
        return file.scan(words=[w for w in words if w in file.names]).collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(file.unreadable(error)) from error


def _text(data: Any, reading: Mapping[str, Any], name: str) -> Any:
    return reading.get(name) if str(data).lower().endswith(TEXT) else None


def _vocabulary_kind(like: Clients, name: str) -> str:
    space = like.columns[name].space
    known = like.spaces[space].vocabulary if space is not None else None
    return "" if known is None else known.dtype.kind


def _check_spare(found: Asked, space: Space) -> None:
    """A table that the module uses whole must not grow by a row."""
    used = [name for name in found.tables_of(space.name) if name in found.problem.objective.whole]
    if used:
        raise DataError(
            f"The module uses the table {used[0]!r} whole, so ids that training never saw cannot count as zero; leave "
            "their rows without a score (unknown='empty', --unknown empty)."
        )


def _values(series: pl.Series, like: Column) -> tuple[Column, Array]:
    """(plain numbers of the type they had, rows in which one is missing)."""
    cells = Cells.of(series, series)
    if cells.starts is not None or cells.width != max(1, int(np.prod(like.values.shape[1:]))):
        raise ColumnError(
            f"Column {series.name!r} holds {series.dtype}, expected {like.width} number(s) a row, as in training."
        )
    flat = numbers(cells)
    flat = flat.to_physical() if flat.dtype.is_temporal() else flat
    gaps = missing(flat).to_numpy()
    entries = flat.cast(pl.Float64, strict=False).fill_null(0).to_numpy()
    gaps = gaps | ~np.isfinite(entries)
    if like.values.dtype.kind in "iu":
        if (bad := ~gaps & (entries != np.floor(entries))).any():
            at = int(np.flatnonzero(bad)[0])
            raise ColumnError(
                f"Column {series.name!r}, row {at // cells.width}: {short.repr(flat[at])} is a fraction, and training "
                "had whole numbers."
            )
        values = flat.cast(pl.Int64, strict=False).fill_null(0).to_numpy()
    else:
        values = np.where(gaps, 0, entries).astype(like.values.dtype)
    shape = (-1, cells.width) if cells.fixed else (-1,)
    found = Column(series.name, values.reshape(shape), width=cells.width)
    return found, _any(gaps, len(series))


def _ids(series: pl.Series, like: Column, found: Asked, space: Space) -> tuple[Column, Array, Array]:
    """(rows of the tables, rows of the data without an id, ids that have no row)."""
    width = width_of(found.like, series.name)
    absent = series.is_null().to_numpy()
    if isinstance(series.dtype, pl.List) and absent.any():
        series = pl.select(pl.when(series.is_not_null()).then(series).otherwise(pl.lit([], series.dtype))).to_series()
    cells = Cells.of(series, series, width if like.ragged else None)
    if (cells.starts is not None) != like.ragged or (not like.ragged and cells.width != like.width):
        raise ColumnError(f"Column {series.name!r} holds {series.dtype}; read it as it was in training.")
    places, gaps = _places(cells.flat, space)
    new = (places < 0) & ~gaps
    if like.ragged:
        assert cells.starts is not None
        keep = places >= 0
        sample = np.repeat(np.arange(len(series)), np.diff(cells.starts))
        counts = np.bincount(sample[keep], minlength=len(series))
        return Column(series.name, places[keep], space.name, np.r_[0, np.cumsum(counts)], width), absent, new
    places = np.where(places < 0, 0 if space.padding else found.spare_row(space), places)
    rows = _any(gaps, len(series))
    shape = (-1, cells.width) if cells.fixed else (-1,)
    return Column(series.name, places.reshape(shape), space.name, None, cells.width), rows, new


def _any(entries: Array, rows: int) -> Array:
    """Which rows have such an entry."""
    return np.logical_or.reduce(entries.reshape(rows, -1), axis=1)


def _places(flat: pl.Series, space: Space) -> tuple[Array, Array]:
    """(the row of every id, −1 if it has none; which are missing and have no row of their own)."""
    gaps = missing(flat).to_numpy()
    known = space.vocabulary
    if known is None:
        rows = _whole(flat)
        return np.where((rows >= 0) & (rows < space.size) & ~gaps, rows, -1), gaps
    if known.dtype.kind == "U":
        ids = np.array(flat.cast(pl.String).fill_null(MISSING_WORD).to_list(), np.str_)
    else:
        ids = np.where(gaps, MISSING_ID, _whole(flat))
    first = 1 if space.padding else 0
    order = np.argsort(known[first:], kind="stable") + first
    if not len(order) or not len(ids):
        return np.full(len(ids), -1), gaps
    at = order[np.minimum(np.searchsorted(known[order], ids), len(order) - 1)]
    places = np.where(known[at] == ids, at, -1)
    return places, gaps & (places < 0)


def _whole(flat: pl.Series) -> Array:
    """Ids as whole numbers; what is none becomes a number that no id has."""
    if flat.dtype in (pl.String, pl.Categorical, pl.Enum):
        text = flat.cast(pl.String).str.strip_chars()
        flat = text.cast(pl.Int64, strict=False).fill_null(_integral(text.cast(pl.Float64, strict=False)))
    elif flat.dtype.is_float():
        flat = _integral(flat)
    return flat.cast(pl.Int64, strict=False).fill_null(MISSING_ID + 1).to_numpy()


def _integral(flat: pl.Series) -> pl.Series:
    numbers = flat.cast(pl.Float64).fill_null(np.nan).to_numpy()
    fine = np.isfinite(numbers) & (np.abs(numbers) <= EXACT) & (numbers == np.floor(numbers))
    whole = pl.Series(np.where(fine, numbers, 0).astype(np.int64))
    return whole.set(pl.Series(~fine), None)


def _owners(frame: pl.DataFrame, client: str | None, found: Asked) -> tuple[Array, Array]:
    """(the client of every row as a position, the ids of the clients)."""
    if client is None:
        return np.zeros(len(frame), np.int64), np.zeros(1, np.int64)
    column = frame[client]
    words = column.dtype in (pl.String, pl.Categorical, pl.Enum)
    if found.like.client_ids.dtype.kind == "U" if found.personal is not None else words:
        ids = np.array(column.cast(pl.String).fill_null("").to_list(), np.str_)
    else:
        ids = _whole(column)
    known, owners = np.unique(ids, return_inverse=True)
    return owners, known


def _clients(found: Asked, made: dict[str, Column], owners: Array, ids: Array, rows: Array, spare: set[str]) -> Clients:
    who, first = np.unique(owners, return_index=True)
    spaces = []
    for space in found.like.spaces.values():
        columns = tuple(c for c in space.columns if c in made)
        if columns:
            size = found.spare_row(space) + 1 if space.name in spare else space.size
            spaces.append(replace(space, columns=columns, size=size))
    offsets = np.r_[first, len(rows)].astype(np.int64)
    return assemble(ids[who], offsets, [reorder(c, rows) for c in made.values()], spaces, label=None)
