"""New data with the row numbers of data that a model was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedsub.data.clients import Array, Clients, Column, Space
from fedsub.data.problems import short
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
    made = assemble(
        left.client_ids, left.offsets, columns, spaces, label=left.label, source=left.source, reading=left.reading
    )
    return made, int((~known).sum())


def numbered_by(clients: Clients, vocabulary: Any, *, grow: bool = False) -> Clients:
    """``clients`` with ids numbered as in ``vocabulary``: known ids have the rows they had, new ones follow behind.

    ``vocabulary`` is {space: original id of every row}, as `Space.vocabulary` has them (None where ids were rows
    already), or what has such: other `Clients`, a run that was loaded (`fedsub.load`). Spaces that it does not name
    stay as they are. New ids are appended in sorted order with ``grow``, else refused.
    """
    known = vocabularies(vocabulary)
    places: dict[str, Array] = {}
    spaces: list[Space] = []
    for name, space in clients.spaces.items():
        if name not in known:
            places[name] = np.arange(space.size)
            spaces.append(space)
            continue
        old = known[name]
        place = _places(clients, replace(space, vocabulary=old, size=space.size if old is None else len(old)))
        new = np.flatnonzero(place < 0)
        if len(new):
            assert space.vocabulary is not None
            assert old is not None
            if not grow:
                some = ", ".join(repr(v) for v in space.vocabulary[new][:3].tolist())
                raise DataError(
                    f"{len(new):,} id(s) of {name!r} are not in the vocabulary, such as {some}; give them rows of "
                    "their own with grow=True (--grow), or leave their samples out."
                )
            place[new] = len(old) + np.arange(len(new))
            old = np.concatenate([old, space.vocabulary[new]])
        places[name] = place
        spaces.append(replace(space, vocabulary=old, size=space.size if old is None else max(len(old), 1)))
    columns = [
        c if c.space is None else replace(c, values=places[c.space][_rows(clients, c)])
        for c in clients.columns.values()
    ]
    return assemble(
        clients.client_ids, clients.offsets, columns, spaces, label=clients.label, source=clients.source,
        reading=clients.reading,
    )  # fmt: skip


def vocabularies(given: Any) -> dict[str, Array | None]:
    """{space: the original id of every row} of whatever has vocabularies."""
    if isinstance(given, Clients):
        return {name: space.vocabulary for name, space in given.spaces.items()}
    named = given if isinstance(given, Mapping) else getattr(given, "vocabulary", None)
    if not isinstance(named, Mapping) or not all(isinstance(name, str) for name in named):
        raise DataError(
            f"vocabulary is a {type(given).__name__}, expected {{space: ids}}, Clients, or a run: "
            "fedsub.load('runs/a')."
        )
    out: dict[str, Array | None] = {}
    for name, ids in named.items():
        found = None if ids is None else np.asarray(ids)
        if found is not None and (found.ndim != 1 or found.dtype.kind not in "iuU"):
            raise DataError(
                f"vocabulary[{name!r}] must be a list of ids, whole numbers or text; got {short.repr(ids)}."
            )
        if found is not None and len(np.unique(found)) < len(found):
            raise DataError(f"vocabulary[{name!r}] holds an id twice; every row needs an id of its own.")
        out[name] = found.astype(np.int64) if found is not None and found.dtype.kind in "iu" else found
    return out


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
