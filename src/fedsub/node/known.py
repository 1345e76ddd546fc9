"""Which rows clients have named: kept in memory, so that a round need not wait for what was said before."""

from __future__ import annotations

import numpy as np

Rows = dict[str, np.ndarray]  # space -> the rows that a client holds
MOST = 256 << 20


class KnownRows:
    """The rows that clients named since they joined, of those heard last: as many as fit into ``most`` bytes."""

    def __init__(self, most: int = MOST):
        self._rows: dict[int, Rows] = {}
        self._most, self._bytes = most, 0

    def of(self, client: int) -> Rows | None:
        return self._rows.get(client)

    def learn(self, client: int, rows: Rows | None) -> None:
        self.forget(client)
        if rows is None or (size := _size(rows)) > self._most:
            return
        self._rows[client] = rows
        self._bytes += size
        while self._bytes > self._most:
            self.forget(next(iter(self._rows)))

    def forget(self, client: int) -> None:
        if (rows := self._rows.pop(client, None)) is not None:
            self._bytes -= _size(rows)


def _size(rows: Rows) -> int:
    return sum(some.nbytes for some in rows.values())
