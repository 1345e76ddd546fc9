"""Which rows are whose: of S shards number s has the rows s, s + S, s + 2S, …"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Share:
    """Shard ``number`` of ``count``. Row r of the table is its row r // S."""

    number: int = 0
    count: int = 1

    def size(self, rows: int) -> int:
        """How many of a table's rows are its own."""
        return max(0, -(-(rows - self.number) // self.count))

    @property
    def rows(self) -> slice:
        """Where they lie in the table."""
        return slice(self.number, None, self.count)

    def places(self, rows: np.ndarray) -> np.ndarray:
        """Which of some rows are its own."""
        return np.flatnonzero(rows % self.count == self.number)

    def inner(self, rows: np.ndarray) -> np.ndarray:
        """Its own numbers of rows that are its own."""
        return rows // self.count

    def outer(self, rows: np.ndarray) -> np.ndarray:
        """The table's numbers of its own rows."""
        return rows * self.count + self.number


def shares(count: int) -> list[Share]:
    return [Share(number, count) for number in range(count)]
