"""Cutting clients into parts.

A part of the data is a smaller federation: S(i) shrinks to what the part's own samples touch, while
tables keep their size and vocabulary. So a cut looks up global rows, drops samples and numbers again:

    take  ->  global rows of the kept samples  ->  assemble  ->  renumber, space by space
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from fedsub.checks import is_number, is_whole
from fedsub.data.clients import Array, Clients, Column
from fedsub.data.renumber import assemble, concatenated, reorder
from fedsub.errors import ColumnError, DataError, nearest

WAYS = ("random", "time", "last", "ending", "column")


def split(
    clients: Clients,
    train: float = 0.8,
    *,
    by: str = "random",
    column: str | None = None,
    seed: int = 0,
    feature: bool = False,
) -> tuple[Clients, Clients]:
    """(train, test), within every client.

    ``random``  every sample is train with probability ``train``, independently, fixed by ``seed``
    ``time``    one cut for everybody: train is what lies at or before the ``train`` quantile of ``column``
    ``ending``  the last floor((1 - train) n) samples of each client are test, by ``column`` if given, else in
                stored order; ``seed`` plays no role
    ``column``  test is where ``column`` is true (or 1); ``train`` and ``seed`` play no role
    ``last``    the last sample of each client is test, by ``column`` if given, else in stored order;
                ``train`` and ``seed`` play no role

    A client without samples in a part is not in that part; ``client_ids`` tells who is. The ``column`` is no feature of
    built-in models from then on, unless ``feature`` says so.
    """
    if by not in WAYS:
        raise DataError(f"split(by={by!r}) is unknown: {nearest(str(by), WAYS)}")
    if by not in ("last", "column") and not (is_number(train) and 0 < train < 1):
        raise DataError(f"split(train={train!r}) must be a share strictly between 0 and 1, such as 0.8.")
    if by == "random":
        if column is not None:
            raise DataError(f"split(by='random') uses no column, got {column!r}; use by='time' or by='last'.")
        if not is_whole(seed) or seed < 0:
            raise DataError(f"split(seed={seed!r}) must be a whole number, 0 or more.")
        in_train = np.random.default_rng(seed).random(clients.samples) < train
    elif by == "time":
        times = _times(clients, column)
        # The k-th smallest value itself, never an interpolation: exact for int64 timestamps.
        rank = max(int(np.ceil(train * len(times))) - 1, 0)
        in_train = times <= np.partition(times, rank)[rank]
    elif by == "column":
        in_train = ~_marks(clients, column)
    else:
        in_train = np.ones(clients.samples, bool)
        in_train[_last_samples(clients, column, 1 - train if by == "ending" else None)] = False
    for part, mask, share in (("train", in_train, "larger"), ("test", ~in_train, "smaller")):
        if not mask.any():
            raise DataError(
                f"split(by={by!r}) leaves no sample for the {part} part out of {clients.samples:,}; "
                f"use a {share} train share, or by='random'."
            )
    if column is not None:
        used = replace(clients.columns[column], feature=feature)
        clients = replace(clients, columns={**clients.columns, column: used})
    return take(clients, np.flatnonzero(in_train)), take(clients, np.flatnonzero(~in_train))


def pooled(clients: Clients) -> Clients:
    """All samples at one client, which holds the union of all S(i): for centralised baselines."""
    samples = np.arange(clients.samples)
    owners = clients.clients_of(samples)
    columns = [global_rows(clients, c, samples, owners) for c in clients.columns.values()]
    return _reassemble(clients, np.array(["all"]), np.array([0, clients.samples]), columns)


def select(clients: Clients, indices: Iterable[int] | Array) -> Clients:
    """The given clients (positions, not original ids) with all their samples, in the given order."""
    chosen = np.asarray(indices if isinstance(indices, np.ndarray) else list(indices))
    if chosen.ndim != 1 or not len(chosen) or not np.issubdtype(chosen.dtype, np.integer):
        raise DataError("select() needs a non-empty list of client positions, such as [0, 3, 5].")
    if chosen.min() < 0 or chosen.max() >= len(clients):
        bad = chosen[(chosen < 0) | (chosen >= len(clients))][0]
        raise DataError(f"select() got client position {bad}; the data has positions 0 to {len(clients) - 1}.")
    if len(np.unique(chosen)) < len(chosen):
        raise DataError("select() got the same client twice; give every position once.")
    sizes = clients.sizes[chosen]
    return _take(clients, concatenated(clients.offsets[:-1][chosen], sizes), np.repeat(chosen, sizes))


def take(clients: Clients, samples: Array) -> Clients:
    """The given samples (strictly increasing positions); clients left without any are dropped."""
    samples = np.asarray(samples)
    if samples.ndim != 1 or not len(samples) or not np.issubdtype(samples.dtype, np.integer):
        raise DataError("take() needs a non-empty 1-D array of sample positions.")
    if (np.diff(samples) <= 0).any() or samples[0] < 0 or samples[-1] >= clients.samples:
        raise DataError(
            f"take() needs strictly increasing positions within 0 to {clients.samples - 1}; sort them first."
        )
    return _take(clients, samples, clients.clients_of(samples))


def _take(clients: Clients, samples: Array, owners: Array) -> Clients:
    """``samples`` grouped by owner; the groups become the new clients, in that order."""
    begins = np.flatnonzero(np.diff(owners, prepend=-1))
    offsets = np.append(begins, len(samples)).astype(np.int64)
    columns = [global_rows(clients, c, samples, owners) for c in clients.columns.values()]
    return _reassemble(clients, np.asarray(clients.client_ids[owners[begins]]), offsets, columns)


def _reassemble(clients: Clients, client_ids: Array, offsets: Array, columns: list[Column]) -> Clients:
    spaces = list(clients.spaces.values())
    return assemble(
        client_ids, offsets, columns, spaces, label=clients.label, source=clients.source, reading=clients.reading
    )


def global_rows(clients: Clients, column: Column, samples: Array, owners: Array) -> Column:
    """The column at ``samples`` with local ids turned back into rows of the full table."""
    part = reorder(column, samples)
    if part.space is None:
        return part
    space = clients.spaces[part.space]
    base = space.row_offsets[owners]
    if part.starts is not None:
        base = np.repeat(base, np.diff(part.starts))
    elif part.values.ndim > 1:
        base = base[:, None]
    return replace(part, values=np.asarray(space.rows[base + part.values]))


def _times(clients: Clients, column: str | None, by: str = "time") -> Array:
    if column is None:
        plain = [c.name for c in clients.columns.values() if c.space is None and c.name != clients.label] or ["none"]
        raise DataError(f"split(by={by!r}) needs column=...; plain columns are: {', '.join(plain)}.")
    if isinstance(column, str) and column not in clients.columns:
        raise ColumnError(
            f"There is no column {column!r} in the data to split by; {nearest(column, clients.columns)} If the table "
            f"has it, read it too: values=[{column!r}]."
        )
    found = clients.column(column)
    if found.space is not None or found.values.ndim != 1:
        raise ColumnError(
            f"Column {column!r} cannot order samples: expected one plain number per sample; "
            "read the time as values=[...] when the data is built."
        )
    return np.asarray(found.values)


def _marks(clients: Clients, column: str | None) -> Array:
    marks = _times(clients, column, "column")
    if not np.isin(marks, (0, 1)).all():
        strange = marks[~np.isin(marks, (0, 1))][0]
        raise ColumnError(f"Column {column!r} marks the test samples, so it holds 0 and 1 only, but has {strange!r}.")
    return marks.astype(bool)


def _last_samples(clients: Clients, column: str | None, share: float | None) -> Array:
    """The last sample of every client, or with a share its last floor(share n)."""
    # The smallest addend that keeps 0.2 * 5 at one sample though 1 - 0.8 falls short of 0.2.
    counts = np.ones_like(clients.sizes) if share is None else np.floor(share * clients.sizes + 1e-9).astype(np.int64)
    places = concatenated(clients.offsets[1:] - counts, counts)
    if column is None:
        return places
    owners = np.repeat(np.arange(len(clients)), clients.sizes)
    # lexsort is stable, so among equal times the last in stored order comes last.
    return np.lexsort((_times(clients, column), owners))[places]
