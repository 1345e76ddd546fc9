"""Gaussian noise for every row, column and round of a table, none of which has to be drawn before it is read.

The noise of one entry over the rounds is a random walk W(t) with steps of variance 1. What a row has missed from the
end of round a to the end of round b is W(b) − W(a), of variance b − a, and it must not depend on when the row was read
in between: otherwise reading twice would show two noises over one sum. So W is a function of (key, parameter, row,
column, t) that can be looked into anywhere. Rounds are cut into blocks of 256. Of a block first the sum is drawn, of
variance 256, and then, where somebody looks inside, by halves, what the walk does at the middle given its ends
(P. Lévy's construction of Brownian motion: the middle of a stretch of l rounds has the mean of its ends and the
variance l/4 about it). One round costs nine normal numbers, a gap of k rounds at most k/256 + 17.

Where the random words come from is `Counted`, which anybody who knows the seed of the run can compute, for simulation;
or `Keyed`, ChaCha20 under a secret key, for a server whose noise protects somebody.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from fedsub import rng
from fedsub.errors import MethodError
from fedsub.privacy.chacha import blocks

BLOCK = 256  # rounds
AT_ONCE = 1 << 14  # numbers that are drawn together: they stay in the processor's cache
LEAST = 16  # bytes of a secret


class Words(Protocol):
    """Random words by parameter, row, node of the row's walk, and column."""

    def of(self, parameter: int, rows: np.ndarray) -> np.ndarray:
        """What `draw` needs of some rows (int64 [n]), [n, …]."""
        ...

    def draw(self, rows: np.ndarray, node: np.ndarray | int, count: int) -> np.ndarray:
        """``count`` words, which is even, of what `of` gave and a node (of each row, or one): uint64 [n, count]."""
        ...


@dataclass(frozen=True)
class Counted:
    """Words from SplitMix64 counters: fast and reproducible, but anybody who has the 63 bits of the seed has them."""

    seed: int

    def of(self, parameter: int, rows: np.ndarray) -> np.ndarray:
        return rng.key(self.seed, rng.NOISE, parameter, rows).view(np.int64)

    def draw(self, rows: np.ndarray, node: np.ndarray | int, count: int) -> np.ndarray:
        return rng.mix(rng.key(rows, node)[:, None] + np.arange(count, dtype=np.uint64))


@dataclass(frozen=True)
class Keyed:
    """Words from ChaCha20 under a secret key, whose nonce and counter name parameter, row, column and node."""

    key: bytes = field(repr=False)

    def of(self, parameter: int, rows: np.ndarray) -> np.ndarray:
        parts = np.broadcast_to(np.int64(parameter) << 16, rows.shape), rows & 0xFFFFFFFF, rows >> 32
        return np.stack(parts, 1).astype(np.uint32)

    def draw(self, rows: np.ndarray, node: np.ndarray | int, count: int) -> np.ndarray:
        each = -(-count // 8)
        place = np.empty((4, len(rows), each), np.uint32)
        place[:3] = rows.T[:, :, None]
        block = np.arange(each, dtype=np.uint32)
        place[0] |= block & 0xFFFF  # beside the parameter's 16 bits; what is more, above the row's upper 16
        place[2] |= block >> 16 << 16
        place[3] = np.broadcast_to(np.asarray(node), len(rows)).astype(np.uint32)[:, None]
        return blocks(self.key, place.reshape(4, -1)).reshape(len(rows), -1)[:, :count]


@dataclass(frozen=True)
class Secret:
    """A key that only the server has; what is kept of it in configurations is a fingerprint."""

    own: ClassVar[bool] = False  # whether noise follows from what is noised, too
    fingerprint: str
    key: bytes = field(repr=False, compare=False)

    @classmethod
    def of(cls, given: object) -> Secret:
        """From bytes, hexadecimal digits, or "env:NAME", the environment variable that holds such digits."""
        if isinstance(given, cls):
            return given
        text = given
        if isinstance(given, str) and given.startswith("env:"):
            text = os.environ.get(given[4:])
            if text is None:
                raise MethodError(f"secret={given!r}, but the environment has no variable {given[4:]}; set it.")
        try:
            raw = text if isinstance(text, bytes) else bytes.fromhex(str(text))
        except ValueError:
            raw = b""
        if len(raw) < LEAST:
            raise MethodError(
                f"secret must be at least {LEAST} random bytes, as bytes or as {2 * LEAST} or more hexadecimal digits, "
                "or env:NAME for an environment variable with such digits; make one with "
                'python -c "import secrets; print(secrets.token_hex(32))".'
            )
        return cls(_derive(raw, b"fingerprint").hex()[:16], raw)

    def words(self, seed: int, told: bytes = b"") -> Keyed:
        """Noise of the run with this seed; ``told`` names what is noised, where noise is to depend on it."""
        return Keyed(_derive(self.key, b"noise %d" % seed + told))

    def cohorts(self, seed: int) -> int:
        """The seed by which clients are drawn: who takes part must not be known either."""
        return int.from_bytes(_derive(self.key, b"cohorts %d" % seed)[:8], "big") >> 1


@dataclass(frozen=True)
class OwnSecret(Secret):
    """A key of one client alone, whose noise depends on what it is added to."""

    own: ClassVar[bool] = True


def _derive(key: bytes, purpose: bytes) -> bytes:
    return hmac.new(key, b"fedsub privacy " + purpose, hashlib.sha256).digest()


@dataclass(frozen=True)
class Walks:
    """W of every entry."""

    words: Words

    def rows(self, parameter: int, rows: np.ndarray, width: int, since: np.ndarray | int, until: int) -> np.ndarray:
        """W(until) − W(since) of some rows of ``width`` entries, float64 [n, width]; 0 ≤ since ≤ until."""
        out = np.empty((len(rows), width))
        many = max(1, AT_ONCE // max(1, width))
        for at in range(0, len(rows), many):
            some = slice(at, at + many)
            begun = since if isinstance(since, int) else since[some].astype(np.int64)
            out[some] = self._between(parameter, rows[some].astype(np.int64), width, begun, until)
        return out

    def dense(self, parameter: int, count: int, since: int, until: int) -> np.ndarray:
        """The same of ``count`` entries that are no rows, float64 [count]."""
        width = min(64, max(1, count))
        return self.rows(parameter, np.arange(-(-count // width)), width, since, until).reshape(-1)[:count]

    def _between(self, parameter: int, rows: np.ndarray, width: int, a: np.ndarray | int, b: int) -> np.ndarray:
        out, even = np.zeros((len(rows), width)), width + width % 2
        source = self.words.of(parameter, rows)

        def enter(weight: np.ndarray | float, node: np.ndarray | int) -> None:
            """Add ``weight`` normal numbers of a node of each row's walk."""
            some = np.flatnonzero(weight) if isinstance(weight, np.ndarray) else np.arange(len(rows) if weight else 0)
            if len(some) == len(rows):
                factor = weight[:, None] if isinstance(weight, np.ndarray) else weight
                out.__iadd__(factor * normal(self.words.draw(source, node, even), width))
            elif len(some):
                at, each = node[some] if isinstance(node, np.ndarray) else node, np.asarray(weight)[some, None]
                out[some] += each * normal(self.words.draw(source[some], at, even), width)

        first, last = a // BLOCK, b // BLOCK
        for block in range(int(np.min(first)), last + 1):  # the sums of whole blocks, and shares of those cut
            whole = math.sqrt(BLOCK)
            inside = (b % BLOCK) / BLOCK if block == last else 1.0
            enter(whole * ((first <= block) * inside - (first == block) * (a % BLOCK) / BLOCK), block * BLOCK)
        length = BLOCK
        while length > 1:  # stretches by halves, as far as they have an end of ours inside
            nth = BLOCK // length
            node_b, node_a = last * BLOCK + nth + b % BLOCK // length, first * BLOCK + nth + a % BLOCK // length
            of_a, of_b = _tent(a, length), _tent(b, length)
            same = node_a == node_b
            enter(of_b - same * of_a, node_b)
            enter((same - 1.0) * of_a, node_a)
            length //= 2
        return out


def _tent(t: np.ndarray | int, length: int) -> np.ndarray | float:
    """What of the displacement of the middle of its stretch is seen at t: 0 at the ends, all in the middle."""
    return (1 - abs(2 * (t % length) / length - 1)) * math.sqrt(length) / 2


def normal(words: np.ndarray, width: int) -> np.ndarray:
    """Standard normal numbers, two from two words (Box and Muller, 1958), float64 [n, width]."""
    share = torch.from_numpy(rng.uniform(words))  # torch has faster sines and logarithms than numpy
    half = share.shape[1] // 2
    radius = share[:, :half].neg().log1p_().mul_(-2.0).sqrt_()
    angle = share[:, half:].mul(2 * math.pi)
    out: Tensor = torch.cat([angle.cos().mul_(radius), angle.sin().mul_(radius)], 1)
    return out.numpy()[:, :width]
