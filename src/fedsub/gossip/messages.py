"""Bytes of gossip: which messages nodes write to each other, and how long they are, without writing them.

    ask      which segment is asked for, and the ids of the rows that the asking node holds of it
    answer   a bit for each of them, whether the asked node holds it too, and the values of those; its weight or degree
    chunk    a piece of the sum that goes round in an all-reduce

On a graph that stays a node names its rows of a segment when it first asks a neighbour for that segment, and never
again; bits are not needed then, and with Metropolis weights nobody has to be asked. Degrees of rows are told again in
rounds in which a neighbour is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedsub.data.renumber import concatenated
from fedsub.gossip.network import Meeting, Network
from fedsub.gossip.segments import even
from fedsub.method.codecs.wire import row_id_bytes
from fedsub.round import wire
from fedsub.round.schema import Field, Length, Schema
from fedsub.trees import Tree


@dataclass(frozen=True)
class Kind:
    """What the messages of a mixing hold. ``number``: what goes with an answer, "weight", "degree" or nothing."""

    number: str = ""
    degrees: bool = False  # of every row: how many neighbours hold it
    asks: bool = True  # somebody has to be asked, even if everything is known


@dataclass(frozen=True)
class Traffic:
    """Bytes of a round by node, and those of its links: a pair of nodes, of which the first hears the second."""

    down: np.ndarray  # received, int64 [nodes]
    up: np.ndarray
    links: int

    @property
    def of_a_link(self) -> float:
        return float(self.down.sum()) / self.links if self.links else 0.0


class Letters:
    """The lengths of the messages between nodes."""

    def __init__(self, network: Network, params: Tree, kind: Kind):
        self.network, self.kind = network, kind
        segments, tables = network.segments, {name: space.name for name, space in network.tables.items()}
        self.schema = Schema((), {name: params[name] for name in network.names}, tables)
        every = range(segments.count)
        self._asked = {k: np.array([Length(self.ask(s, known=k)).fixed for s in every]) for k in (False, True)}
        self._fixed = {k: np.array([Length(self.answer(s, known=k)).fixed for s in every]) for k in (False, True)}
        named = [cut.named for cut in network.cuts]
        self._ids = sum((self._bytes_of_ids(c) for c in range(len(named))), np.zeros((network.nodes, len(every)), int))
        bits = [-(-one // 8) for one in named]
        self._bits = sum(bits, np.zeros((network.nodes, len(every)), np.int64))
        like = params
        self._row = [sum(int(like[t][:1].numel()) * like[t].element_size() for t in cut.tables) for cut in network.cuts]
        self._piece = [stretch.values * like[stretch.name].element_size() for stretch in network.stretches]

    def ask(self, segment: int, *, known: bool = False) -> list[Field]:
        """The fields of a question."""
        which = [Field("segment", torch.int64, ())] if self.network.segments.count > 1 else []
        return which + ([] if known else [Field(f"rows/{n}", torch.uint8, (-1,)) for n in self._touched(segment)])

    def answer(self, segment: int, *, known: bool = False) -> list[Field]:
        """The fields of an answer. Of rows across a border it is empty where they are not shared."""
        network, number = self.network, self.kind.number
        fields = [Field(number, torch.float64 if number == "weight" else torch.int64, ())] if number else []
        if not known:
            fields += [Field(f"shared/{n}", torch.uint8, (-1,)) for n in self._touched(segment)]
        for cut in network.cuts:
            rows = network.segments.rows[cut.name]
            if rows.first[segment] < rows.last[segment]:
                if self.kind.degrees:
                    fields.append(Field(f"degrees/{cut.name}", torch.int16, (-1,)))
                fields += [self._whole(table) for table in cut.tables]
        for stretch in network.stretches:
            if stretch.segment == segment:
                dtype = self.schema.tree("values", [stretch.name])[0].dtype
                end = f"/{stretch.row}" if stretch.row is not None else ""
                fields.append(Field(f"values/{stretch.name}{end}", dtype, (-1,)))
        return fields

    def _whole(self, table: str) -> Field:
        one = self.schema.tree("values", [table])[0]
        return Field(one.name, one.dtype, one.shape, one.space)

    def _touched(self, segment: int) -> list[str]:
        touched = {cut.name: self.network.segments.rows[cut.name].touched[segment] for cut in self.network.cuts}
        return [name for name, (first, last) in touched.items() if first < last]

    def _bytes_of_ids(self, cut: int) -> np.ndarray:
        """The bytes in which every node names its rows of every segment, int64 [nodes, S]."""
        one = self.network.cuts[cut]
        begin, counts = one.asked[0].reshape(-1), one.named.reshape(-1)
        rows = one.holdings.rows[concatenated(begin, counts)]
        found = row_id_bytes(np.concatenate([[0], np.cumsum(counts)]), rows, one.holdings.space.size)
        touched = self.network.segments.rows[one.name].touched
        return found.reshape(one.named.shape) * (touched[:, 0] < touched[:, 1])

    def of(self, meeting: Meeting, known: np.ndarray, degrees: np.ndarray | None = None) -> Traffic:
        """The bytes of a round. ``known``, bool [E]: the two nodes of a pull know each other's rows.

        ``degrees``, bool [E]: with which answers the degrees of rows go, if they do at all; None: all.
        """
        pulls, count = meeting.pulls, self.network.nodes
        questions, answers = self._of_pulls(meeting, known, np.ones(len(known), bool) if degrees is None else degrees)
        sent = np.bincount(pulls.to, questions, count) + np.bincount(pulls.of, answers, count)
        received = np.bincount(pulls.of, questions, count) + np.bincount(pulls.to, answers, count)
        links = len(np.unique(pulls.to * count + pulls.of)) if self.network.segments.count > 1 else len(pulls)
        return Traffic(received.astype(np.int64), sent.astype(np.int64), links)

    def _of_pulls(self, meeting: Meeting, known: np.ndarray, degrees: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bytes of the question and of the answer of every pull."""
        pulls = meeting.pulls
        to, s = pulls.to, pulls.segment
        questions = np.where(known, self._asked[True][s], self._asked[False][s] + self._ids[to, s])
        if not self.kind.asks:
            questions = np.where(known, 0, questions)
        answers = np.where(known, self._fixed[True][s], self._fixed[False][s] + self._bits[to, s])
        for shared, row in zip(meeting.cuts, self._row, strict=True):
            told = 2 * degrees * self.kind.degrees
            answers += (row + told) * np.bincount(shared.pull, minlength=len(pulls))
        for shared, size in zip(meeting.stretches, self._piece, strict=True):
            answers += size * np.bincount(shared.pull, minlength=len(pulls))
        return questions, answers

    def of_all(self, here: np.ndarray) -> Traffic:
        """The bytes of a round in which all nodes that are ``here``, bool [nodes], ask all others for everything."""
        network, count = self.network, int(here.sum())
        others = max(count - 1, 0)
        question = (self._asked[False] + self._ids).sum(1) * here
        frame = (self._fixed[False] + self._bits).sum(1) * here
        values = np.zeros(network.nodes, np.int64)
        heat = network.heat(here)
        for cut, row in zip(network.cuts, self._row, strict=True):
            held = cut.holdings
            inside = concatenated(cut.begin.reshape(-1), (cut.end - cut.begin).reshape(-1))
            weight = heat[held.space.name][held.rows[inside]] - 1
            shared = np.bincount(held.owners[inside], weight, network.nodes).astype(np.int64)
            values += (row + 2 * self.kind.degrees) * shared
        for stretch, size in zip(network.stretches, self._piece, strict=True):
            owners, _ = network.holders(stretch)
            values[owners] += size * (int(here[owners].sum()) - 1)
        values *= here
        received = others * frame + values + (question.sum() - question) * here
        sent = others * question + values + (frame.sum() - frame) * here
        return Traffic(received, sent, count * others)

    def of_ring(self, here: np.ndarray, params: Tree) -> Traffic:
        """The bytes of an all-reduce around the ring of the nodes that are ``here``.

        The weight of a row's holders goes round with its values, and that of all nodes: over peers the rest of it stays
        with what a node began the round with.
        """
        nodes = np.flatnonzero(here)
        count, size = len(nodes), max((params[n].element_size() for n in self.network.names), default=4)
        values = self.network.segments.values + 1 + sum(space.size for space in self._spaces())
        down, up = np.zeros(self.network.nodes, np.int64), np.zeros(self.network.nodes, np.int64)
        if count < 2:
            return Traffic(down, up, 0)
        chunks, head = even(count, values), wire.length([("chunk", 1)])
        steps, every = 2 * (count - 1), np.arange(count)
        # Worker k sends chunk k − s in the steps s = 0 … K − 2 of the sums, all but k + 1; then all but k + 2.
        sent = size * (2 * values - chunks[(every + 1) % count] - chunks[(every + 2) % count]) + steps * head
        up[nodes], down[nodes] = sent, np.roll(sent, 1)
        return Traffic(down, up, count)

    def _spaces(self) -> list[Any]:
        return [one.space for one in self.network.holdings.values()]
