"""A letter as Flower carries it: fedsub's own bytes in records, and nothing of Flower's pickled.

A letter of up to ``piece`` bytes is one entry of a ConfigRecord, which Flower sends in one piece. A longer one is cut
into arrays of bytes, which it sends and stores chunk by chunk, so that neither side takes a large table at once.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedsub.errors import WireError

TYPE = "query.fedsub"  # of all messages
HELLO, WELCOME, LETTER = "hello", "welcome", "letter"  # what a message is about
LETTERS = "letters"  # several letters to one node, which are answered together
REFUSED, UNKNOWN = "refused", "unknown"  # a node's answer in words; it does not know the run
PIECE = 4 << 20  # bytes
MOST = 1 << 30
_LENGTH = struct.Struct("<Q")
_RECORD, _PIECES, _STYPE = "fedsub", "fedsub.pieces", "fedsub.bytes"


def pack(about: str, data: bytes = b"", piece: int = PIECE) -> RecordDict:
    if len(data) <= piece:
        return RecordDict({_RECORD: ConfigRecord({"about": about, "data": data})})
    pieces = {
        f"{at // piece:06d}": Array("uint8", (len(data[at : at + piece]),), _STYPE, data[at : at + piece])
        for at in range(0, len(data), piece)
    }
    return RecordDict({_RECORD: ConfigRecord({"about": about, "bytes": len(data)}), _PIECES: ArrayRecord(pieces)})


def fold(letters: Sequence[bytes]) -> bytes:
    """Several letters as one: of each its length, u64, and itself."""
    return b"".join(part for letter in letters for part in (_LENGTH.pack(len(letter)), letter))


def unfold(data: bytes) -> list[bytes]:
    """The letters that `fold` put together; WireError if it did not."""
    found, at = [], 0
    while at < len(data):
        begin = at + _LENGTH.size
        at = begin + (_LENGTH.unpack_from(data, at)[0] if begin <= len(data) else 1)
        if at > len(data):
            raise WireError("Letters that came together end in the middle of one; they are left out.")
        found.append(data[begin:at])
    return found


def refusal(about: str, why: str) -> RecordDict:
    """A node's answer that it cannot give one."""
    return RecordDict({_RECORD: ConfigRecord({"about": about, "data": why.encode()[:4096]})})


def unpack(content: RecordDict, most: int = MOST) -> tuple[str, bytes]:
    """(what it is about, the letter); WireError if it is not what `pack` made."""
    record = content.config_records.get(_RECORD)
    about: Any = record.get("about") if record is not None else None
    if record is None or not isinstance(about, str):
        raise WireError("A message came that fedsub did not write; it is left out.")
    data: Any = record.get("data")
    if not isinstance(data, bytes):
        pieces = content.array_records.get(_PIECES)
        if pieces is None or [*pieces] != [f"{k:06d}" for k in range(len(pieces))]:
            raise WireError("A message came without its pieces, or with others; it is left out.")
        if (size := sum(len(piece.data) for piece in pieces.values())) != record.get("bytes"):
            raise WireError(f"A message announces {record.get('bytes')} bytes and has {size}; it is left out.")
        if size > most:
            raise _too_large(size, most)
        data = b"".join(piece.data for piece in pieces.values())
    if len(data) > most:
        raise _too_large(len(data), most)
    return about, data


class TooLarge(WireError):
    """A letter above what is taken."""


def _too_large(size: int, most: int) -> TooLarge:
    return TooLarge(f"A message has {size:,} bytes, and this side takes up to {most:,} (most); it is left out.")
