"""Some clients of the data as they are, and data in parts: each machine of a cluster has one.

Ids are local to a client, so its samples mean the same wherever they lie: nothing is numbered anew. A part is a saved
directory of its own, whose manifest says of which data it is and which clients it has: those from ``first`` up to,
not with, ``last``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedsub.checks import check_whole
from fedsub.data.clients import Clients, Space
from fedsub.data.renumber import concatenated, reorder
from fedsub.data.store import open_clients, provenance, save_clients
from fedsub.errors import DataError, StoreError

PART = "part"  # what the manifest's ``made`` calls it


@dataclass(frozen=True)
class Held:
    """Clients ``first`` to ``last`` (not with) of some data."""

    first: int
    last: int
    clients: Clients


def some(clients: Clients, numbers: np.ndarray) -> Clients:
    """The given clients, in that order, with their samples and rows; without vocabularies, and no fingerprint."""
    samples = concatenated(clients.offsets[:-1][numbers], clients.sizes[numbers])
    offsets = np.concatenate([[0], np.cumsum(clients.sizes[numbers])])

    def cut(space: Space) -> Space:
        counts = space.counts[numbers]
        rows = space.rows[concatenated(space.row_offsets[numbers], counts)]
        return replace(space, row_offsets=np.concatenate([[0], np.cumsum(counts)]), rows=rows, vocabulary=None)

    columns = {name: reorder(column, samples) for name, column in clients.columns.items()}
    spaces = {name: cut(space) for name, space in clients.spaces.items()}
    return Clients(np.asarray(clients.client_ids[numbers]), offsets, columns, spaces, clients.label)


def save_shards(clients: Clients, folder: str | os.PathLike[str], count: int) -> list[Path]:
    """Write the data in ``count`` parts with about as many samples each: ``folder``/0-of-``count`` and so on."""
    check_whole("count", count, 1, error=DataError)
    if count > len(clients):
        raise DataError(f"{len(clients):,} clients cannot be cut into {count:,} parts; ask for at most one per client.")
    edges = np.searchsorted(clients.offsets, clients.samples * np.arange(count + 1) / count)
    edges = np.maximum(np.minimum(edges, len(clients) - count + np.arange(count + 1)), np.arange(count + 1))
    edges[-1] = len(clients)
    paths = []
    for n, (first, last) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        paths.append(Path(folder) / f"{n}-of-{count}")
        part = some(clients, np.arange(first, last))
        save_clients(part, paths[-1], made={PART: {"of": clients.fingerprint, "first": first, "last": last}})
    return paths


def held(paths: Iterable[str], mark: str) -> Held | None:
    """What the first of some directories that belongs to the data with the fingerprint ``mark`` holds of it."""
    for path in paths:
        part = (provenance(path) or {}).get(PART)
        if part is not None and part["of"] == mark:
            return Held(part["first"], part["last"], open_clients(path, verify=False))
        try:
            whole = open_clients(path, verify=False)
        except StoreError:
            continue
        if whole.fingerprint == mark:
            return Held(0, len(whole), whole)
    return None
