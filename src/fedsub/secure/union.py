"""Private set union and exact counts, over a secure sum: what some clients hold together, without who holds what.

Union (Niu et al., 2020): a client puts a uniform random non-zero element of the ring at each of its indices and 0
elsewhere; the union is where the sum is not 0. Nothing outside it can show up; an index that two or more clients hold
is missed with a chance below 1/R, R = 2^bits. Counts put a 1 there instead, in a ring that holds all clients.

The vector is as long as the table: what a client sends is bits/8 bytes for every row, held or not.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedsub.errors import DataError
from fedsub.secure.client import SecureClient
from fedsub.secure.driver import Network, run_protocol
from fedsub.secure.ring import TYPES, Array, Segment
from fedsub.secure.server import SecureServer, Summed
from fedsub.secure.setting import Setting

ROWS = "rows"


def private_union(
    rows: Mapping[int, Array], length: int, *, run: int, round: int, bits: int = 32,
    words: Mapping[int, Array] | None = None, network: Network | None = None, **plan: Any,
) -> tuple[Array, Summed]:  # fmt: skip
    """(the sorted rows that the survivors hold together, the sum). ``words``: 64 random bits for every row of every
    client, of `fedsub.rng` in a simulation; the system's randomness without. ``plan`` as in `Setting.plan`."""
    values = {
        client: union_values(held, length, bits, words[client] if words is not None else os_words(len(held)))
        for client, held in rows.items()
    }
    summed = _sum(values, Segment(ROWS, length, bits), run, round, network, plan)
    return summed.sums[ROWS].nonzero()[0], summed


def secure_counts(
    rows: Mapping[int, Array], length: int, *, run: int, round: int, bits: int | None = None,
    network: Network | None = None, **plan: Any,
) -> tuple[Array, Summed]:  # fmt: skip
    """(how many of the survivors hold each row, int64 [length], the sum)."""
    bits = next(b for b in TYPES if len(rows) < 2**b) if bits is None else bits
    values = {client: count_values(held, length, bits) for client, held in rows.items()}
    summed = _sum(values, Segment(ROWS, length, bits, most=1), run, round, network, plan)
    return summed.sums[ROWS].astype(np.int64), summed


def union_values(held: Array, length: int, bits: int, words: Array) -> Array:
    """A client's vector for the union: 1 + (word mod 2^bits − 1) at its rows; its bias is below 2^(bits−64)."""
    out = np.zeros(length, TYPES[bits])
    out[_checked(held, length)] = (np.asarray(words, np.uint64) % np.uint64(2**bits - 1) + np.uint64(1)).astype(
        TYPES[bits]
    )
    return out


def count_values(held: Array, length: int, bits: int) -> Array:
    """A client's vector for counts."""
    out = np.zeros(length, TYPES[bits])
    out[_checked(held, length)] = 1
    return out


def os_words(count: int) -> Array:
    return np.frombuffer(os.urandom(8 * count), np.uint64)


def _checked(held: Array, length: int) -> Array:
    held = np.asarray(held, np.int64)
    if len(held) and (held[0] < 0 or held[-1] >= length or (np.diff(held) <= 0).any()):
        raise DataError(f"A client's rows must be ascending, once each, and from 0 to {length - 1}.")
    return held


def _sum(
    values: Mapping[int, Array], segment: Segment, run: int, round: int, network: Network | None, plan: dict[str, Any]
) -> Summed:
    setting = Setting.plan(run, round, tuple(values), (segment,), **plan)
    clients = {number: SecureClient(setting, number, {segment.name: value}) for number, value in values.items()}
    return run_protocol(clients, SecureServer(setting), network)
