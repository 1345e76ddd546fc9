"""Randomness from counters: every draw is a pure function of (seed, purpose, round, client, step, …).

Nothing is drawn from a stream, so the order of clients, the chunk size, the number of workers and an
interruption change no number. The mixer is the finaliser of SplitMix64 (Steele, Lea, Flood, 2014),
vectorised over numpy arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray

# One constant per purpose keeps streams apart that share (seed, round, client).
COHORT, BATCH, DROPOUT_LAYER, LOSS, SPLIT, EVALUATION, OTHER, TIE, AVAILABLE, PHASE, PART, TWIN = range(1, 13)
PERSONAL = 30
RANKED, NEGATIVE = range(50, 52)  # clients that get lists of items, and the negatives in them
HEAT = 60  # private answers about who holds what
SIDES = 90  # made data of several parties
QUANTISED, UNITED = range(80, 82)  # levels of what enters a secure sum; what stands for a row in a private union
COIN, TERM, REFRESH = range(40, 43)  # the mixture's coin, a client's term, when the reference point moves
GRAPH, PEERS = range(100, 102)  # of gossip: who may ask whom, and who is asked
NOISE, LOCAL_NOISE, CANARY = range(70, 73)  # of differential privacy: at the server, at clients; audits
LAZY = 77  # rows of lazy tables, before they are touched
LEAKS = 74  # where an attack begins to make samples up

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_FOLD, _WORD = int(_M2), 2**64 - 1
_30, _27, _31, _11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


def mix(x: Any) -> Any:
    """A bijection of 64-bit words (a scalar or an array of uint64) that looks random."""
    if not isinstance(x, np.ndarray):  # numpy warns when a single number overflows, not when an array does
        return np.uint64(_mix_one(int(x)))
    x = x + _GOLDEN
    x ^= x >> _30
    x *= _M1
    x ^= x >> _27
    x *= _M2
    x ^= x >> _31
    return x


def key(*parts: int | Array) -> Any:
    """Fold integers (or broadcastable integer arrays) into one 64-bit key each."""
    out: Any = 0
    for part in parts:
        if isinstance(out, int) and not isinstance(part, np.ndarray):  # Python integers are faster than scalars
            out = _mix_one(((out * _FOLD) ^ int(part)) & _WORD)
            continue
        # Two's complement keeps negative values distinct.
        word = np.asarray(part).astype(np.int64, copy=False).view(np.uint64)
        folded = np.uint64(out * _FOLD & _WORD) if isinstance(out, int) else out * np.uint64(_FOLD)
        out = mix(folded ^ word)
    return np.uint64(out) if isinstance(out, int) else out


def _mix_one(x: int) -> int:
    """`mix` for one Python integer."""
    x = (x + int(_GOLDEN)) & _WORD
    x = ((x ^ (x >> 30)) * int(_M1)) & _WORD
    x = ((x ^ (x >> 27)) * int(_M2)) & _WORD
    return x ^ (x >> 31)


def uniform(words: Array) -> Array:
    """64-bit words as float64 in [0, 1)."""
    return (words >> _11).astype(np.float64) * 2.0**-53


def below(words: Array, bound: Array | int) -> Array:
    """64-bit words as integers in [0, bound); the bias is below bound / 2**53."""
    return (uniform(words) * bound).astype(np.int64)


def normal(words: Array) -> Array:
    """64-bit words as standard normal numbers, float64 (Box and Muller, 1958)."""
    radius = np.sqrt(-2.0 * np.log1p(-uniform(mix(words))))
    return radius * np.cos(2.0 * np.pi * uniform(mix(~words)))


def first_of_permutation(n: int, count: int, word: Any) -> Array:
    """The first ``count`` entries of a random permutation of range(n), keyed by ``word``.

    When ``count`` is small beside ``n`` the distinct prefix of a stream of draws is the same thing
    and costs O(count); otherwise all n keys are sorted.
    """
    with np.errstate(over="ignore"):
        return _first(n, count, word)


def _first(n: int, count: int, word: Any) -> Array:
    if count * 4 <= n:
        draws = below(mix(word + np.arange(2 * count, dtype=np.uint64)), n)
        order = np.argsort(draws, kind="stable")  # np.unique with its checks takes three times as long
        ascending = draws[order]
        new = np.ones(len(order), bool)
        new[1:] = ascending[1:] != ascending[:-1]
        first = np.sort(order[new])
        if len(first) >= count:
            return draws[first[:count]]
    return np.argsort(mix(word + np.arange(n, dtype=np.uint64)), kind="stable")[:count]


def some_of(n: int, count: int, word: Any) -> Array:
    """The same ``count`` of range(n), in ascending order: for many of them this takes a fraction of the time."""
    if not 0 < count < n:
        return np.arange(count)
    with np.errstate(over="ignore"):
        if count * 4 > n:
            keys = mix(word + np.arange(n, dtype=np.uint64))  # all different, as `mix` can be undone
            return np.flatnonzero(keys <= np.partition(keys, count - 1)[count - 1])
        draws = below(mix(word + np.arange(2 * count, dtype=np.uint64)), n)
    bits = (2 * count - 1).bit_length()
    if n.bit_length() + bits < 64:
        drawn = np.sort(draws << bits | np.arange(2 * count))  # by value, then by when it was drawn
        drawn = drawn[np.r_[True, np.diff(drawn >> bits) > 0]]
        when = drawn & ((1 << bits) - 1)
        if len(when) >= count:
            return drawn[when <= np.partition(when, count - 1)[count - 1]] >> bits
    return np.sort(first_of_permutation(n, count, word))
