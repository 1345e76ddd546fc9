"""The data of some clients in a round in which only some of their rows came: samples that need the others are left out.

A sample is trained on if all that it names by itself came: its item, its user. What it names in a *list* is taken out
of the list, and the sample is left out only if nothing remains of a list that held something (Niu et al.,
"Billion-Scale Federated Learning on Mobile Clients", MobiCom 2020: a history without the items that did not come).
Which is which follows from the columns:

    one id a sample, or several at places that mean something    every one of them must have come
    a list of any length                                         what did not come is taken out, in order
    several ids in a space with padding                          what did not come becomes padding where it stood
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedsub.data.clients import Array, Clients, Column, Space
from fedsub.data.renumber import concatenated, reorder


@dataclass(frozen=True)
class Came:
    """Rows of one space that came to some clients, one client's behind the other's, each ascending."""

    rows: Array  # int [Σ]
    counts: Array  # int64 [clients]


@dataclass(frozen=True)
class Narrowed:
    """``clients``: those that were asked about, in that order, also those of whose samples none are left. In the spaces
    that were asked about, local ids are places among what came, and ``held`` says which of it each holds."""

    clients: Clients
    held: dict[str, Array]  # by space: bool, like `Came.rows`

    def held_by(self, where: slice) -> dict[str, Array]:
        """Which of the rows that came to the clients ``where`` they hold, by space."""
        edges = {name: self.clients.spaces[name].row_offsets for name in self.held}
        return {n: mask[int(edges[n][where.start]) : int(edges[n][where.stop])] for n, mask in self.held.items()}

    def take(self, which: Array) -> Narrowed:
        """Some of the clients; those left out must have no samples."""
        spaces, held, c = {}, {}, self.clients
        for name, space in c.spaces.items():
            counts = space.counts[which]
            places = concatenated(space.row_offsets[:-1][which], counts)
            spaces[name] = replace(space, row_offsets=_offsets(counts), rows=np.asarray(space.rows[places]))
            if name in self.held:
                held[name] = self.held[name][places]
        offsets = _offsets(c.sizes[which])
        return Narrowed(replace(c, client_ids=c.client_ids[which], offsets=offsets, spaces=spaces), held)


def narrowed(clients: Clients, at: Array, came: Mapping[str, Came], columns: Collection[str]) -> Narrowed:
    """The samples of the clients at these places, as far as they can be trained on; ``columns`` are those read."""
    sizes = clients.sizes[at]
    samples, owners = concatenated(clients.offsets[:-1][at], sizes), np.repeat(np.arange(len(at)), sizes)
    keep = np.ones(len(samples), bool)
    held: dict[str, Array] = {}
    spaces: dict[str, Space] = {}
    made: dict[str, Column] = {}
    for name, space in clients.spaces.items():
        counts = space.counts[at]
        own = np.asarray(space.rows[concatenated(space.row_offsets[:-1][at], counts)])
        spaces[name] = replace(space, row_offsets=_offsets(counts), rows=own)
        if name in came:
            spaces[name] = replace(space, row_offsets=_offsets(came[name].counts), rows=came[name].rows)
            places, held[name] = _places(own, counts, came[name], space.size)
            for column in (clients.columns[c] for c in space.columns if c in columns):
                there = reorder(column, samples)
                base = (np.cumsum(counts) - counts)[owners]
                made[column.name], fine = _moved(there, places, base, space.padding)
                keep &= fine
    left = np.flatnonzero(keep)
    taken = {
        name: reorder(made[name], left) if name in made else reorder(clients.columns[name], samples[left])
        for name in clients.columns
        if name in columns
    }
    offsets = _offsets(np.bincount(owners[left], minlength=len(at)))
    ids = np.asarray(clients.client_ids)[at]
    return Narrowed(Clients(ids, offsets, taken, spaces, clients.label, source=clients.source), held)


def _places(own: Array, counts: Array, came: Came, size: int) -> tuple[Array, Array]:
    """(of every own row its place among what came to its client, −1 if it did not come; which of that is held)."""
    starts = _offsets(came.counts)
    asked = np.repeat(np.arange(len(counts)), counts) * size + own
    there = np.repeat(np.arange(len(counts)), came.counts) * size + came.rows
    at = np.searchsorted(there, asked)
    found = at < len(there)
    found[found] = there[at[found]] == asked[found]
    held = np.zeros(len(there), bool)
    held[at[found]] = True
    return np.where(found, at - np.repeat(starts[:-1], counts), -1), held


def _moved(column: Column, places: Array, base: Array, padding: bool) -> tuple[Column, Array]:
    """(the column with its ids as places among what came, which of its samples can be trained on).

    ``base``: where the rows of a sample's client begin in ``places``.
    """
    if column.starts is not None:
        lengths = np.diff(column.starts)
        new = places[column.values + np.repeat(base, lengths)]
        stay, sample = new >= 0, np.repeat(np.arange(len(lengths)), lengths)
        left = np.bincount(sample[stay], minlength=len(lengths))
        shorter = replace(column, values=_like(new[stay], column), starts=_offsets(left))
        if not padding:
            return shorter, (left > 0) | (lengths == 0)
        meant = [np.bincount(sample[ids > 0], minlength=len(lengths)) > 0 for ids in (new, column.values)]
        return shorter, meant[0] | ~meant[1]
    if column.values.ndim == 1:
        new = places[column.values + base]
        return replace(column, values=_like(new, column)), new >= 0
    new = places[column.values + base[:, None]]
    if not padding:
        return replace(column, values=_like(new, column)), np.all(new >= 0, axis=1)
    fine = np.any(new > 0, axis=1) | ~np.any(column.values > 0, axis=1)
    return replace(column, values=_like(np.maximum(new, 0), column)), fine


def _like(values: Array, column: Column) -> Array:
    return values.astype(column.values.dtype)


def _offsets(counts: Array) -> Array:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
