"""Where the clients of a simulated round put what they give, until it is known which rows are summed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fedsub.round.layout import Asked
from fedsub.round.messages import Uplink
from fedsub.round.secure.vector import Given, Ranges
from fedsub.round.server import Opened

Array = np.ndarray


@dataclass
class Box:
    """``unions``: the sorted rows of each space that somebody gives to. With ``apart`` every client's vector is kept by
    itself, as the protocol needs it; otherwise their sum alone, which is no larger than the cohort's union."""

    ranges: Ranges
    unions: Mapping[str, Array]
    apart: bool
    clients: list[int] = field(default_factory=list)
    _given: dict[int, tuple[Given, dict[str, Array]]] = field(default_factory=dict)  # and its rows' places in unions
    _levels: dict[tuple[str, str], Array] = field(default_factory=dict)
    _numbers: dict[str, int] = field(default_factory=dict)
    _held: dict[str, Array] = field(default_factory=dict)

    def add(self, opened: Opened, uplink: Uplink, where: slice, held: Mapping[str, Array] | None = None) -> None:
        """The clients ``where`` of the round; those that refuse themselves leave nothing.

        ``held``: as in `Ranges.split`, of these clients.
        """
        asked = {space: opened.asked[space] for space in self.unions}
        counts = {space: one.counts[where] for space, one in asked.items()}
        places = {space: self._places(space, one, where) for space, one in asked.items()}
        at = {int(c): k for k, c in enumerate(uplink.who.clients)}
        for client, given in self.ranges.split(uplink, counts, opened.number, held):
            self.clients.append(client)
            own = {space: found[at[client]] for space, found in places.items()}
            if self.apart:
                self._given[client] = given, own
            else:
                self._pile(given, own)

    def _places(self, space: str, asked: Asked, where: slice) -> list[Array]:
        """Each client's rows as places in the union."""
        begin = int(asked.counts[: where.start].sum())
        counts = asked.counts[where]
        ends = np.cumsum(counts)
        found = np.searchsorted(self.unions[space], asked.rows[begin : begin + int(counts.sum())])
        return np.split(found, ends[:-1])

    def _pile(self, given: Given, own: Mapping[str, Array]) -> None:
        for (tree, name), levels in given.levels.items():
            total = self._levels.get((tree, name))
            if total is None:
                total = self._levels[tree, name] = np.zeros(self._shape(name), np.int64)
            space = self.ranges.schema.tables.get(name)
            if space is None:
                total += levels.reshape(total.shape)
            else:
                total[own[space]] += levels.reshape(-1, total.shape[1])  # a client's rows are distinct
        for space, mask in given.held.items():
            total = self._held.setdefault(space, np.zeros(len(self.unions[space]), np.uint64))
            total[own[space][mask]] += np.uint64(given.numbers["weight"])
        for name, value in given.numbers.items():
            self._numbers[name] = self._numbers.get(name, 0) + value

    def _shape(self, name: str) -> tuple[int, int]:
        space, width = self.ranges.schema.tables.get(name), self.ranges.width(name)
        return (1 if space is None else len(self.unions[space])), width

    def sum(self, rows: Mapping[str, Array]) -> dict[str, Array]:
        """Σ over all clients by segment, over these rows of each space."""
        at = {space: np.searchsorted(self.unions[space], some) for space, some in rows.items()}
        out = {}
        for tree, name in self.ranges.fields:
            total, space = self._levels[tree, name], self.ranges.schema.tables.get(name)
            chosen = total if space is None else total[at[space]]
            out[f"{tree}/{name}"] = chosen.reshape(-1) + len(self.clients) * self.ranges.middle
        out |= {f"held/{space}": total[at[space]] for space, total in self._held.items()}
        return out | {f"sum/{name}": np.array([value], np.uint64) for name, value in self._numbers.items()}

    def vector(self, client: int, rows: Mapping[str, Array]) -> dict[str, Array]:
        """One client's vector by segment; of rows that it does not hold it has the level that is 0."""
        given, own = self._given[client]
        return self.ranges.spread(given, {space: self.unions[space][at] for space, at in own.items()}, rows)
