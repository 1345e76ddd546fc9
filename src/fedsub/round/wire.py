"""Messages as bytes: a versioned head, plain tensors, and a digest. Little-endian, nothing executable.

    magic "fsub" | version u16 | kind u8 | flags u8 | run u64 | round u64 | client u64 | accepted u64 | repeat u32
    | tensors u32
    per tensor: bytes of its name u16 | type u8 | dimensions u8 | each u64 | the name, UTF-8
    the tensors' values, one behind the other
    digest: BLAKE2b of all that, 16 bytes

The digest tells a damaged message from a whole one; it does not tell who wrote it, which is the transport's part (TLS,
keys). Every length is checked against the bytes that are there before memory is taken.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from fedsub.errors import WireError

MAGIC, VERSION = b"fsub", 1
HELLO, WELCOME, INVITE, ROWS, DOWN, UP, ASK_HEAT, TELL_HEAT = range(1, 9)  # kinds
COUNT_ROWS, UNION, ADD_UP, ADD_HEAT, NAME_ROWS = range(20, 25)  # kinds of rounds over a secure sum, of heat by one
REFUSED, ALL_DATA, ONE_BATCH = 1, 2, 4  # flags: of an uplink; of a downlink that only asks for the loss

_HEAD = struct.Struct("<4sHBBQQQQII")
_ENTRY, _LENGTH = struct.Struct("<HBB"), struct.Struct("<Q")
_DIGEST = 16
_MOST_DIMENSIONS = 8
_MOST = 1 << 62  # bytes of a tensor, empty dimensions counted as 1: torch and numpy count them in int64
TYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)  # fmt: skip
Expected = dict[str, tuple[torch.dtype, tuple[int | None, ...]]]  # types and shapes; None stands for any length
_CODES = {dtype: code for code, dtype in enumerate(TYPES)}


@dataclass(frozen=True)
class Envelope:
    """One message of one client.

    ``run`` keeps those of different runs apart; ``accepted`` tells a client the last of its rounds that entered the
    model, so that a lost answer does not fork what it keeps.
    """

    kind: int
    round: int
    client: int
    repeat: int = 0
    run: int = 0
    flags: int = 0
    accepted: int = 0
    tensors: dict[str, Tensor] = field(default_factory=dict)


def write(message: Envelope) -> bytes:
    """The bytes of a message."""
    parts = [
        _HEAD.pack(
            MAGIC, VERSION, message.kind, message.flags, message.run, message.round, message.client, message.accepted,
            message.repeat, len(message.tensors),
        )
    ]  # fmt: skip
    values = []
    for name, tensor in message.tensors.items():
        label = name.encode()
        parts += [_ENTRY.pack(len(label), _CODES[tensor.dtype], tensor.ndim)]
        parts += [_LENGTH.pack(size) for size in tensor.shape]
        parts += [label]
        if tensor.numel():
            values.append(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    body = b"".join([*parts, *values])
    return body + blake2b(body, digest_size=_DIGEST).digest()


def length(tensors: Iterable[tuple[str, int]]) -> int:
    """The bytes of a message besides its tensors' values; of each tensor the name and the number of dimensions."""
    return _HEAD.size + _DIGEST + sum(_ENTRY.size + _LENGTH.size * ndim + len(name.encode()) for name, ndim in tensors)


def read(data: bytes, kind: int | None = None) -> Envelope:
    """The message that `write` made into bytes, or WireError that says what is wrong with it."""
    if len(data) < _HEAD.size + _DIGEST:
        raise WireError(
            f"A message has at least {_HEAD.size + _DIGEST} bytes, this one has {len(data)}; send it again."
        )
    if data[:4] != MAGIC:
        raise WireError(f"A message begins with {MAGIC!r}, this one with {bytes(data[:4])!r}: it is none of fedsub's.")
    _, version, found, flags, run, round, client, accepted, repeat, count = _HEAD.unpack_from(data)
    if version != VERSION:
        raise WireError(f"The message is of version {version}, this fedsub reads {VERSION}; install the same on both.")
    if max(run, round, client, accepted) >= 2**63:
        raise WireError(f"A message holds the number {max(run, round, client, accepted)}; they end at 2^63.")
    if blake2b(data[:-_DIGEST], digest_size=_DIGEST).digest() != data[-_DIGEST:]:
        raise WireError(f"The digest of a message of {len(data)} bytes does not fit: it was damaged; send it again.")
    if kind is not None and found != kind:
        raise WireError(f"Expected a message of kind {kind}, got kind {found}.")
    names, at = _entries(data, count)
    tensors: dict[str, Tensor] = {}
    for name, (dtype, shape, size) in names.items():
        tensors[name] = _tensor(data, at, dtype, shape, size)
        at += size
    if at != len(data) - _DIGEST:
        raise WireError(f"A message has {len(data) - _DIGEST - at} bytes more than its tensors take.")
    return Envelope(found, round, client, repeat, run, flags, accepted, tensors)


def run_of(data: bytes) -> int:
    """The run that a message says it is of, before it is read."""
    if len(data) < _HEAD.size or data[:4] != MAGIC:
        raise WireError("A message came that is none of fedsub's.")
    return _HEAD.unpack_from(data)[4]


def _entries(data: bytes, count: int) -> tuple[dict[str, tuple[torch.dtype, tuple[int, ...], int]], int]:
    """The tensors that a message announces, and where their values begin; they fit into the bytes there are."""
    names: dict[str, tuple[torch.dtype, tuple[int, ...], int]] = {}
    at, end, promised = _HEAD.size, len(data) - _DIGEST, 0
    for _ in range(count):
        if at + _ENTRY.size > end:
            raise WireError(f"A message announces {count} tensors and ends in the middle of them.")
        size, code, ndim = _ENTRY.unpack_from(data, at)
        at += _ENTRY.size
        if code >= len(TYPES) or ndim > _MOST_DIMENSIONS:
            raise WireError(f"A message holds a tensor of type {code} and {ndim} dimensions, which there is not.")
        if at + _LENGTH.size * ndim + size > end:
            raise WireError(f"A message announces {count} tensors and ends in the middle of them.")
        shape = tuple(_LENGTH.unpack_from(data, at + _LENGTH.size * i)[0] for i in range(ndim))
        at += _LENGTH.size * ndim
        try:
            name = bytes(data[at : at + size]).decode()
        except UnicodeDecodeError as err:
            raise WireError("The name of a tensor is no text; the message was not written by fedsub.") from err
        at += size
        if math.prod(max(n, 1) for n in shape) * TYPES[code].itemsize >= _MOST:
            raise WireError(f"A message holds a tensor of the shape {list(shape)}, larger than any there is.")
        nbytes = math.prod(shape) * TYPES[code].itemsize
        promised += nbytes
        if name in names or promised > end - at:
            seen = "names a tensor twice" if name in names else f"announces {promised} bytes and has {end - at}"
            raise WireError(f"A message {seen}: {name[:80]!r}.")
        names[name] = TYPES[code], shape, nbytes
    return names, at


def _tensor(data: bytes, at: int, dtype: torch.dtype, shape: tuple[int, ...], size: int) -> Tensor:
    if not size:
        return torch.zeros(shape, dtype=dtype)
    raw = torch.from_numpy(np.frombuffer(data, np.uint8, size, at).copy())
    if dtype == torch.bool and bool((raw > 1).any()):
        raise WireError("A message holds truth values other than 0 and 1.")
    return raw.view(dtype).reshape(shape)


def check(message: Envelope, expected: Expected, **head: int) -> None:
    """Refuse a message that is not what was waited for: its head, its tensors, their types and shapes."""
    for name, wanted in head.items():
        if (seen := getattr(message, name)) != wanted:
            raise WireError(f"Expected a message of {name} {wanted}, got one of {name} {seen}; it is left out.")
    if message.tensors.keys() != expected.keys():
        odd = sorted(message.tensors.keys() ^ expected.keys())
        side = "it lacks" if odd[0] in expected else "it has"
        raise WireError(f"A message does not hold what the method sends: {side} {odd[0]!r}; run one method on both.")
    for name, (dtype, shape) in expected.items():
        tensor = message.tensors[name]
        fits = tensor.ndim == len(shape) and all(w in (None, n) for n, w in zip(tensor.shape, shape, strict=True))
        if tensor.dtype != dtype or not fits:
            raise WireError(
                f"{name} came as {tensor.dtype} {list(tensor.shape)}, expected {dtype} {list(shape)}; it is left out."
            )
