"""Arrays as bare files, of which a stretch can be read. Read, not mapped: mapped pages would count as memory in use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedsub.data.clients import Array


def put(path: Path, array: Array, mode: str = "wb") -> None:
    # Not tofile: on a full disk it fails without an error number, so the reason would be lost.
    with open(path, mode) as file:
        file.write(np.ascontiguousarray(array).data if array.size else b"")


def get(path: Path, dtype: str, begin: int = 0, end: int | None = None, width: int = 0) -> Array:
    """Entries ``begin`` to ``end``, or all behind ``begin``; rows of ``width`` entries if that is not 0."""
    kind, size = np.dtype(dtype), max(width, 1)
    count = -1 if end is None else (end - begin) * size
    found = np.fromfile(path, kind, count, offset=begin * size * kind.itemsize) if count else np.empty(0, kind)
    return found.reshape(-1, width) if width else found


def blocks(path: Path, dtype: str, step: int) -> Iterator[Array]:
    begin = 0
    while len(block := get(path, dtype, begin, begin + step)):
        yield block
        begin += len(block)


def order_of(codes: Array) -> Array:
    """The stable order of whole numbers from 0, each sorted as one number with its position: faster than argsort."""
    if not len(codes):
        return np.empty(0, np.int64)
    bits = int(len(codes) - 1).bit_length()
    if int(codes.max()).bit_length() + bits > 63:
        return np.argsort(codes, kind="stable")
    keys = (codes.astype(np.int64) << bits) | np.arange(len(codes))
    keys.sort()
    keys &= (1 << bits) - 1
    return keys
