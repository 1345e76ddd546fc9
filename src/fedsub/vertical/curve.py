"""Ids as points of a curve, and the multiplication by a secret that hides them.

A party hashes an id to 32 bytes, reads them as the u-coordinate of a point P, and multiplies by a secret a of its own:
X25519(a, P) (RFC 7748). Multiplications commute, X25519(b, X25519(a, P)) = X25519(a, X25519(b, P)), and that is all
that the intersection needs. Nothing of the curve is computed here: the package `cryptography` (OpenSSL) does it.

Why hashed bytes may stand for a point as they are:

- The Montgomery ladder takes any u. Half of them lie on Curve25519, the others on its quadratic twist, and a multiple
  of a point stays on its side. Both groups are secure: their orders are 8q and 4q' with primes q, q' near 2^252 and
  2^253, so that the discrete logarithm is as hard on the twist (Bernstein, "Curve25519", 2006, §3).
- X25519 sets the lowest three bits of a scalar to zero. A multiple of 8 wipes out every component of small order, on
  the curve and on the twist, so what leaves a party lies in a subgroup of prime order. The points that vanish wholly
  have the outcome zero; the library refuses it. An id hashes to one of them with a chance below 2^-250; a party that is
  sent one stops.
- What a blinded id does tell is its side, curve or twist: one bit of the hash of the id. The other party gets blinded
  ids in the order of their values, which is random to it, and so learns how many of those it does not share lie on
  either side. The hash has no salt of the session on purpose: a second session then tells the same bit again, and no
  new one.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np

from fedsub.errors import DataError, WireError, lacking

SIZE = 32  # bytes of a point
_PURPOSE = b"fedsub psi 1"
Array = np.ndarray


def hashed(ids: Iterable[object]) -> Array:
    """The points of ids, uint8 [n, 32]. A whole number counts as its decimal text: 42 and "42" are the same id."""
    digests = [blake2b(_text(value), digest_size=SIZE, person=_PURPOSE).digest() for value in ids]
    points = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, SIZE).copy()
    points[:, -1] &= 0x7F  # the 256th bit is no part of a u-coordinate
    return points


def _text(value: object) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return str(int(value)).encode()
    raise DataError(f"An id is {value!r} ({type(value).__name__}); ids are text or whole numbers, with none missing.")


class Secret:
    """A party's secret of one session, drawn from the operating system and never written anywhere."""

    def __init__(self) -> None:
        try:
            from cryptography.hazmat.primitives.asymmetric import x25519
        except ImportError as err:
            raise lacking("cryptography (for private set intersection)", "secure") from err
        self._key = x25519.X25519PrivateKey.generate()
        self._load = x25519.X25519PublicKey.from_public_bytes

    def times(self, points: Array) -> Array:
        """Every point times the secret, uint8 [n, 32]."""
        raw, multiply, load = np.ascontiguousarray(points).tobytes(), self._key.exchange, self._load
        try:
            out = [multiply(load(raw[at : at + SIZE])) for at in range(0, len(raw), SIZE)]
        except ValueError as err:
            raise WireError(
                "A blinded id is a point of small order, which no honest party sends; the other side runs something "
                "else."
            ) from err
        return np.frombuffer(b"".join(out), np.uint8).reshape(-1, SIZE)
