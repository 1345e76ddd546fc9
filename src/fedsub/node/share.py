"""One client's data by itself: what it holds of every space, under the numbering that all share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedsub.data.clients import Clients, Column
from fedsub.data.store import fingerprint
from fedsub.errors import DataError
from fedsub.secure.identities import REGISTRY, register

OUTLINE = "outline"


def only(clients: Clients, number: int) -> Clients:
    """The data of one client, with the whole vocabulary: S(i) keeps its global rows."""
    if not 0 <= number < len(clients):
        raise DataError(f"There is no client {number}; the data has {len(clients)}, from 0.")
    begin, end = int(clients.offsets[number]), int(clients.offsets[number + 1])
    columns = {}
    for name, column in clients.columns.items():
        values, starts = column.values[begin:end], None
        if column.starts is not None:
            first = int(column.starts[begin])
            starts = np.asarray(column.starts[begin : end + 1]) - first
            values = column.values[first : int(column.starts[end])]
        columns[name] = Column(name, np.ascontiguousarray(values), column.space, starts, column.width)
    spaces = {
        name: replace(space, row_offsets=np.array([0, space.counts[number]]), rows=np.array(space.rows_of(number)))
        for name, space in clients.spaces.items()
    }
    own = Clients(
        clients.client_ids[number : number + 1], np.array([0, end - begin]), columns, spaces, clients.label
    )  # fmt: skip
    return replace(own, fingerprint=fingerprint(own), source=clients.source)


def outline(clients: Clients) -> Clients:
    """The same clients and the same vocabulary without any sample: what a server without data knows of them."""
    columns = {}
    for name, column in clients.columns.items():
        starts = None if column.starts is None else np.zeros(1, np.int64)
        columns[name] = replace(column, values=column.values[:0], starts=starts)
    nobody, padded = np.zeros(len(clients) + 1, np.int64), np.arange(len(clients) + 1)
    spaces = {}
    for name, space in clients.spaces.items():  # the padding row is everybody's, and says nothing
        rows = np.zeros(len(clients) * space.padding, space.rows.dtype)
        spaces[name] = replace(space, row_offsets=padded if space.padding else nobody, rows=rows)
    bare = Clients(np.array(clients.client_ids), nobody, columns, spaces, clients.label, reading=clients.reading)
    return replace(bare, fingerprint=fingerprint(bare), source=clients.source)


def hand_out(
    clients: Clients, folder: str | os.PathLike[str], numbers: Sequence[int] | None = None, *, identities: bool = False
) -> dict[int, Path]:
    """Write clients to a directory each (`Clients.save`), and their `outline`; returns where each is, by number.

    ``identities``: register new signing keys for them. Each directory gets the client's own secret key and the public
    ones of all (`fedsub.secure.Identity`), the folder the public ones for the server.
    """
    numbers = range(len(clients)) if numbers is None else numbers
    registered = register(numbers) if identities else {}
    outline(clients).save(Path(folder) / OUTLINE)
    out = {}
    for number in numbers:
        out[number] = Path(folder) / f"client-{number:06d}"
        only(clients, number).save(out[number])
        if identities:
            registered[number].save(out[number])
    if registered:
        next(iter(registered.values())).known.save(Path(folder) / REGISTRY)
    return out


def alone(own: Clients) -> Clients:
    """The same client as if its rows were all there are: its submodel is its whole model."""
    if len(own) != 1:
        raise DataError(f"A node holds the data of one client, and this directory has {len(own)}; see hand_out.")
    spaces = {
        name: replace(
            space, size=int(space.counts[0]), rows=np.arange(space.counts[0], dtype=space.rows.dtype), vocabulary=None
        )
        for name, space in own.spaces.items()
    }
    return replace(own, spaces=spaces)
