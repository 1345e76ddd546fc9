"""Heat of those rows that somebody holds: for tables of which most rows nobody names.

All in O(held entries): a table of a billion rows costs what its clients hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedsub.data.columns import Array, Space
from fedsub.data.heat import deciles, row_heat

DENSE = 1 << 20  # rows up to which counting in an array of all rows is the faster way


@dataclass(frozen=True, eq=False)
class Held:
    """Rows that somebody holds, sorted, and a number of each."""

    rows: Array
    values: Array

    def at(self, rows: Array, missing: float = 0) -> Array:
        """The numbers of some rows, of any shape; ``missing`` of those that nobody holds."""
        if not len(self.rows):
            return np.full(np.shape(rows), missing, self.values.dtype)
        kind = self.rows.dtype  # numbers of another type would have numpy convert all that are held
        asked = np.minimum(rows, np.iinfo(kind).max).astype(kind, copy=False)
        place = np.minimum(np.searchsorted(self.rows, asked), len(self.rows) - 1)
        return np.where(self.rows[place] == rows, self.values[place], missing).astype(self.values.dtype, copy=False)


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
