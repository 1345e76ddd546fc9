"""Masks: streams of key bytes, added to a vector or taken from it, in place.

They are most of what a secure sum costs. The vector is gone through once, in pieces that stay in the processor's
cache; every stream writes its next bytes into one reused buffer, which is read as ring elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import numpy as np

from fedsub.secure.ciphers import ZEROS, Ciphers, Fill
from fedsub.secure.ring import Array, Segment

PIECE = 1 << 17  # bytes; with the buffer it fits a second-level cache
TOGETHER = 512  # streams that are open at a time
assert len(ZEROS) >= PIECE


def add_masks(
    values: Mapping[str, Array], segments: Sequence[Segment], keys: Iterable[tuple[bytes, bool]], ciphers: Ciphers
) -> None:
    """Add to ``values`` the mask of every key, or take it off where the key's flag is False."""
    waiting = iter(keys)
    while group := list(islice(waiting, TOGETHER)):
        _add([(ciphers.stream(key), plus) for key, plus in group], values, segments)


def _add(streams: list[tuple[Fill, bool]], values: Mapping[str, Array], segments: Sequence[Segment]) -> None:
    buffer = memoryview(bytearray(PIECE))
    for segment in segments:
        whole, size = values[segment.name], segment.bits // 8
        per = PIECE // size
        for start in range(0, segment.length, per):
            piece = whole[start : start + per]
            into = buffer[: len(piece) * size]
            mask = np.frombuffer(into, segment.dtype)
            for fill, plus in streams:
                fill(into)
                if plus:
                    piece += mask
                else:
                    piece -= mask
