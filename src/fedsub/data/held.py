"""Heat of those rows that somebody holds: for tables of which most rows nobody names.

All in O(held entries): a table of a billion rows costs what its clients hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedsub.data.columns import Array, Space
from fedsub.data.heat import deciles, row_heat

DENSE = 1 << 20  # rows up to which an array of all rows is the faster way


@dataclass(frozen=True, eq=False)
class Held:
    """Rows that somebody holds, sorted, and a number of each."""

    rows: Array
    values: Array

    def at(self, rows: Array, missing: float = 0) -> Array:
        """The numbers of some rows, of any shape; ``missing`` of those that nobody holds."""
        if not len(self.rows):
            return np.full(np.shape(rows), missing, self.values.dtype)
        if (places := self._places) is not None:
            place = places[np.minimum(rows, len(places) - 1)]
            return np.where(place >= 0, self.values[place], missing).astype(self.values.dtype, copy=False)
        kind = self.rows.dtype  # numbers of another type would have numpy convert all that are held
        asked = np.minimum(rows, np.iinfo(kind).max).astype(kind, copy=False)
        place = np.minimum(np.searchsorted(self.rows, asked), len(self.rows) - 1)
        return np.where(self.rows[place] == rows, self.values[place], missing).astype(self.values.dtype, copy=False)

    @cached_property
    def _places(self) -> Array | None:
        """Where every row of a table stands among those held, −1 of others and last; None: the table is too large.

        Looked up in a tenth of the time that a search takes.
        """
        if (size := int(self.rows[-1]) + 1) > DENSE:
            return None
        places = np.full(size + 1, -1, np.int32)
        places[self.rows] = np.arange(len(self.rows))
        return places


def held_heat(space: Space, sizes: Array | None = None) -> Held:
    """n_m of every row that somebody holds, as `fedsub.data.heat.row_heat` counts it; of padding, nothing.

    With ``sizes`` (samples of every client) only clients that have samples are counted.
    """
    if space.size <= max(DENSE, len(space.rows)):
        heat = row_heat(space, sizes)
        heat[: int(space.padding)] = 0
        rows = np.flatnonzero(heat)
        return Held(rows, heat[rows])
    named = np.asarray(space.rows)
    if sizes is not None and not (sizes > 0).all():
        named = named[np.repeat(sizes > 0, space.counts)]
    named = np.sort(named)
    named = named[np.searchsorted(named, int(space.padding)) :]
    first = np.flatnonzero(np.concatenate([[True], named[1:] != named[:-1]])) if len(named) else np.zeros(0, np.int64)
    return Held(named[first], np.diff(first, append=len(named)))


def held_weight(space: Space, sizes: Array) -> Held:
    """W_m of every row that somebody holds, as `fedsub.data.heat.weighted_heat` counts it; of padding, nothing."""
    named = np.asarray(space.rows)
    order = np.argsort(named, kind="stable")
    order = order[np.searchsorted(named, int(space.padding), sorter=order) :]
    named, weights = named[order], np.repeat(np.asarray(sizes, np.float64), space.counts)[order]
    first = np.flatnonzero(np.concatenate([[True], named[1:] != named[:-1]])) if len(named) else np.zeros(0, np.int64)
    return Held(named[first], np.add.reduceat(weights, first) if len(first) else np.zeros(0))


def held_deciles(spaces: Mapping[str, Space]) -> dict[str, Held]:
    """The decile of every held row, over the features of all spaces together (`fedsub.data.heat.deciles`)."""
    found = {name: held_heat(space) for name, space in spaces.items()}
    together = deciles(np.concatenate([one.values for one in found.values()] or [np.zeros(0, np.int64)]))
    edges = np.cumsum([len(one.rows) for one in found.values()])[:-1]
    parts = np.split(together, edges)
    return {name: Held(one.rows, part) for (name, one), part in zip(found.items(), parts, strict=True)}
