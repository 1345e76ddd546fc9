"""The messages of a secure sum as bytes. Little-endian:

    magic "fsec" | version u8 | stage u8 | zero u16 | run u64 | round u64 | client u64 | view, 32 bytes | length u64
    the body, as long as that
    digest: SHA-256 of all that, its first 16 bytes

``client`` is who sends a message up, or whom one down is for. ``view`` is a digest of everything the sender knows of
the protocol run: the setting with its session, and every list of clients so far. A message of another run, round or
session, or of a party that was told something else, has another view and is refused. The digest at the end tells a
damaged message from a whole one; who wrote it is for the transport (TLS) and for registered identities.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from fedsub.errors import WireError
from fedsub.secure.ciphers import same
from fedsub.secure.ring import Array

MAGIC, VERSION = b"fsec", 1
KEYS, ROSTER, SHARES, INBOX, MASKED, SURVIVORS, AGREE, AGREED, UNMASK = range(1, 10)  # stages; odd ones go up
NAMES = ("keys", "roster", "shares", "inbox", "masked", "survivors", "agree", "agreed", "unmask")
HEAD = struct.Struct("<4sBBHQQQ32sQ")
DIGEST = 16


@dataclass(frozen=True)
class Note:
    """One message."""

    stage: int
    run: int
    round: int
    client: int
    view: bytes
    body: memoryview


def write(stage: int, run: int, round: int, client: int, view: bytes, *parts: bytes | memoryview) -> bytes:
    size = sum(len(part) for part in parts)
    head = HEAD.pack(MAGIC, VERSION, stage, 0, run, round, client, view, size)
    digest = sha256(head)
    for part in parts:
        digest.update(part)
    return b"".join([head, *parts, digest.digest()[:DIGEST]])


def read(data: bytes, stages: tuple[int, ...]) -> Note:
    """The message, or WireError that says what is wrong with it; nothing is copied before it is whole."""
    if len(data) < HEAD.size + DIGEST:
        raise WireError(f"A message of a secure sum has at least {HEAD.size + DIGEST} bytes, this one {len(data)}.")
    magic, version, stage, zero, run, round, client, view, size = HEAD.unpack_from(data)
    if magic != MAGIC:
        raise WireError(f"A message of a secure sum begins with {MAGIC!r}, this one with {magic!r}.")
    if version != VERSION:
        raise WireError(f"The message is of version {version}, this fedsub reads {VERSION}; install the same on both.")
    whole = memoryview(data)
    if size != len(data) - HEAD.size - DIGEST or zero:
        raise WireError(f"A message announces {size} bytes and has {len(data) - HEAD.size - DIGEST}; send it again.")
    if not same(sha256(whole[:-DIGEST]).digest()[:DIGEST], bytes(whole[-DIGEST:])):
        raise WireError(f"The digest of a message of {len(data)} bytes does not fit: it was damaged; send it again.")
    if stage not in stages:
        waited = " or ".join(NAMES[s - 1] for s in stages) or "nothing"
        got = NAMES[stage - 1] if 0 < stage <= len(NAMES) else stage
        raise WireError(f"Waited for {waited}, got {got}: it is late, early or replayed, and left out.")
    return Note(stage, run, round, client, view, whole[HEAD.size : -DIGEST])


def cut(data: bytes | memoryview, width: int) -> list[bytes]:
    """Pieces of ``width`` bytes."""
    whole = bytes(data)
    return [whole[i : i + width] for i in range(0, len(whole), width)]


class Cursor:
    """Reads a body from its beginning; refuses to read past its end or to leave anything over."""

    def __init__(self, body: memoryview):
        self.body, self.at = body, 0

    def take(self, size: int) -> memoryview:
        if size > len(self.body) - self.at:
            raise WireError(f"A message ends after {len(self.body)} bytes, in the middle of what it should hold.")
        self.at += size
        return self.body[self.at - size : self.at]

    def matrix(self, rows: int, width: int) -> Array:
        return np.frombuffer(self.take(rows * width), np.uint8).reshape(rows, width)

    def rows(self, count: int, width: int) -> list[bytes]:
        return cut(self.take(count * width), width) if width else [b""] * count

    def clients(self, count: int) -> Array:
        """A list of clients, a bit for each of ``count``."""
        bits = np.unpackbits(np.frombuffer(self.take((count + 7) // 8), np.uint8))
        if bits[count:].any():
            raise WireError("A list of clients names some that there are not.")
        return bits[:count].astype(bool)

    def end(self) -> None:
        if self.at != len(self.body):
            raise WireError(f"A message has {len(self.body) - self.at} bytes more than it should hold.")
