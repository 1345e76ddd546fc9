"""Points in sorted order in bounded memory: on disk in piles by their first bits, one pile in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedsub.vertical.curve import SIZE

Array = np.ndarray
RECORD = np.dtype([("point", np.uint8, (SIZE,)), ("row", "<i8")])
PILE = 1 << 17  # records of a pile, on average
_MOST = 256  # piles: each is an open file while it is written


class Piles:
    """Points with the row they belong to. Read, they come in ascending order of their bytes."""

    def __init__(self, folder: Path, name: str, expected: int):
        self._bits = min(max(0, (expected // PILE).bit_length()), _MOST.bit_length() - 1)
        self._paths = [folder / f"{name}-{number:03d}" for number in range(1 << self._bits)]
        self._files = [open(path, "w+b") for path in self._paths]  # noqa: SIM115

    def add(self, points: Array, rows: Array | None = None) -> None:
        records = np.zeros(len(points), RECORD)
        records["point"] = points
        if rows is not None:
            records["row"] = rows
        first = points[:, 0] >> (8 - self._bits) if self._bits else np.zeros(len(points), np.uint8)
        order = np.argsort(first, kind="stable")
        edges = np.searchsorted(first[order], np.arange(len(self._files) + 1))
        for number, file in enumerate(self._files):
            if edges[number] < edges[number + 1]:
                file.write(records[order[edges[number] : edges[number + 1]]].tobytes())

    def sorted(self) -> Iterator[Array]:
        """The records of every pile, ascending within it and from pile to pile; piles may be empty."""
        for file in self._files:
            file.flush()
            file.seek(0)
            records = np.frombuffer(file.read(), RECORD)
            file.seek(0, 2)
            yield records[np.lexsort(words(records["point"]).T[::-1])]

    def close(self) -> None:
        """Give the space on the disk back."""
        for file, path in zip(self._files, self._paths, strict=True):
            file.close()
            path.unlink(missing_ok=True)


def words(points: Array) -> Array:
    """Points as four numbers each, [n, 4], whose order is that of the bytes."""
    return np.ascontiguousarray(points).view(">u8").astype(np.uint64)


def repeated(points: Array) -> Array:
    """Where a sorted point equals the one before it."""
    return np.flatnonzero((points[1:] == points[:-1]).all(1)) + 1
