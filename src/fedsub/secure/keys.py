"""Which key is for what: every key of a secure sum is derived here, and bound to one run of the protocol.

Two clients u < v agree on one X25519 secret z_uv and make four keys of it, of which only the first may ever be told:

    mask K_uv | sealing u→v | sealing v→u | tags  =  HKDF(z_uv, salt = view, info = purpose, u, v, public keys)

where ``view`` is the digest of setting, session and the list of those who sent keys. A client also draws two secrets
that it shares out: b_u, which makes its own mask, and a lock l_u. Locked under l_u, the server keeps K_uv of all of u's
neighbours, for the case that u drops out after others have masked with it: l_u is then opened by the holders of its
shares. In the protocol as published (Bonawitz et al., 2017) the second shared secret is a second X25519 key, with an
exchange of its own for every pair, from which the server computes the same K_uv. What the server learns is the same,
K_uv of clients that dropped out and nothing else, at half the exchanges; an exchange costs as much as masking 40,000
values. So the published proof does not hold word by word: docs/secure_sum.md says which of its steps are others. That
l_u fits what was announced is checked by a commitment.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedsub.secure.ciphers import KEY, Ciphers
from fedsub.secure.ring import Array

_PAIR = b"fedsub secure sum 1: mask, seal up, seal down, tag"
_OWN, _LOCK = b"fedsub secure sum 1: own mask", b"fedsub secure sum 1: lock"
_OWN_FITS, _LOCK_FITS = b"fedsub secure sum 1: own fits", b"fedsub secure sum 1: lock fits"
_SHARES, _AGREE = b"fedsub secure sum 1: shares", b"fedsub secure sum 1: agree"


class PairKeys(NamedTuple):
    """What one client of a pair has of their common keys."""

    mask: bytes
    seal: bytes  # for what it sends
    open: bytes  # for what it gets
    tag: bytes  # of either; what is tagged names its sender


def number(client: int) -> bytes:
    return client.to_bytes(8, "little")


def pair_keys(
    secret: Any, me: int, mine: bytes, peer: int, theirs: bytes, view: bytes, ciphers: Ciphers
) -> PairKeys:  # fmt: skip
    """The keys that ``me`` shares with ``peer``; WireError for a public key that fixes the secret."""
    first = me < peer
    ends = (number(me), mine, number(peer), theirs) if first else (number(peer), theirs, number(me), mine)
    made = ciphers.derive(ciphers.agree(secret, theirs), view, _PAIR + b"".join(ends), 4 * KEY)
    mask, up, down, tag = made[:KEY], made[KEY : 2 * KEY], made[2 * KEY : 3 * KEY], made[3 * KEY :]
    return PairKeys(mask, up, down, tag) if first else PairKeys(mask, down, up, tag)


def own_mask(own: bytes, client: int, view: bytes, ciphers: Ciphers) -> bytes:
    return ciphers.derive(own, view, _OWN + number(client))


def commitments(own: bytes, lock: bytes, client: int, view: bytes, ciphers: Ciphers) -> tuple[bytes, bytes]:
    """What is announced of two secrets, and tells nothing of them: they are 256 random bits each."""
    return (
        ciphers.derive(own, view, _OWN_FITS + number(client)), ciphers.derive(lock, view, _LOCK_FITS + number(client))
    )  # fmt: skip


def locked(lock: bytes, client: int, masks: Array, view: bytes, ciphers: Ciphers) -> Array:
    """The mask keys [neighbours, 32] under the lock, or back again: added modulo 2 to a stream of its own."""
    stream = bytearray(masks.size)
    key = ciphers.derive(lock, view, _LOCK + number(client))
    fill, at, whole = ciphers.stream(key), 0, memoryview(stream)
    while at < len(stream):
        fill(whole[at : at + (1 << 16)])
        at += 1 << 16
    return masks ^ np.frombuffer(stream, np.uint8).reshape(masks.shape)


def shares_text(view: bytes, sender: int, receiver: int) -> bytes:
    """What sealed shares are bound to: the protocol's version, run, round, session and list by ``view``, both ends."""
    return _SHARES + view + number(sender) + number(receiver)


def agree_text(view: bytes, sender: int) -> bytes:
    """What a client vouches for: everything it was told, survivors included."""
    return _AGREE + view + number(sender)


def keys_text(view: bytes, client: int, public: bytes) -> bytes:
    """What a registered identity signs of its round's key."""
    return b"fedsub secure sum 1: keys" + view + number(client) + public
