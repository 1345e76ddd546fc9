"""Bytes: what lies on the wire, little-endian and without padding.

Row ids (or places within a parameter) are sorted and distinct. One flag byte tells how they follow: 0, as the
differences less 1 (the first id itself) in LEB128, seven bits a byte; or 1, as a bitmap of all possible ids.
Whichever is shorter is taken, the differences if both are equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedsub.errors import DataError

_DIFFERENCES, _BITMAP = b"\0", b"\1"


class Reader:
    """Takes values off the front of a message."""

    def __init__(self, data: bytes):
        self.data, self.at = np.frombuffer(data, np.uint8), 0

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, dtype: Any, count: int) -> np.ndarray:
        """The next ``count`` values."""
        kind = np.dtype(dtype)
        size = count * kind.itemsize
        if size > self.left:
            raise DataError(f"A message ends after {len(self.data)} bytes, but {size - self.left} more were expected.")
        self.at += size
        part = self.data[self.at - size : self.at].tobytes()
        return np.frombuffer(part, kind.newbyteorder("<")).astype(kind, copy=False)

    def bits(self, count: int) -> np.ndarray:
        """The next ``count`` bits, to the end of the last byte."""
        return np.unpackbits(self.take(np.uint8, (count + 7) // 8), count=count, bitorder="little").view(np.bool_)

    def rows(self, size: int, count: int | None = None) -> np.ndarray:
        """Ids below ``size``: ``count`` of them, or all that follow."""
        flag = self.take(np.uint8, 1).tobytes()
        if flag not in (_DIFFERENCES, _BITMAP):
            raise DataError(f"Row ids begin with the byte 0 or 1, found {flag[0]}; the message is damaged.")
        rows = np.flatnonzero(self.bits(size)) if flag == _BITMAP else np.cumsum(self._varints(count) + 1) - 1
        rising = not len(rows) or (rows[0] >= 0 and rows[-1] < size and bool((np.diff(rows) > 0).all()))
        if not rising or count not in (None, len(rows)):
            raise DataError(f"{len(rows)} row ids do not fit {size} rows; the message is damaged or another model's.")
        return rows

    def _varints(self, count: int | None) -> np.ndarray:
        rest = self.data[self.at :]
        last = np.flatnonzero(rest < 128)[:count]
        if count is not None and len(last) < count:
            raise DataError(f"A message ends after {len(last)} of {count} row ids.")
        if not len(last):
            return last
        septets = self.take(np.uint8, int(last[-1]) + 1).astype(np.int64)
        first = np.concatenate([[0], last[:-1] + 1])
        if int((last - first).max()) > 8:
            raise DataError("A row id takes more than nine bytes; the message is damaged.")
        place = np.arange(len(septets)) - np.repeat(first, last - first + 1)
        return np.add.reduceat((septets & 127) << (7 * place), first)


def raw(values: np.ndarray) -> bytes:
    """Plain values, as `Reader.take` reads them."""
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()


def encode_rows(rows: np.ndarray, size: int) -> bytes:
    """Sorted distinct ids below ``size``, as bytes."""
    gaps = _gaps(np.array([0, len(rows)]), rows)
    lengths = _varint_lengths(gaps)
    if lengths.sum() > (size + 7) // 8:
        held = np.zeros(size, np.bool_)
        held[rows] = True
        return _BITMAP + np.packbits(held, bitorder="little").tobytes()
    place = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    septets = (np.repeat(gaps, lengths) >> (7 * place)) & 127
    septets[place < np.repeat(lengths, lengths) - 1] |= 128
    return _DIFFERENCES + raw(septets.astype(np.uint8))


def decode_rows(data: bytes, size: int) -> np.ndarray:
    """The ids that `encode_rows` wrote, int64."""
    reader = Reader(data)
    rows = reader.rows(size)
    if reader.left:
        raise DataError(f"Row ids go on for {reader.left} bytes after the last one; the message is damaged.")
    return rows


def rows_size(rows: np.ndarray, size: int) -> int:
    """The bytes of `encode_rows`."""
    return int(row_id_bytes(np.array([0, len(rows)]), rows, size)[0])


def row_id_bytes(row_offsets: np.ndarray, rows: np.ndarray, size: int | np.ndarray) -> np.ndarray:
    """The bytes of `encode_rows` for every client's rows, int64 [N]; one ``size`` for all, or each its own."""
    before = np.concatenate([[0], np.cumsum(_varint_lengths(_gaps(row_offsets, rows)), dtype=np.int64)])
    differences = before[row_offsets[1:]] - before[row_offsets[:-1]]
    return np.minimum(differences, (np.asarray(size, np.int64) + 7) // 8) + 1


def _gaps(offsets: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """A client's first row, then how many rows are left out before each of the others."""
    rows = rows.astype(np.int64, copy=False)
    gaps = np.diff(rows, prepend=0) - 1
    first = offsets[:-1][offsets[1:] > offsets[:-1]]
    gaps[first] = rows[first]
    return gaps


def _varint_lengths(values: np.ndarray) -> np.ndarray:
    lengths = np.ones(len(values), np.int64)
    largest, bound = int(values.max(initial=0)), 128
    while bound <= largest:
        lengths += values >= bound
        bound <<= 7
    return lengths
