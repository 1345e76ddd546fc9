"""What all codecs share: flat segments, error feedback, and the message on the wire."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedsub import rng
from fedsub.checks import check_flag
from fedsub.errors import DataError, MethodError
from fedsub.method.codecs.wire import Reader, raw
from fedsub.method.groups import Group
from fedsub.method.slots import Message, Method, Part, Work
from fedsub.trees import Tree

_BLOCK = 1 << 15  # values hashed at a time: what the mixer makes on the way stays in the cache


@dataclass(frozen=True)
class Segments:
    """One parameter of a group as a vector, client after client. This is how a group lies in memory anyway.

    Every result for a client is the same bit for bit whoever shares its group: sums run over its own values
    in their own order, and draws depend on the client's word and the place within the client.
    """

    values: np.ndarray  # [Σ d_i]
    sizes: np.ndarray  # d_i, int64 [c]
    words: np.ndarray | None = None  # uint64 [c], one per client and round
    purpose: int = 0  # keeps the draws of parameters apart

    @cached_property
    def ends(self) -> np.ndarray:
        return np.cumsum(self.sizes)

    @cached_property
    def starts(self) -> np.ndarray:
        return self.ends - self.sizes

    @cached_property
    def owners(self) -> np.ndarray:
        """The client of each value, [Σ d_i]."""
        return self.spread(np.arange(len(self.sizes)))

    def reduce(self, ufunc: np.ufunc, values: np.ndarray) -> np.ndarray:
        """One number per client, [c]; 0 for a client without values."""
        held = self.sizes > 0
        out = np.zeros(len(self.sizes), values.dtype)
        if held.any():
            out[held] = ufunc.reduceat(values, self.starts[held])
        return out

    def spread(self, numbers: np.ndarray) -> np.ndarray:
        """A client's number at each of its values."""
        return np.repeat(numbers, self.sizes)

    def draws(self, at: np.ndarray | None = None) -> np.ndarray:
        """A random 64-bit word for every value, or for those at some places of the vector."""
        assert self.words is not None
        with np.errstate(over="ignore"):
            words = rng.key(self.words.view(np.int64), self.purpose)
            shifted = words - self.starts.astype(np.uint64)  # so that adding the place in the vector counts from 0
            if at is None:
                words = self.spread(shifted)
                words += np.arange(len(words), dtype=np.uint64)
            else:
                words = shifted[self.owners[at]]
                words += at.view(np.uint64)
            for start in range(0, len(words), _BLOCK):
                block = words[start : start + _BLOCK]
                block[:] = rng.mix(block)
        return words


@dataclass(frozen=True)
class Coded:
    """A compressed parameter of a group: what is decoded, the bytes it takes, and what `Codec.write` needs."""

    sent: np.ndarray  # [Σ d_i]
    size: np.ndarray  # bytes, int64 [c]
    fields: tuple[np.ndarray, ...]


class Codec(Part):
    """Compress the update: p = update (+ residual), send C(p) and, with feedback, keep p − C(p) for the next time.

    A subclass has `compress`, for a group, and `write` and `read`, for one client's bytes. NaN and infinity come
    out as such, so a client whose update is unusable can still be told; its residual must not be kept.
    """

    codec = True
    header = 0  # bytes per message
    feedback: bool

    @property
    def client_slots(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return ("residual",) if self.feedback else ()

    def check(self, method: Method) -> None:
        check_flag(f"feedback of {type(self).__name__}", self.feedback)

    def compress(self, x: Segments) -> Coded:
        raise NotImplementedError

    def write(self, coded: Coded) -> bytes:
        raise NotImplementedError

    def read(self, reader: Reader, blank: Segments) -> np.ndarray:
        """The values of one client's parameter; ``blank`` has its size, its type and its words."""
        raise NotImplementedError

    def finish(self, message: Message, params: Tree, work: Work) -> None:
        kept = work.client[self.key]["residual"] if self.feedback else None
        size = np.full(work.group.count, self.header, np.int64)
        sent: Tree = {}
        residual: Tree = {}
        for name, update in message.trees["update"].items():
            p = update if kept is None else update + kept[name]
            coded = self.compress(self._segments(name, p, work.group, work.words))
            size += coded.size
            sent[name] = torch.from_numpy(coded.sent).reshape(p.shape).to(p.device)
            if kept is not None:
                residual[name] = p - sent[name]
        message.trees["update"] = sent
        message.encoded = torch.from_numpy(size)
        if kept is not None:
            work.client[self.key]["residual"] = residual

    def encode(self, values: Tree, word: int = 0) -> bytes:
        """The message of one client that is to send ``values``, update plus residual; ``word`` is its `Work.words`."""
        words, group = np.array([word], np.uint64), Group(1, False)
        written = [self.write(self.compress(self._segments(name, p, group, words))) for name, p in values.items()]
        return (raw(words) if self.header else b"") + b"".join(written)

    def decode(self, data: bytes, like: Mapping[str, Tensor]) -> Tree:
        """What the server makes of a message; ``like`` has the names, shapes and types of the client's submodel."""
        reader, group = Reader(data), Group(1, False)
        words = reader.take(np.uint64, 1) if self.header else None
        found: Tree = {}
        for name, p in like.items():
            blank = self._segments(name, torch.zeros_like(p), group, words)
            found[name] = torch.from_numpy(self.read(reader, blank)).reshape(p.shape)
        if reader.left:
            raise DataError(f"A message has {reader.left} bytes after its last parameter; is it another model's?")
        return found

    def _segments(self, name: str, p: Tensor, group: Group, words: np.ndarray | None) -> Segments:
        if p.dtype not in (torch.float32, torch.float64):
            raise MethodError(
                f"{type(self).__name__} compresses float32 and float64, but {name} is {p.dtype}; convert the module, "
                "for example by module.float()."
            )
        values = p.detach().cpu().contiguous().numpy().reshape(-1)
        if group.stacked and name in group.counts:
            sizes = group.counts[name].cpu().numpy() * math.prod(p.shape[1:])
        else:
            sizes = np.full(group.count, len(values) // group.count)
        return Segments(values, sizes, words, zlib.crc32(f"{self.key}/{name}".encode()))


def bit_bytes(sizes: np.ndarray) -> np.ndarray:
    """Bytes of that many bits."""
    return (sizes + 7) // 8
