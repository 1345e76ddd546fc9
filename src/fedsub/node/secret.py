"""A node's side of rounds over a secure sum: its rows are counted, it trains on its part of the union, it adds.

The server says who takes part and which rows are summed; the node checks what it can before it tells anything: that a
round's rows are counted once, that its own are in the union, that the segments are those of its method, and the rule of
rows with its own threshold. It tells nothing in the clear, but for the rows that it names where its method perturbs
them: once a round, and by its own mechanism.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedsub.errors import DataError, SecureSumError, WireError
from fedsub.method.codecs.wire import decode_rows, encode_rows
from fedsub.method.parts import SecureSum
from fedsub.node.naming import Naming
from fedsub.node.summing import as_bytes, as_tensor, told_setting
from fedsub.round import wire
from fedsub.round.layout import Asked
from fedsub.round.messages import MODEL, Downlink
from fedsub.round.quiet import one_thread
from fedsub.round.secure.attempts import Counted, Settings, checked
from fedsub.round.secure.opening import asking
from fedsub.round.secure.vector import Array, Given, Ranges
from fedsub.secure import RowRule, Setting

if TYPE_CHECKING:
    from fedsub.node.node import Node

SECURE = (wire.COUNT_ROWS, wire.NAME_ROWS, wire.UNION, wire.ADD_UP)


class SecretSums:
    """What a node remembers of one round."""

    def __init__(self, node: Node):
        self.node = node
        self.secure = next((part for part in node.method.parts if isinstance(part, SecureSum)), None)
        self.round = 0  # the last whose rows were counted
        self.counted: Counted | None = None
        self.named: dict[str, Array] | None = None  # where rows are perturbed: what it said of this round's union
        self.trained: tuple[Ranges, Given] | None = None
        if self.secure is not None and (response := self.secure.perturbs) is not None:
            words = lambda space: node.heat.words(response, f"rows of {space}")  # noqa: E731
            self.naming = Naming(response, node.folder, words)

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
        if message.kind == wire.NAME_ROWS:
            return self._name(message)
        return self._train(message) if message.kind == wire.UNION else self._add(message)

    def _count(self, message: wire.Envelope) -> bytes:
        assert self.node.letters is not None
        if message.round <= self.round:
            raise WireError(f"The rows of round {message.round} were counted, or are of the past; refused.")
        assert self.secure is not None
        setting, spaces = self._setting(message), self.node.letters.schema.spaces
        asked = asking(self.secure, spaces, self.node.letters.rows, len(setting.participants))
        if setting.segments != asked.segments:
            raise WireError("A count of rows came over other tables than this node's, or of another kind; refused.")
        hello = self.node.begin(setting, asked.values(self.node.held))
        self._begin(message.round, np.array(setting.participants))
        return hello

    def _begin(self, round: int, people: Array) -> None:
        none = np.zeros(0, np.int64)
        self.counted = Counted(people, {}, {}, none, none)
        self.round, self.trained, self.named = round, None, None

    def _told(self, message: wire.Envelope) -> dict[str, Array]:
        """The union, once the sum that it comes of is over."""
        node, letters = self.node, self.node.letters
        assert letters is not None
        assert self.counted is not None
        spaces = letters.schema.spaces
        if self.trained is not None or (spaces and (node.sum is None or node.sum.waits)):
            raise WireError(f"Round {message.round} was trained already, or not counted to its end; refused.")
        if spaces and node.sum is not None:
            there = node.sum.listed[-1]  # those whose rows are in the counts: they agreed on this list
            self.counted.clients = self.counted.clients[there]
        return self._rows(message, {space: letters.rows[space] for space in spaces})

    def _name(self, message: wire.Envelope) -> bytes:
        """The rows of the union that this node wants, perturbed."""
        node, letters = self.node, self.node.letters
        assert letters is not None
        assert self.counted is not None
        if self.secure is None or self.secure.perturbs is None:
            raise WireError("This node names no rows by its method, and somebody asked for them; refused.")
        if self.named is not None:
            raise WireError(f"The rows of round {message.round} were named already; refused.")
        unions = self._told(message)
        padded = {space.name: space.padding for space in node.problem.spaces.values()}
        self.named = {
            space: self.naming.said(
                space, node.held[space], union, letters.rows[space], message.round, padded=padded[space]
            )
            for space, union in unions.items()
        }
        self.counted.unions.update(unions)
        rows = {
            f"rows/{space}": as_tensor(encode_rows(np.searchsorted(unions[space], said), max(len(unions[space]), 1)))
            for space, said in self.named.items()
        }
        return wire.write(wire.Envelope(wire.NAME_ROWS, message.round, node.number, run=letters.run, tensors=rows))

    def _train(self, message: wire.Envelope) -> bytes:
        node, letters = self.node, self.node.letters
        assert letters is not None
        assert self.counted is not None
        assert self.secure is not None
        heaviest, left = self._heaviest(message), None
        if self.secure.perturbs is None:
            rows = self._told(message)
            for space, union in rows.items():
                if not np.isin(node.held[space], union).all():
                    raise WireError(f"Rows that this node holds are missing in the union of {space!r}; refused.")
        else:
            if self.named is None or self.trained is not None:
                raise WireError(f"Round {message.round} was trained already, or no rows were named in it; refused.")
            rows = self.named
        counts = node.counts | {space: len(some) for space, some in rows.items()}
        down, accepted = letters.read_down(as_bytes(message, "down"), node.number, counts)
        if down.round != message.round or down.probe:
            raise WireError("What came is not the round's task; refused.")
        assert node.half is not None
        if self.secure.perturbs is None:
            self.counted.unions.update(rows)
            down = self._own(down, rows)
        else:
            came = {space: Asked(some, np.array([len(some)], np.int64)) for space, some in rows.items()}
            left = node.half.narrowed(down.who, came, node.own)
            down = node.half.put_aside(down, left.held)
        assert node.store is not None
        node.store.forget(message.accepted)
        with one_thread():
            uplink = node.train(down, accepted, left)
        if uplink.refused[0]:
            return letters.write_up(uplink, message.round)
        weight = uplink.sums["weight"]
        heavy, seed, needs_held = np.append(weight, heaviest), node.half.seed, node.method.average.needs_held
        ranges = Ranges.of(self.secure, letters.schema, node.params, heavy, seed, needs_held=needs_held)
        own = {space: down.counts[space] for space in rows}
        [(_, given)] = ranges.split(uplink, own, message.round, None if left is None else left.held)
        self.trained = ranges, given
        return wire.write(wire.Envelope(wire.UNION, message.round, node.number, run=letters.run))

    def _heaviest(self, message: wire.Envelope) -> float:
        """The largest weight of all clients. It is held against what this node weighs with all its samples, which the
        server knows: were it against those that are left, a refusal would tell how many that are."""
        told, own = message.tensors.get("heaviest"), self.node.method.average.weight(np.array([self.node.samples]))[0]
        if told is None or told.shape != () or not own <= float(told) < 2**53:
            came = "nothing" if told is None or told.shape != () else f"{float(told):g}"
            raise WireError(f"The largest weight came as {came}, and this node has {own:g}; refused.")
        return float(told)

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
        rules, counted = {s: RowRule(unions[s][at], threshold, int(spare)) for s, at in places.items()}, self.counted
        if setting.segments != ranges.segments({space: len(rule.rows) for space, rule in rules.items()}):
            raise WireError("A sum of values came over other segments than those of this node's method; refused.")
        if self.named is not None:  # rows were named one by one: counts are of those who take part now
            stay = np.isin(counted.clients, setting.participants)
            counted = replace(counted, clients=counted.clients[stay])
        try:
            checked(setting, rules, counted, threshold)
        except SecureSumError as err:
            raise WireError(str(err)) from err
        held, rows = self.named or self.node.held, {space: rule.rows for space, rule in rules.items()}
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
