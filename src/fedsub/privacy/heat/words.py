"""Where the randomness of private answers comes from: 64-bit words that are a function of who answers, and what for.

A client's answer about a row is drawn once and then stands (`PERMANENT`); what is drawn anew for every question goes by
the question's number (`FRESH`). In a simulation the words are counters (`fedsub.rng`), so that nothing of the size
clients × rows is kept. On a node they follow from a secret that never leaves it, by an extendable hash (SHAKE-256, FIPS
202): who sees answers cannot compute the words behind them, which the counters would not promise.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b, shake_256

import numpy as np

from fedsub.rng import HEAT, key, mix

Array = np.ndarray
Words = Callable[
    [int, int, int | Array], Array
]  # (purpose, question, how many or at which places) -> uint64 [clients, …]

SAMPLE, PERMANENT, FRESH, NOISE = range(1, 5)


def simulated(seed: int, space: str, clients: Array) -> Words:
    """Counters of (seed, space, client, purpose, question, place)."""
    own = key(seed, HEAT, _word(space), np.asarray(clients, np.int64))

    def words(purpose: int, question: int, places: int | Array) -> Array:
        begin = key(own.view(np.int64), purpose, question)
        return mix(begin[:, None] + _places(places).astype(np.uint64))

    return words


def secret(value: bytes, space: str, mechanism: str) -> Words:
    """One client's words, from a secret of its own; different mechanisms get independent ones."""
    own = blake2b(f"{space}\0{mechanism}".encode(), key=value, digest_size=32).digest()

    def words(purpose: int, question: int, places: int | Array) -> Array:
        at = _places(places)
        count = int(at.max(initial=-1)) + 1  # a longer stream begins like a shorter one
        stream = shake_256(own + purpose.to_bytes(8, "little") + question.to_bytes(8, "little")).digest(8 * count)
        return np.frombuffer(stream, "<u8").astype(np.uint64)[None, at]

    return words


def draws(seed: int, space: str, purpose: int, question: int, group: int = 0) -> np.random.Generator:
    """numpy's generator for sums of many clients' answers, from a key of its own."""
    return np.random.Generator(np.random.Philox(key=int(key(seed, HEAT, _word(space), purpose, question, group))))


def _places(places: int | Array) -> Array:
    return np.arange(places) if isinstance(places, int) else np.asarray(places, np.int64)


def _word(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=7).digest(), "little")
