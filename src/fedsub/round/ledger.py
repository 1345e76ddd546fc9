"""Bytes: the lengths of the messages of a round, by client. One ledger for every family of methods.

A client is invited (down), names its rows (up), receives them (down) and returns what it computed (up). A simulation
computes the lengths without writing a byte; the tests write every message and compare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from fedsub.method.codecs.wire import row_id_bytes
from fedsub.method.groups import Cohort
from fedsub.objective.problem import Problem
from fedsub.round import wire
from fedsub.round.layout import Asked, asked_of
from fedsub.round.messages import Uplink
from fedsub.round.schema import Schema, lengths


def nobody() -> np.ndarray:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class RoundReport:
    """What a round did. Arrays are by client of the cohort."""

    clients: np.ndarray
    loss: float  # mean training loss over the clients that delivered; NaN if nobody was there
    down: np.ndarray  # bytes
    up: np.ndarray  # bytes; of a client that was lost only what it asked for
    lost: np.ndarray = field(default_factory=nobody)  # which of the cohort never delivered, by their places in it
    rejected: np.ndarray = field(default_factory=nobody)  # refused to send, for it held NaN or infinity
    probed: np.ndarray = field(default_factory=nobody)  # asked for their loss by the sampler
    probe_down: np.ndarray = field(default_factory=nobody)  # bytes, by probed client
    probe_up: np.ndarray = field(default_factory=nobody)

    @property
    def total_down(self) -> int:
        return int(self.down.sum() + self.probe_down.sum())

    @property
    def total_up(self) -> int:
        return int(self.up.sum() + self.probe_up.sum())


class RowBytes:
    """The bytes in which clients name their rows of a space; computed when a client is first met."""

    def __init__(self, population: int, rows: Mapping[str, int]):
        self.rows = rows
        self._known = {space: np.full(population, -1, np.int64) for space in rows}

    def __call__(self, space: str, clients: np.ndarray, asked: Callable[[], Asked]) -> np.ndarray:
        known = self._known[space]
        if (known[clients] < 0).any():
            found = asked()
            offsets = np.concatenate([[0], np.cumsum(found.counts)])
            known[clients] = row_id_bytes(offsets, found.rows, self.rows[space])
        return known[clients]


class Ledger:
    """Lengths of the messages of a method; ``pooled`` data is in one place and nothing travels."""

    def __init__(self, schema: Schema, population: int, rows: Mapping[str, int], *, pooled: bool = False):
        self.schema, self.pooled = schema, pooled
        self._row_bytes = RowBytes(population, {space: rows[space] for space in schema.spaces})
        self._empty = wire.length([])

    def asked(self, who: Cohort, asked: Mapping[str, Asked]) -> np.ndarray:
        """Up: which rows."""
        out = lengths(self.schema.rows(), {}, len(who))
        for space in self.schema.spaces:
            out += self._row_bytes(space, who.clients, lambda space=space: asked[space])
        return out * (not self.pooled)

    def down(self, counts: Mapping[str, np.ndarray], clients: int, *, probe: bool = False) -> np.ndarray:
        """To clients that hold so many rows of each space: the invitation, and what they asked for."""
        return (self._empty + lengths(self.schema.down(probe), counts, clients)) * (not self.pooled)

    def up(self, uplink: Uplink, counts: Mapping[str, np.ndarray], *, probe: bool = False) -> np.ndarray:
        """From clients that hold so many rows of each space."""
        again = uplink.who.repeats > 0
        out = lengths(self.schema.up(0, probe), counts, len(uplink))
        if again.any():
            out = np.where(again, lengths(self.schema.up(1, probe), counts, len(uplink)), out)
        if uplink.lengths is not None:
            out = out + uplink.lengths
        return np.where(uplink.refused, self._empty, out) * (not self.pooled)


def plain_bytes(problem: Problem, clients: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(which rows, down, up): bytes of each client in a round that carries the submodel both ways, and nothing else."""
    own = {n: p for n, p in problem.objective.module.named_parameters() if n in problem.names}
    schema = Schema((), {n: own[n] for n in problem.names}, {n: s.name for n, s in problem.tables.items()})
    ledger = Ledger(schema, len(problem.clients), {name: space.size for name, space in problem.spaces.items()})
    who, counts = Cohort.of(clients), {name: space.counts[clients] for name, space in problem.spaces.items()}
    return (
        ledger.asked(who, asked_of(problem.spaces, clients)),
        ledger.down(counts, len(who)),
        lengths(schema.up(), counts, len(who)),
    )
