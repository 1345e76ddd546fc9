"""Shamir's secret sharing (1979), t of n, of secrets of 32 bytes, over the field of 65,537 elements.

A secret is 16 limbs of 16 bits. Every limb is the constant term of its own polynomial of degree t−1 with independent
uniform coefficients; the share of x is the polynomials' values at x. Any t shares fix the polynomials; t−1 shares are
consistent with every secret, each with the same number of coefficients, so they tell nothing, whatever the computing
power. The field is small enough that products of matrices in float64 are exact: k terms below 2^34 stay below 2^53.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fedsub.errors import MethodError, SecureSumError
from fedsub.secure.ciphers import KEY, Ciphers
from fedsub.secure.ring import Array

PRIME = 65537
LIMBS = KEY // 2
SHARE = 2 * LIMBS + LIMBS // 8  # bytes of a written share: its limbs modulo 2^16, and a bit for each that is 2^16
MOST_HOLDERS = PRIME - 1
_FAIR = 2**32 // PRIME * PRIME  # below this a 32-bit word modulo the prime is uniform


def uniform(count: int, ciphers: Ciphers) -> Array:
    """Uniform elements of the field, without bias: words that would tilt it are drawn again."""
    out = np.zeros(0, np.uint32)
    while len(out) < count:
        words = np.frombuffer(ciphers.random(4 * (count - len(out)) + 32), "<u4")
        out = np.concatenate([out, words[words < _FAIR]])
    return (out[:count] % PRIME).astype(np.int64)


@lru_cache(64)
def _powers(holders: int, threshold: int) -> Array:
    """x^j for x = 1 … holders and j = 0 … threshold−1."""
    out = np.ones((holders, threshold), np.int64)
    x = np.arange(1, holders + 1)
    for j in range(1, threshold):
        out[:, j] = out[:, j - 1] * x % PRIME
    return out.astype(np.float64)


def share(secrets: list[bytes], holders: int, threshold: int, ciphers: Ciphers) -> Array:
    """Shares of some secrets, int64 [holders, secrets, 16]; that at index h is of the point h + 1."""
    if not 1 <= threshold <= holders <= MOST_HOLDERS:
        raise MethodError(f"Shares take 1 ≤ threshold ≤ holders ≤ {MOST_HOLDERS}, got {threshold} of {holders}.")
    columns = len(secrets) * LIMBS
    polynomials = np.empty((threshold, columns))
    polynomials[0] = np.frombuffer(b"".join(secrets), "<u2")
    polynomials[1:] = uniform((threshold - 1) * columns, ciphers).reshape(threshold - 1, columns)
    values = (_powers(holders, threshold) @ polynomials).astype(np.int64) % PRIME
    return values.reshape(holders, len(secrets), LIMBS)


def write(shares: Array) -> Array:
    """Shares [..., 16] as bytes, uint8 [..., 34]."""
    low = np.ascontiguousarray((shares & 0xFFFF).astype("<u2")).view(np.uint8)
    return np.concatenate([low, np.packbits(shares == 2**16, axis=-1)], axis=-1)


def read(data: Array) -> Array:
    """Written shares, uint8 [..., 34], as int64 [..., 16]; SecureSumError for what no share looks like."""
    low = np.ascontiguousarray(data[..., : 2 * LIMBS]).view("<u2").astype(np.int64)
    top = np.unpackbits(np.ascontiguousarray(data[..., 2 * LIMBS :]), axis=-1).astype(np.int64)
    if (low * top).any():
        raise SecureSumError("A share holds a number that is no element of the field; the sum is not opened.")
    return low + (top << 16)


def combine(points: Array, shares: Array) -> list[bytes]:
    """The secrets of several owners, by Lagrange's interpolation at 0.

    ``points`` [owners, t] are the distinct points of each owner's shares, ``shares`` [owners, t, 16] their values.
    """
    points = np.asarray(points, np.int64)
    above, below = np.ones_like(points), np.ones_like(points)
    for j in range(points.shape[1]):
        other = points[:, j : j + 1]
        difference = (other - points) % PRIME
        difference[:, j] = 1
        below = below * difference % PRIME
        factor = np.broadcast_to(other, points.shape).copy()
        factor[:, j] = 1
        above = above * factor % PRIME
    if not below.all():
        raise SecureSumError("Two shares are of the same point; the sum is not opened.")
    weights = above * _inverse(below) % PRIME
    limbs = np.zeros((len(points), LIMBS), np.int64)
    for j in range(points.shape[1]):
        limbs = (limbs + weights[:, j : j + 1] * shares[:, j]) % PRIME
    if (limbs > 0xFFFF).any():
        raise SecureSumError("Shares do not fit together: some holder gave a wrong one; the sum is not opened.")
    return [row.tobytes() for row in limbs.astype("<u2")]


def _inverse(values: Array) -> Array:
    """v^(p−2), Fermat."""
    out, power, left = np.ones_like(values), values, PRIME - 2
    while left:
        if left & 1:
            out = out * power % PRIME
        power, left = power * power % PRIME, left >> 1
    return out
