"""What some clients hold together, without who holds what, over a secure sum: `Uniting` and `Counting`.

Union (Niu et al., 2020): a client puts a uniform random non-zero element of the ring at each of its indices and 0
elsewhere; the union is where the sum is not 0. Nothing outside it can show up; an index that two or more clients hold
is missed with a chance below 1/R, R = 2^bits. Counts put a 1 there instead, in a ring that holds all clients: they tell
more, and take a quarter of the bytes.

The vector is as long as the tables: what a client sends is bits/8 bytes for every row, held or not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fedsub.errors import DataError
from fedsub.secure.client import SecureClient
from fedsub.secure.driver import Network, run_protocol
from fedsub.secure.ring import TYPES, Array, Segment
from fedsub.secure.server import SecureServer, Summed
from fedsub.secure.setting import Setting

ROWS = "rows"
RowSets = Mapping[str, Array]  # by space: ascending rows
Found = tuple[dict[str, Array], dict[str, Array]]  # by space: the rows that somebody holds, and how many do


def os_words(count: int) -> Array:
    """The system's randomness."""
    return np.frombuffer(os.urandom(8 * count), np.uint64)


class Asking(Protocol):
    """How some clients are asked for their rows together."""

    @property
    def segments(self) -> tuple[Segment, ...]: ...
    def values(self, held: RowSets, words: Callable[[int], Array] = os_words) -> dict[str, Array]:
        """A client's vector by segment; ``words`` gives random words, as many as it is asked for."""
        ...

    def found(self, sums: Mapping[str, Array]) -> Found:
        """What the sums say; no counts where they tell none."""
        ...


@dataclass(frozen=True)
class Counting:
    """How many of so many ``people`` hold each row; ``rows`` says how many each space has."""

    rows: Mapping[str, int]
    people: int
    bits: int | None = None  # None: the smallest ring that holds everybody

    @property
    def segments(self) -> tuple[Segment, ...]:
        bits = next(bits for bits in TYPES if self.people < 2**bits) if self.bits is None else self.bits
        return tuple(Segment(space, size, bits, most=1) for space, size in self.rows.items())

    def values(self, held: RowSets, words: Callable[[int], Array] = os_words) -> dict[str, Array]:
        out = {}
        for segment in self.segments:
            out[segment.name] = np.zeros(segment.length, segment.dtype)
            out[segment.name][_checked(held[segment.name], segment.length)] = 1
        return out

    def found(self, sums: Mapping[str, Array]) -> Found:
        unions = {space: sums[space].nonzero()[0] for space in self.rows}
        return unions, {space: sums[space][rows].astype(np.int64) for space, rows in unions.items()}


@dataclass(frozen=True)
class Uniting:
    """Which rows somebody holds, and not how many do."""

    rows: Mapping[str, int]
    bits: int = 32

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(Segment(space, size, self.bits) for space, size in self.rows.items())

    def values(self, held: RowSets, words: Callable[[int], Array] = os_words) -> dict[str, Array]:
        drawn, out = self.drawn(held, words), {}
        for segment in self.segments:
            out[segment.name] = np.zeros(segment.length, segment.dtype)
            out[segment.name][_checked(held[segment.name], segment.length)] = drawn[segment.name]
        return out

    def drawn(self, held: RowSets, words: Callable[[int], Array] = os_words) -> dict[str, Array]:
        """What a client puts at its rows: 1 + (word mod 2^bits − 1); its bias is below 2^(bits−64)."""
        each, out, begin = words(sum(len(held[space]) for space in self.rows)), {}, 0
        for space in self.rows:
            own = np.asarray(each[begin : begin + len(held[space])], np.uint64)
            out[space] = (own % np.uint64(2**self.bits - 1) + np.uint64(1)).astype(TYPES[self.bits])
            begin += len(own)
        return out

    def found(self, sums: Mapping[str, Array]) -> Found:
        return {space: sums[space].nonzero()[0] for space in self.rows}, {}


def private_union(
    rows: Mapping[int, Array], length: int, *, run: int, round: int, bits: int = 32,
    words: Mapping[int, Array] | None = None, network: Network | None = None, **plan: Any,
) -> tuple[Array, Summed]:  # fmt: skip
    """(the sorted rows that the survivors hold together, the sum). ``words``: 64 random bits for every row of every
    client, of `fedsub.rng` in a simulation; the system's randomness without. ``plan`` as in `Setting.plan`."""
    given = {client: (lambda count, own=own: own[:count]) for client, own in (words or {}).items()}
    return _together(rows, Uniting({ROWS: length}, bits), run, round, given, network, plan)


def secure_counts(
    rows: Mapping[int, Array], length: int, *, run: int, round: int, bits: int | None = None,
    network: Network | None = None, **plan: Any,
) -> tuple[Array, Summed]:  # fmt: skip
    """(how many of the survivors hold each row, int64 [length], the sum)."""
    _, summed = _together(rows, Counting({ROWS: length}, len(rows), bits), run, round, {}, network, plan)
    return summed.sums[ROWS].astype(np.int64), summed


def _together(
    rows: Mapping[int, Array], asking: Asking, run: int, round: int, words: Mapping[int, Callable[[int], Array]],
    network: Network | None, plan: dict[str, Any],
) -> tuple[Array, Summed]:  # fmt: skip
    setting = Setting.plan(run, round, tuple(rows), asking.segments, **plan)
    clients = {
        client: SecureClient(setting, client, asking.values({ROWS: held}, words.get(client, os_words)))
        for client, held in rows.items()
    }
    summed = run_protocol(clients, SecureServer(setting), network)
    return asking.found(summed.sums)[0][ROWS], summed


def _checked(held: Array, length: int) -> Array:
    held = np.asarray(held, np.int64)
    if len(held) and (held[0] < 0 or held[-1] >= length or (np.diff(held) <= 0).any()):
        raise DataError(f"A client's rows must be ascending, once each, and from 0 to {length - 1}.")
    return held
