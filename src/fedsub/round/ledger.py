"""Bytes: the lengths of the messages of a round, by client. One ledger for every family of methods.

A client is invited (down), names its rows (up), receives them (down) and returns what it computed (up). A simulation
computes the lengths without writing a byte; the tests write every message and compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fedsub.data.clients import Space
from fedsub.method.codecs.wire import row_id_bytes
from fedsub.method.groups import Cohort
from fedsub.objective.problem import Problem
from fedsub.round import wire
from fedsub.round.layout import Asked, asked_of
from fedsub.round.schema import Length, Schema

AT_ONCE = 1 << 22  # rows held by all clients together up to which the bytes of their ids are computed at the start


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
    measured: dict[str, float] = field(default_factory=dict)  # what else is told of the round, by name
    notes: tuple[str, ...] = ()  # and in sentences

    @property
    def total_down(self) -> int:
        return int(self.down.sum() + self.probe_down.sum())

    @property
    def total_up(self) -> int:
        return int(self.up.sum() + self.probe_up.sum())


class RowBytes:
    """The bytes in which clients name their rows of a space: of all at once, or of each when it is first met."""

    def __init__(self, population: int, rows: Mapping[str, int], spaces: Mapping[str, Space] | None = None):
        self.rows = rows
        self._known = {space: np.full(population, -1, np.int64) for space in rows}
        for name, known in self._known.items():
            if spaces is not None and len(spaces[name].rows) <= AT_ONCE:
                known[:] = row_id_bytes(spaces[name].row_offsets, spaces[name].rows, rows[name])

    def __call__(self, space: str, clients: np.ndarray, asked: Mapping[str, Asked]) -> np.ndarray:
        known = self._known[space]
        found = known[clients]
        if (found < 0).any():
            new = asked[space].take(np.flatnonzero(found < 0))
            offsets = np.concatenate([[0], np.cumsum(new.counts)])
            known[clients[found < 0]] = row_id_bytes(offsets, new.rows, self.rows[space])
            found = known[clients]
        return found


class Ledger:
    """Lengths of the messages of a method; ``pooled`` data is in one place and nothing travels.

    ``spaces`` are those of the clients' data, where a simulation has it.
    """

    def __init__(
        self, schema: Schema, population: int, rows: Mapping[str, int], *, pooled: bool = False,
        spaces: Mapping[str, Space] | None = None,
    ):  # fmt: skip
        self.schema, self.pooled = schema, pooled
        self._row_bytes = RowBytes(population, {space: rows[space] for space in schema.spaces}, spaces)
        self._empty = wire.length([])
        self._asked = Length(schema.rows())
        self._down = {probe: Length(schema.down(probe)) for probe in (False, True)}
        self._up = {(again, probe): Length(schema.up(int(again), probe)) for again in (0, 1) for probe in (False, True)}

    def asked(self, who: Cohort, asked: Mapping[str, Asked]) -> np.ndarray:
        """Up: which rows."""
        out = self._asked.of({}, len(who))
        for space in self.schema.spaces:
            out += self._row_bytes(space, who.clients, asked)
        return out * (not self.pooled)

    def down(
        self, counts: Mapping[str, np.ndarray], clients: int, *, probe: bool = False, invited: bool = True
    ) -> np.ndarray:
        """To clients that hold so many rows of each space: the invitation, and what they asked for."""
        return (self._empty * invited + self._down[probe].of(counts, clients)) * (not self.pooled)

    def up(
        self, who: Cohort, refused: np.ndarray, counts: Mapping[str, np.ndarray], lengths: np.ndarray | None = None, *,
        probe: bool = False,
    ) -> np.ndarray:  # fmt: skip
        """From clients that hold so many rows of each space; ``lengths`` are those of their encoded updates."""
        again = who.repeats > 0
        out = self._up[0, probe].of(counts, len(who))
        if again.any():
            out = np.where(again, self._up[1, probe].of(counts, len(who)), out)
        if lengths is not None:
            out = out + lengths
        if refused.any():
            out = np.where(refused, self._empty, out)
        return out * (not self.pooled)


def plain_bytes(problem: Problem, clients: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(which rows, down, up): bytes of each client in a round that carries the submodel both ways, and nothing else."""
    own = {n: p for n, p in problem.objective.module.named_parameters() if n in problem.names}
    schema = Schema((), {n: own[n] for n in problem.names}, {n: s.name for n, s in problem.tables.items()})
    ledger = Ledger(schema, len(problem.clients), {name: space.size for name, space in problem.spaces.items()})
    who, counts = Cohort.of(clients), {name: space.counts[clients] for name, space in problem.spaces.items()}
    return (
        ledger.asked(who, asked_of(problem.spaces, clients)),
        ledger.down(counts, len(who)),
        Length(schema.up()).of(counts, len(who)),
    )
