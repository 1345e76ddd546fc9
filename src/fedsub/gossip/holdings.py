"""Who holds what: for pairs of nodes, the rows that both hold.

The rows of all nodes lie one behind the other in one arena (`Space.rows`); a *place* is a position there. That node j
holds row m, and where, is found by a table of places at random slots: the slot of (j, m) is a word of j plus a word of
m. Most rows that a node asks for are not there, and most of those fall on an empty slot. Slots that two rows share
are searched instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from fedsub import rng
from fedsub.data.clients import Space
from fedsub.data.renumber import concatenated

AT_ONCE = 1 << 20  # rows that are looked up at once
_EMPTY, _SHARED = -1, -2


@dataclass(frozen=True)
class Shared:
    """The rows that pairs of nodes share: ``at`` and ``there`` are places, ``pull`` says of which pair; int64 [H]."""

    at: np.ndarray  # at the node that asks
    there: np.ndarray  # at the node that is asked
    pull: np.ndarray

    def __len__(self) -> int:
        return len(self.at)

    def take(self, pulls: np.ndarray) -> Shared:
        """Of some of the pairs, numbered anew; ``pulls`` are sorted."""
        number = np.full(int(self.pull.max(initial=-1)) + 1 if len(self) else 0, -1, np.int64)
        inside = pulls[pulls < len(number)]
        number[inside] = np.arange(len(inside))
        kept = np.flatnonzero(number[self.pull] >= 0)
        return Shared(self.at[kept], self.there[kept], number[self.pull[kept]])


class Holdings:
    """The rows of a space that every node holds."""

    def __init__(self, space: Space):
        self.space, self.rows, self.starts = space, space.rows, space.row_offsets

    @cached_property
    def owners(self) -> np.ndarray:
        """The node of every place."""
        return np.repeat(np.arange(len(self.starts) - 1), self.space.counts)

    def within(self, first: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The places [begin, end) of every node's rows first[s] … last[s] − 1, two arrays int64 [nodes, S]."""
        nodes = len(self.starts) - 1
        if len(first) == 1 and first[0] == 0 and last[0] >= self.space.size:
            return self.starts[:-1, None].astype(np.int64), self.starts[1:, None].astype(np.int64)
        keys = self._keys
        base = np.arange(nodes, dtype=np.int64)[:, None] * self.space.size
        return tuple(np.searchsorted(keys, base + np.minimum(edge, self.space.size)) for edge in (first, last))  # type: ignore[return-value]

    @cached_property
    def _keys(self) -> np.ndarray:
        """(node, row) of every place as one number, which grows from place to place."""
        return self.owners * self.space.size + self.rows

    @cached_property
    def _words(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        """(a word of every place's row, a word of every node, the table of places, the mask of its slots)."""
        size = 1 << max(4, int(4 * len(self.rows)).bit_length())
        of_row = (rng.key(rng.PEERS, 1, self.rows) & np.uint64(size - 1)).astype(np.int64)
        of_node = (rng.key(rng.PEERS, 2, np.arange(len(self.starts) - 1)) & np.uint64(size - 1)).astype(np.int64)
        slots = (of_row + np.repeat(of_node, self.space.counts)) & (size - 1)
        table = np.full(size, _EMPTY, np.int32 if len(self.rows) < 2**31 else np.int64)
        places = np.arange(len(self.rows), dtype=table.dtype)
        table[slots] = places
        table[slots[table[slots] != places]] = _SHARED
        return of_row, of_node, table, size - 1

    @cached_property
    def _taken(self) -> np.ndarray:
        """Which slots are taken: a quarter of the table's bytes, and most rows that are looked up end here."""
        return self._words[2] != _EMPTY

    def shared(self, to: np.ndarray, of: np.ndarray, begin: tuple, end: tuple) -> Shared:
        """The rows that pairs of nodes share. ``begin`` and ``end`` are the places of ``to`` and of ``of`` in question,
        two arrays each: only the shorter side of a pair is looked up in the other.
        """
        lengths = end[0] - begin[0], end[1] - begin[1]
        swap = lengths[1] < lengths[0]
        mine, other = np.where(swap, begin[1], begin[0]), np.where(swap, to, of)
        counts = np.where(lengths[0] == 0, 0, np.minimum(*lengths))
        counts[lengths[1] == 0] = 0
        found, edges = [], self._chunks(counts)
        for low, high in pairwise(edges):
            places = concatenated(mine[low:high], counts[low:high])
            which = np.repeat(np.arange(low, high), counts[low:high])
            hit = self._likely(places, np.repeat(self._words[1][other[low:high]], counts[low:high]))
            places, which = places.take(hit), which.take(hit)
            right, at = self._sure(places, other.take(which))
            found.append((places[right], at, which[right]))
        nothing = np.zeros(0, np.int64)
        asked, there, pull = (np.concatenate(parts) for parts in zip((nothing, nothing, nothing), *found, strict=True))
        turned = swap[pull]
        return Shared(np.where(turned, there, asked), np.where(turned, asked, there), pull)

    def _chunks(self, counts: np.ndarray) -> list[int]:
        before = np.concatenate([[0], np.cumsum(counts)])
        edges = [0]
        while edges[-1] < len(counts):
            far = int(np.searchsorted(before, before[edges[-1]] + AT_ONCE, side="right")) - 1
            edges.append(min(max(far, edges[-1] + 1), len(counts)))
        return edges

    def _likely(self, places: np.ndarray, words: np.ndarray) -> np.ndarray:
        """Which of the rows at these places fall on a slot that is taken, with nodes of these words."""
        of_row, mask = self._words[0], self._words[3]
        slots = of_row.take(places)
        slots += words
        slots &= mask
        return np.flatnonzero(self._taken.take(slots))

    def _sure(self, places: np.ndarray, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(which of the rows at these places the nodes do hold, where)."""
        of_row, of_node, table, mask = self._words
        at = table.take((of_row.take(places) + of_node.take(nodes)) & mask).astype(np.int64)
        rows, unsure = self.rows.take(places), np.flatnonzero(at == _SHARED)
        if len(unsure):
            wanted = nodes[unsure] * self.space.size + rows[unsure]
            at[unsure] = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        right = (self.rows.take(at) == rows) & (at >= self.starts[nodes]) & (at < self.starts[nodes + 1])
        found = np.flatnonzero(right)
        return found, at[found]
