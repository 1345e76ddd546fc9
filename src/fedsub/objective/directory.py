"""Which slot of the memory a row of a lazy table has: an open hash table over numpy arrays, and its inverse."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedsub import rng

FREE = -1
LEAST = 1024  # slots of the first row


class Directory:
    """Rows get slots 0, 1, 2, … in the order in which they are added; ``rows`` is the row of every slot, −1 if free."""

    def __init__(self, rows: Tensor | None = None):
        """``rows`` int64 [capacity]: those of an earlier directory."""
        self.rows = torch.zeros(0, dtype=torch.int64) if rows is None else rows
        self.count = 0
        self._keys, self._slots = np.full(2 * LEAST, FREE, np.int64), np.zeros(2 * LEAST, np.int64)
        self.fill()

    @property
    def capacity(self) -> int:
        return len(self.rows)

    def fill(self) -> None:
        """Begin anew with what ``rows`` says."""
        known = self.rows.numpy()
        self.count = int(np.count_nonzero(known >= 0))
        self._rehash(self.count)

    def find(self, rows: np.ndarray) -> np.ndarray:
        """The slot of each row, −1 if it has none; int64."""
        out = np.full(len(rows), FREE, np.int64)
        left, place = np.arange(len(rows)), self._home(rows)
        while len(left):
            there = self._keys[place]
            hit = there == rows[left]
            out[left[hit]] = self._slots[place[hit]]
            further = ~hit & (there != FREE)
            left, place = left[further], self._next(place[further])
        return out

    def new(self, rows: np.ndarray) -> np.ndarray:
        """Those of some distinct rows that have no slot, in their order."""
        return rows[self.find(rows) == FREE].astype(np.int64)

    def needed(self, more: int) -> int:
        """The capacity for so many rows more: it doubles."""
        capacity = self.capacity
        while capacity < self.count + more:
            capacity = max(LEAST, 2 * capacity)
        return capacity

    def grow(self, capacity: int) -> None:
        free = torch.full((capacity - self.capacity,), FREE, dtype=torch.int64)
        self.rows = torch.cat([self.rows, free])

    def add(self, rows: np.ndarray) -> Tensor:
        """Give distinct rows without a slot the next ones, for which there is room; returns these, int64."""
        slots = np.arange(self.count, self.count + len(rows))
        self.rows[self.count : self.count + len(rows)] = torch.from_numpy(rows)
        self.count += len(rows)
        if 2 * self.count > len(self._keys):
            self._rehash(self.count)
        else:
            self._insert(rows, slots)
        return torch.from_numpy(slots)

    def _rehash(self, count: int) -> None:
        size = 2 * LEAST
        while size < 4 * count:
            size *= 2
        self._keys, self._slots = np.full(size, FREE, np.int64), np.zeros(size, np.int64)
        self._insert(self.rows[:count].numpy(), np.arange(count))

    def _insert(self, rows: np.ndarray, slots: np.ndarray) -> None:
        left, place = np.arange(len(rows)), self._home(rows)
        while len(left):
            free = self._keys[place] == FREE
            self._keys[place[free]] = rows[left[free]]
            won = self._keys[place] == rows[left]  # of several rows that came to a free place one has it
            self._slots[place[won]] = slots[left[won]]
            left, place = left[~won], self._next(place[~won])

    def _home(self, rows: np.ndarray) -> np.ndarray:
        words = rng.mix(np.ascontiguousarray(rows, np.int64).view(np.uint64))
        return (words & np.uint64(len(self._keys) - 1)).astype(np.int64)

    def _next(self, place: np.ndarray) -> np.ndarray:
        return (place + 1) & (len(self._keys) - 1)
