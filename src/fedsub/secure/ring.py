"""Vectors over the ring of integers modulo 2^8, 2^16, 2^32 or 2^64, as unsigned numpy arrays.

Numpy's unsigned integers wrap around, which is addition in the ring. A sum in the ring is the sum of the values only if
that is below the ring's size, so the range is proved before a round: the most that one client may give, times the
clients, stays below the ring. Every client holds itself to the most before it masks anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from fedsub.checks import check_whole
from fedsub.errors import DataError, MethodError

Array = np.ndarray
TYPES: dict[int, type[np.unsignedinteger]] = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
MOST_BYTES = 2**37  # of the vector of one protocol run: half of what a ChaCha20 stream has


@dataclass(frozen=True)
class Segment:
    """A named part of the vector that is summed, with a ring of its own.

    ``most`` is the largest value that one client may give; None where values wrap around on purpose, as those of a
    private set union do: what comes out then is the sum modulo 2^bits and nothing else.
    """

    name: str
    length: int
    bits: int = 32
    most: int | None = None

    def __post_init__(self) -> None:
        if self.bits not in TYPES:
            raise MethodError(f"Segment {self.name!r}: a ring has 8, 16, 32 or 64 bits, got {self.bits}.")
        check_whole(f"length of segment {self.name!r}", self.length, 1)
        if not 0 < len(self.name.encode()) < 256:
            raise MethodError(f"A segment's name takes 1 to 255 bytes, got {self.name!r}.")
        if self.most is not None:
            check_whole(f"most of segment {self.name!r}", self.most, 1)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(TYPES[self.bits]).newbyteorder("<")

    @property
    def nbytes(self) -> int:
        return self.length * self.bits // 8

    def prove(self, clients: int) -> None:
        """Refuse a ring that the sum over so many clients could leave."""
        if self.most is not None and self.most * clients >= 2**self.bits:
            fits = next((bits for bits in TYPES if self.most * clients < 2**bits), None)
            advice = f"take {fits} bits" if fits else "take a smaller clip, fewer levels or fewer clients"
            raise MethodError(
                f"Segment {self.name!r}: {clients} clients of up to {self.most} each reach {self.most * clients}, and "
                f"the ring ends at {2**self.bits}: the sum could wrap around unseen; {advice}."
            )

    def accept(self, values: Array) -> Array:
        """A client's values, checked, as ring elements of their own memory."""
        values = np.asarray(values)
        if values.shape != (self.length,):
            raise DataError(f"Segment {self.name!r} takes {self.length} values, got an array of {list(values.shape)}.")
        if values.dtype.kind not in "iu":
            raise DataError(f"Segment {self.name!r} takes integers, got {values.dtype}; quantise them first.")
        most = 2**self.bits - 1 if self.most is None else self.most
        if (least := int(values.min())) < 0:
            raise DataError(f"Segment {self.name!r}: a value of {least} is below 0; nothing was sent.")
        if (top := int(values.max())) > most:
            raise DataError(
                f"Segment {self.name!r}: a value of {top} is above {most}, the most that a client may give: the sum "
                "could overflow, so nothing was sent. Clip the values, or plan the round with a larger most."
            )
        return values.astype(self.dtype)


def zeros(segments: Iterable[Segment]) -> dict[str, Array]:
    return {s.name: np.zeros(s.length, s.dtype) for s in segments}


def to_bytes(segments: Iterable[Segment], values: Mapping[str, Array]) -> list[memoryview]:
    """The segments' bytes, little-endian, without a copy."""
    return [np.ascontiguousarray(values[s.name], s.dtype).view(np.uint8).data for s in segments]


def from_bytes(segments: Iterable[Segment], data: memoryview) -> dict[str, Array]:
    """Views on the bytes, which have been checked to be as many as the segments take."""
    out, at = {}, 0
    for s in segments:
        out[s.name] = np.frombuffer(data, s.dtype, s.length, at)
        at += s.nbytes
    return out
