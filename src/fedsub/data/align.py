"""New data with the row numbers of data that a model was trained on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedsub.data.clients import Array, Clients, Column, Space
from fedsub.data.renumber import assemble
from fedsub.data.split import global_rows, take
from fedsub.errors import DataError, nearest


def align(clients: Clients, like: Clients) -> tuple[Clients, int]:
    """``clients`` with ids numbered as in ``like``, and how many samples were left out for ids that it does not know.

    A trained table has no row for an id that training never saw.
    """
    places = {name: _places(clients, space) for name, space in like.spaces.items()}
    known = np.ones(clients.samples, bool)
    for name, place in places.items():
        for column in like.spaces[name].columns:
            owners = _sample_of_each(clients.column(column))
            lost = place[_rows(clients, clients.column(column)).reshape(-1)] < 0
            known[owners[lost]] = False
    if not known.any():
        raise DataError("No sample has only ids that the trained tables know; is it data of the same kind?")
    left = take(clients, np.flatnonzero(known)) if not known.all() else clients
    columns = [
        c if c.space is None else replace(c, values=places[c.space][_rows(left, c)])
        for c in left.columns.values()
        if c.space is None or c.space in places
    ]
    spaces = list(like.spaces.values())
    made = assemble(left.client_ids, left.offsets, columns, spaces, label=left.label, source=left.source)
    return made, int((~known).sum())


def _places(clients: Clients, space: Space) -> Array:
    """For every row of the new numbering the trained one, −1 if there is none."""
    if space.name not in clients.spaces:
        raise DataError(f"The data has no ids {space.name!r}; {nearest(space.name, clients.spaces)}")
    new = clients.spaces[space.name]
    if new.columns != space.columns or new.padding != space.padding:
        raise DataError(
            f"The ids {space.name!r} are of the columns {', '.join(new.columns)} here and of "
            f"{', '.join(space.columns)} in training; read both in the same way."
        )
    if new.vocabulary is None or space.vocabulary is None:
        if new.vocabulary is not space.vocabulary:
            raise DataError(f"The ids {space.name!r} are row numbers in one of the data and names in the other.")
        rows = np.arange(new.size)
        return np.where(rows < space.size, rows, -1)
    known, wanted = space.vocabulary, new.vocabulary
    if known.dtype.kind != wanted.dtype.kind:
        raise DataError(f"The ids {space.name!r} are {wanted.dtype} here and {known.dtype} in training; convert them.")
    first = 1 if space.padding else 0  # row 0 means nothing in both
    out = np.full(new.size, -1)
    out[:first] = 0
    order = np.argsort(known[first:], kind="stable") + first
    if len(order):
        at = order[np.minimum(np.searchsorted(known[order], wanted[first:]), len(order) - 1)]
        out[first : len(wanted)] = np.where(known[at] == wanted[first:], at, -1)
    return out


def _rows(clients: Clients, column: Column) -> Array:
    samples = np.arange(clients.samples)
    return global_rows(clients, column, samples, clients.clients_of(samples)).values


def _sample_of_each(column: Column) -> Array:
    """The sample of each value of a column, in their order."""
    if column.starts is not None:
        return np.repeat(np.arange(len(column.starts) - 1), np.diff(column.starts))
    return np.repeat(np.arange(len(column.values)), column.values[:1].size)
