"""What all codecs share: flat segments, error feedback, and the message on the wire."""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Mapping, Sequence
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
from fedsub.method.part import Message, Part, Work
from fedsub.method.slots import Method
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
        if self.feedback and method.sampler.may_repeat:
            raise MethodError(
                f"{type(self).__name__} adds what it left out before, and a client that is drawn twice in a round "
                "(replacement=True) would send that twice; sample without replacement, or set feedback=False."
            )

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
        written: list[Coded] = []
        for name, update in message.trees["update"].items():
            p = update if kept is None else update + kept[name]
            real = _real(name, p, work)
            x = self._segments(name, p if real is None else p[real], work.group, work.words, padded=real is not None)
            coded = self.compress(x)
            size += coded.size
            written.append(coded)
            sent[name] = _back(coded.sent, p, real)
            if kept is not None:
                residual[name] = p - sent[name]
                if real is not None:  # of a row that is never written nothing is owed
                    residual[name][~real] = 0
        message.trees["update"], message.encoded = sent, size
        if work.group.count == 1:
            message.written = lambda: self._joined(written, work.words)
        if kept is not None:
            work.client[self.key]["residual"] = residual

    def encode(self, values: Tree, word: int = 0) -> bytes:
        """The message of one client that is to send ``values``, update plus residual; ``word`` is its `Work.words`."""
        words, group = np.array([word], np.uint64), Group(1, False)
        return self._joined([self.compress(self._segments(name, p, group, words)) for name, p in values.items()], words)

    def _joined(self, coded: Sequence[Coded], words: np.ndarray | None) -> bytes:
        head = raw(words) if self.header and words is not None else b""
        return head + b"".join(map(self.write, coded))

    def decode(self, data: bytes, like: Mapping[str, Tensor], padding: Collection[str] = ()) -> Tree:
        """What the server makes of a message; ``like`` has the names, shapes and types of the client's submodel.

        The first row of the tables in ``padding`` was never written, and is 0.
        """
        reader, group = Reader(data), Group(1, False)
        words = reader.take(np.uint64, 1) if self.header else None
        found: Tree = {}
        for name, p in like.items():
            written = p[1:] if name in padding else p
            blank = self._segments(name, torch.zeros_like(written), group, words)
            values = torch.from_numpy(self.read(reader, blank)).reshape(written.shape)
            found[name] = torch.cat([torch.zeros_like(p[:1]), values]) if name in padding else values
        if reader.left:
            raise DataError(f"A message has {reader.left} bytes after its last parameter; is it another model's?")
        return found

    def _segments(
        self, name: str, p: Tensor, group: Group, words: np.ndarray | None, *, padded: bool = False
    ) -> Segments:
        """A parameter of a group as a vector; ``padded``: without every client's first row."""
        if p.dtype not in (torch.float32, torch.float64):
            raise MethodError(
                f"{type(self).__name__} compresses float32 and float64, but {name} is {p.dtype}; convert the module, "
                "for example by module.float()."
            )
        values = p.detach().cpu().contiguous().numpy().reshape(-1)
        if group.stacked and name in group.counts:
            sizes = (group.counts[name].cpu().numpy() - padded) * math.prod(p.shape[1:])
        else:
            sizes = np.full(group.count, len(values) // group.count)
        return Segments(values, sizes, words, zlib.crc32(f"{self.key}/{name}".encode()))


def _real(name: str, p: Tensor, work: Work) -> Tensor | None:
    """The rows of a table that mean something, as a mask; None: all of them. Padding is every client's first row."""
    if name not in work.padding:
        return None
    real, group = torch.ones(len(p), dtype=torch.bool, device=p.device), work.group
    counts = group.counts[name] if group.stacked else torch.tensor([len(p)], device=p.device)
    real[torch.cumsum(counts, 0) - counts] = False
    return real


def _back(values: np.ndarray, like: Tensor, real: Tensor | None) -> Tensor:
    """Decoded values in the shape of a parameter, 0 where nothing was written."""
    if real is None:
        return torch.from_numpy(values).reshape(like.shape).to(like.device)
    out = torch.zeros_like(like)
    out[real] = torch.from_numpy(values).reshape(-1, *like.shape[1:]).to(like.device)
    return out


def bit_bytes(sizes: np.ndarray) -> np.ndarray:
    """Bytes of that many bits."""
    return (sizes + 7) // 8
