"""`Holdings`: which client holds which rows of one space, and what each weighs; what a mechanism asks about."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedsub.data.clients import Array, Space
from fedsub.data.heat import weighted_heat
from fedsub.privacy.heat.words import SAMPLE, Words


@dataclass(frozen=True, eq=False)
class Holdings:
    """Of one space. Everybody holds a padding row, so nobody is asked about it: here it is left out.

    ``weights`` are 1, or the samples w_i of each client for weighted heat, W_m = Σ_{i holds m} w_i.
    """

    space: Space
    weights: Array  # float64 [clients]
    padded: bool = False
    weighted: bool = False

    @classmethod
    def of(cls, space: Space, sizes: Array | None = None) -> Holdings:
        weights = np.ones(len(space.counts)) if sizes is None else np.asarray(sizes, np.float64)
        padded = space.padding
        if padded:
            rows = np.asarray(space.rows)
            offsets = space.row_offsets - np.arange(len(space.row_offsets))
            space = replace(space, rows=rows[rows != 0], row_offsets=offsets, padding=False)
        return cls(space, weights, padded, sizes is not None)

    @classmethod
    def alone(cls, name: str, rows: Array, size: int, *, padded: bool = False) -> Holdings:
        """Of one client that knows only its own."""
        rows = np.asarray(rows, np.int64)
        space = Space(name, size, (name,), np.array([0, len(rows)]), rows, padding=padded)
        return cls.of(space)

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def size(self) -> int:
        return self.space.size

    @cached_property
    def heat(self) -> Array:
        """Σ of the weights of those who hold each row: n_m or W_m, exact; float64 [size]."""
        return weighted_heat(self.space, self.weights)

    @property
    def whole(self) -> float:
        return float(self.weights.sum())

    @property
    def most(self) -> int:
        """The most rows that one client holds."""
        return int(self.space.counts.max(initial=0))

    def groups(self) -> Iterator[tuple[float, int, Array]]:
        """(weight, how many clients have it, how many of them hold each row), weight by weight."""
        for weight in np.unique(self.weights):
            of = self.weights == weight
            yield float(weight), int(of.sum()), weighted_heat(self.space, of.astype(np.float64)).astype(np.int64)

    def take(self, begin: int, end: int) -> Holdings:
        """Some of the clients."""
        edges = self.space.row_offsets
        rows = np.asarray(self.space.rows[edges[begin] : edges[end]])
        space = replace(self.space, rows=rows, row_offsets=edges[begin : end + 1] - edges[begin])
        return replace(self, space=space, weights=self.weights[begin:end])

    def bounded(self, most: int, words: Words) -> Holdings:
        """The same with at most so many rows of each client, drawn uniformly from its own."""
        counts = self.space.counts
        if self.most <= most:
            return self
        drawn = words(SAMPLE, 0, self.most)
        kept = []
        for client, count in enumerate(counts):
            rows = self.space.rows_of(client)
            kept.append(rows if count <= most else np.sort(rows[np.argsort(drawn[client, :count])[:most]]))
        offsets = np.concatenate([[0], np.cumsum(np.minimum(counts, most))])
        return replace(self, space=replace(self.space, rows=np.concatenate(kept), row_offsets=offsets))

    def mask(self) -> Array:
        """Who holds what, bool [clients, size]."""
        out = np.zeros((len(self), self.size), bool)
        out[np.repeat(np.arange(len(self)), self.space.counts), self.space.rows] = True
        return out

    def lost(self, most: int) -> Array:
        """The bias of `bounded`: Σ over a row's holders of w_i (1 − min(1, most/k_i)), k_i their numbers of rows."""
        counts = np.maximum(self.space.counts, 1)
        return weighted_heat(self.space, self.weights * (1 - np.minimum(1, most / counts)))
