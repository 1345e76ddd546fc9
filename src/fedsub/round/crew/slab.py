"""Memory that two processes share: one writes an object there, the other reads it, and nothing is sent but places."""

from __future__ import annotations

import mmap
import os
import pickle
from typing import Any

PAGE = 1 << 16
LINE = 64  # bytes that arrays are aligned to


class Slab:
    """Made before a fork. The writer makes it larger as it needs; the reader follows."""

    def __init__(self) -> None:
        self._file = os.memfd_create("fedsub")
        self._map: mmap.mmap | None = None

    def put(self, value: Any) -> tuple[bytes, list[tuple[int, int]]]:
        """Write the arrays of ``value``; what is returned goes to the reader some other way."""
        buffers: list[pickle.PickleBuffer] = []
        rest = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        raws, places, end = [b.raw() for b in buffers], [], 0
        for raw in raws:
            places.append((end, raw.nbytes))
            end += -(-raw.nbytes // LINE) * LINE
        target = self._mapped(end, grow=True)
        for raw, (begin, size) in zip(raws, places, strict=True):
            target[begin : begin + size] = raw
        return rest, places

    def get(self, rest: bytes, places: list[tuple[int, int]]) -> Any:
        """The object; its arrays lie in the slab, until something else is written there."""
        view = self._mapped(max((begin + size for begin, size in places), default=0))
        return pickle.loads(rest, buffers=[view[begin : begin + size] for begin, size in places])

    def _mapped(self, size: int, *, grow: bool = False) -> memoryview:
        if self._map is None or len(self._map) < size:
            size = max(PAGE, -(-size * 5 // 4 // PAGE) * PAGE)
            if grow:
                os.ftruncate(self._file, size)
            else:
                size = os.fstat(self._file).st_size
            self._map = mmap.mmap(self._file, size)  # the old one goes when nobody looks into it any more
        return memoryview(self._map)

    def close(self) -> None:
        self._map = None
        os.close(self._file)
