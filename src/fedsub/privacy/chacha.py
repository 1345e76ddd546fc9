"""ChaCha20's block function over many blocks at once (RFC 8439, section 2.3): random words that a key makes.

A block is a function of (key, 128 bits of place): here counter and nonce are not stepped through but name what the
words are for. Without the key they cannot be told from random ones.
"""

from __future__ import annotations

import numpy as np

CONSTANTS = np.frombuffer(b"expand 32-byte k", "<u4").astype(np.uint32)
ROUNDS = 10  # double rounds
_QUARTERS = (
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
)  # fmt: skip


def blocks(key: bytes, place: np.ndarray) -> np.ndarray:
    """The 64 bytes of each block as eight words, uint64 [n, 8]; ``place`` is uint32 [4, n] (counter, then nonce)."""
    words = np.frombuffer(key, "<u4").astype(np.uint32)
    if words.shape != (8,):
        raise ValueError(f"a key of ChaCha20 has 32 bytes, got {len(key)}")
    count = place.shape[1]
    start = np.empty((16, count), np.uint32)
    start[:4], start[4:12], start[12:] = CONSTANTS[:, None], words[:, None], place
    x, spare = list(start.copy()), np.empty(count, np.uint32)
    for _ in range(ROUNDS):
        for a, b, c, d in _QUARTERS:
            _mix(x, a, b, d, 16, spare)
            _mix(x, c, d, b, 12, spare)
            _mix(x, a, b, d, 8, spare)
            _mix(x, c, d, b, 7, spare)
    out = np.stack(x)
    out += start
    return np.ascontiguousarray(out.T).view("<u8")


def _mix(x: list[np.ndarray], a: int, b: int, d: int, turn: int, spare: np.ndarray) -> None:
    """a += b; d ^= a; d <<<= turn."""
    x[a] += x[b]
    x[d] ^= x[a]
    np.left_shift(x[d], np.uint32(turn), out=spare)
    x[d] >>= np.uint32(32 - turn)
    x[d] |= spare
