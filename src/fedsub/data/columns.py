"""What `Clients` are made of: columns of samples, and the numberings of table rows that id columns use."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Space:
    """One numbering of table rows, and which of them every client holds.

    ``padding`` reserves row 0 for "nothing here": every client holds it, as its local id 0, so a
    module that masks on ``ids == 0`` sees the same on a submodel as on the full table.
    """

    name: str
    size: int
    columns: tuple[str, ...]
    row_offsets: Array  # int64 [clients + 1]
    rows: Array  # int32 or int64 [sum of |S(i)|], sorted within a client
    padding: bool = False
    vocabulary: Array | None = None  # original value of every row; None when ids were rows already

    def rows_of(self, client: int) -> Array:
        """S(client): the sorted global rows that one client holds."""
        return self.rows[self.row_offsets[client] : self.row_offsets[client + 1]]

    @cached_property
    def counts(self) -> Array:
        """|S(i)| of every client, int64 [clients]."""
        return np.diff(self.row_offsets)


@dataclass(frozen=True, eq=False)
class Column:
    """One column: ids of a space (``space`` set) or plain values.

    Fixed width: ``values`` is [samples] or [samples, width]. Ragged: ``values`` is flat and
    ``starts`` [samples + 1] cuts it; it is handed out padded with 0 to ``width``. ``classes`` are the names that
    the numbers of a label stand for. ``feature`` False: built-in models leave it out, such as the time of a split.
    """

    name: str
    values: Array
    space: str | None = None
    starts: Array | None = None
    width: int = 1
    classes: tuple[str, ...] = ()
    feature: bool = True

    @property
    def ragged(self) -> bool:
        return self.starts is not None


def pad(col: Column, samples: Array) -> tuple[Array, Array]:
    """Ragged values as [samples, width], zeros behind each list, and a mask of what is real."""
    assert col.starts is not None
    begin = col.starts[samples]
    length = np.minimum(col.starts[samples + 1] - begin, col.width)
    place = np.arange(col.width)
    present = place < length[:, None]
    out = np.zeros((len(samples), col.width), col.values.dtype)
    out[present] = col.values[(begin[:, None] + place)[present]]
    return out, present
