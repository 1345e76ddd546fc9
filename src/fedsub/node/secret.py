"""A node's side of rounds over a secure sum: its rows are counted, it trains on its part of the union, it adds.

The server says who takes part and which rows are summed; the node checks what it can before it tells anything: that a
round's rows are counted once, that its own are in the union, that the segments are those of its method, and the rule of
rows with its own threshold. It tells nothing in the clear.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from fedsub.errors import DataError, SecureSumError, WireError
from fedsub.method.codecs.wire import decode_rows
from fedsub.method.parts import SecureSum
from fedsub.node.summing import as_bytes, told_setting
from fedsub.round import wire
from fedsub.round.messages import MODEL, Downlink
from fedsub.round.quiet import one_thread
from fedsub.round.secure.attempts import Counted, Settings, checked
from fedsub.round.secure.vector import Array, Given, Ranges
from fedsub.secure import RowRule, Segment, Setting
from fedsub.secure.union import count_values

if TYPE_CHECKING:
    from fedsub.node.node import Node

SECURE = (wire.COUNT_ROWS, wire.UNION, wire.ADD_UP)


class SecretSums:
    """What a node remembers of one round."""

    def __init__(self, node: Node):
        self.node = node
        self.secure = next((part for part in node.method.parts if isinstance(part, SecureSum)), None)
        self.round = 0  # the last whose rows were counted
        self.counted: Counted | None = None
        self.trained: tuple[Ranges, Given] | None = None

    def answer(self, message: wire.Envelope) -> bytes:
        letters = self.node.letters
        if self.secure is None or letters is None:
            raise WireError("A message of a secure round came, and this node's method has none; refused.")
        if (message.run, message.client) != (letters.run, self.node.number):
            raise WireError(f"A message of run {message.run} for client {message.client} came; refused.")
        if message.kind == wire.COUNT_ROWS:
            return self._count(message)
        if message.kind == wire.UNION and not letters.schema.spaces and message.round > self.round:
            self._begin(message.round, np.zeros(0, np.int64))  # there are no rows to be counted first
        if message.round != self.round:
            raise WireError(f"A task of round {message.round} came, and round {self.round} was counted; refused.")
        return self._train(message) if message.kind == wire.UNION else self._add(message)

    def _count(self, message: wire.Envelope) -> bytes:
        assert self.node.letters is not None
        if message.round <= self.round:
            raise WireError(f"The rows of round {message.round} were counted, or are of the past; refused.")
        setting, spaces = self._setting(message), self.node.letters.schema.spaces
        people = len(setting.participants)
        bits = next(bits for bits in (8, 16, 32, 64) if people < 2**bits)
        sizes = {space: self.node.letters.rows[space] for space in spaces}
        if setting.segments != tuple(Segment(space, sizes[space], bits, most=1) for space in spaces):
            raise WireError("A count of rows came over other tables than this node's; refused.")
        held = self.node.held
        values = {space: count_values(held[space], sizes[space], bits) for space in spaces}
        hello = self.node.begin(setting, values)
        self._begin(message.round, np.array(setting.participants))
        return hello

    def _begin(self, round: int, people: Array) -> None:
        none = np.zeros(0, np.int64)
        self.counted = Counted(people, {}, {}, none, none)
        self.round, self.trained = round, None

    def _train(self, message: wire.Envelope) -> bytes:
        node, letters = self.node, self.node.letters
        assert letters is not None
        assert self.counted is not None
        assert self.secure is not None
        spaces = letters.schema.spaces
        if self.trained is not None or (spaces and (node.sum is None or node.sum.waits)):
            raise WireError(f"Round {message.round} was trained already, or not counted to its end; refused.")
        if spaces and node.sum is not None:
            there = node.sum.listed[-1]  # those whose rows are in the counts: they agreed on this list
            self.counted.clients = self.counted.clients[there]
        unions = self._rows(message, {space: letters.rows[space] for space in letters.schema.spaces})
        for space, union in unions.items():
            if not np.isin(node.held[space], union).all():
                raise WireError(f"Rows that this node holds are missing in the union of {space!r}; refused.")
        heaviest = float(message.tensors["heaviest"])
        counts = {space: len(union) for space, union in unions.items()}
        down, accepted = letters.read_down(as_bytes(message, "down"), node.number, counts)
        if down.round != message.round or down.probe:
            raise WireError("What came is not the round's task; refused.")
        self.counted.unions.update(unions)
        with one_thread():
            uplink = node.train(self._own(down, unions), accepted)
        if uplink.refused[0]:
            return letters.write_up(uplink, message.round)
        weight = uplink.sums["weight"]
        if not weight[0] <= heaviest < 2**53:
            raise WireError(f"The largest weight came as {heaviest:g}, and this node has {weight[0]:g}; refused.")
        assert node.half is not None
        ranges = Ranges.of(self.secure, letters.schema, node.params, np.append(weight, heaviest), node.half.seed)
        own = {space: np.array([len(node.held[space])]) for space in unions}
        [(_, given)] = ranges.split(uplink, own, message.round)
        self.trained = ranges, given
        return wire.write(wire.Envelope(wire.UNION, message.round, node.number, run=letters.run))

    def _own(self, down: Downlink, unions: dict[str, Array]) -> Downlink:
        """This node's part of what everybody is sent."""
        at = {space: torch.from_numpy(np.searchsorted(u, self.node.held[space])) for space, u in unions.items()}
        tables = self.node.problem.tables
        trees = {
            tree: {n: v[at[tables[n].name]] if n in tables else v for n, v in values.items()}
            for tree, values in down.trees.items()
        }
        counts = {space: np.array([count]) for space, count in self.node.counts.items()}
        return Downlink(down.round, down.who, counts, {MODEL: {}, **trees}, down.numbers)

    def _add(self, message: wire.Envelope) -> bytes:
        if self.trained is None or self.counted is None or self.secure is None:
            raise WireError(f"Nothing was trained in round {message.round} that could be added; refused.")
        ranges, given = self.trained
        setting, unions = self._setting(message), self.counted.unions
        places = self._rows(message, {space: max(len(union), 1) for space, union in unions.items()})
        spare = message.tensors.get("spare")
        if spare is None or spare.shape != () or spare.dtype != torch.int64:
            raise WireError("A sum of values came that does not say how many may be missing; refused.")
        threshold = self.secure.rows_threshold
        rules = {s: RowRule(unions[s][at], threshold, int(spare)) for s, at in places.items()}
        if setting.segments != ranges.segments({space: len(rule.rows) for space, rule in rules.items()}):
            raise WireError("A sum of values came over other segments than those of this node's method; refused.")
        try:
            checked(setting, rules, self.counted, threshold)
        except SecureSumError as err:
            raise WireError(str(err)) from err
        held, rows = self.node.held, {space: rule.rows for space, rule in rules.items()}
        return self.node.begin(setting, ranges.spread(given, held, rows))

    def _setting(self, message: wire.Envelope) -> Setting:
        assert self.secure is not None
        setting = told_setting(message, self.node.number)
        Settings(self.secure, message.run, signed=self.node.identity is not None).check(setting)
        return setting

    def _rows(self, message: wire.Envelope, sizes: dict[str, int]) -> dict[str, Array]:
        try:
            return {space: decode_rows(as_bytes(message, f"rows/{space}"), size) for space, size in sizes.items()}
        except DataError as err:
            raise WireError(str(err)) from err
