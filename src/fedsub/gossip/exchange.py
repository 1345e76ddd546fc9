"""The half of a gossip round that follows local work: who meets whom, what it costs, and what comes of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedsub import rng
from fedsub.gossip.graphs import Complete, Links
from fedsub.gossip.messages import Kind, Letters, Traffic
from fedsub.gossip.mixing import Heard, Places, mean_of_all, mix
from fedsub.gossip.network import Cut, Meeting, Network
from fedsub.gossip.peers import Pulls, drawn, neighbours
from fedsub.gossip.segments import Stretch
from fedsub.objective.problem import Problem
from fedsub.round.memory import ClientState
from fedsub.trees import Tree, take_rows

if TYPE_CHECKING:
    from fedsub.gossip.method import Gossip


@dataclass(frozen=True)
class Outcome:
    """Who met in a round. ``meeting`` None: everybody that was ``here``, bool [nodes], heard everybody."""

    here: np.ndarray
    meeting: Meeting | None
    traffic: Traffic
    measured: dict[str, float]


class Exchange:
    """All nodes' models, in the slot ``slot`` of ``memory``, are mixed in place; those ``apart`` stay as they are."""

    def __init__(
        self, gossip: Gossip, problem: Problem, params: Tree, memory: ClientState, slot: str, apart: tuple[str, ...],
        seed: int,
    ):  # fmt: skip
        from fedsub.gossip.method import AllReduce, Metropolis, RandomPeers

        self.gossip, self.problem, self.params, self.seed = gossip, problem, params, seed
        self.memory, self.slot = memory, slot
        names = tuple(name for name in problem.names if name not in apart)
        self.network = Network(problem, params, names, gossip.mixing.segments)
        self.own = gossip.mixing.weights(problem.clients.sizes)
        self.peers = gossip.mixing.peers if isinstance(gossip.mixing, RandomPeers) else None
        self.ring = isinstance(gossip.mixing, AllReduce)
        metropolis = isinstance(gossip.mixing, Metropolis)
        number = "degree" if metropolis else "weight" if getattr(gossip.mixing, "weighting", "") == "samples" else ""
        by_row = metropolis and gossip.over == "holders"
        self.letters = Letters(self.network, params, Kind(number, degrees=by_row, asks=not metropolis))
        self._graph: tuple[int, Links] | None = None
        self._all: Meeting | None = None  # of all edges of a graph that stays
        stays = not gossip.fresh and not isinstance(gossip.graph, Complete)
        self.state: Tree = {}
        if stays:  # by edge and segment: a question names the rows of its own segment alone
            asked = len(self.links(0).ends), self.network.segments.count
            self.state["met"] = torch.zeros(asked, dtype=torch.bool)
        if stays and by_row:
            self.state["told"] = torch.zeros(1, dtype=torch.bool)  # the degrees of rows with all neighbours there

    # Who meets whom

    def links(self, round: int) -> Links:
        """The graph of a round."""
        gossip = self.gossip
        number = round if gossip.fresh else 0
        if self._graph is None or self._graph[0] != number:
            word = graph_word(self.seed, number)
            self._graph = number, gossip.graph.links(self.network.nodes, word, moved=gossip.fresh)
        return self._graph[1]

    def meet(self, number: int, nodes: np.ndarray) -> Outcome:
        """Who hears whom of the ``nodes`` that are there, and what they share."""
        here = np.zeros(self.network.nodes, bool)
        here[nodes] = True
        complete = isinstance(self.gossip.graph, Complete)
        if self.ring:
            return self._outcome(here, None, self.letters.of_ring(here, self.params))
        if complete and (self.peers is None or self.peers >= len(nodes) - 1):
            return self._outcome(here, None, self.letters.of_all(here))
        if complete:
            pulls = drawn(nodes, None, self.peers or 0, self.network.segments.count, seed=self.seed, round=number)
            known = np.zeros(len(pulls), bool)
            meeting = self.network.meet(pulls)
            return self._outcome(here, meeting, self.letters.of(meeting, known))
        links, edges = self.links(number).among(here)
        if self.peers is None:
            meeting = self._of_edges(links, edges)
        else:
            pulls = drawn(nodes, links, self.peers, self.network.segments.count, seed=self.seed, round=number)
            meeting = self.network.meet(pulls)
        known, told = self._known(meeting.pulls, number)
        degrees = np.zeros(len(known), bool) if told else None
        return self._outcome(here, meeting, self.letters.of(meeting, known, degrees))

    def _of_edges(self, links: Links, edges: np.ndarray) -> Meeting:
        """What neighbours share who are there; of a graph that stays it is found out once."""
        if self.gossip.fresh:
            return self.network.meet(neighbours(links))
        if self._all is None:
            self._all = self.network.meet(neighbours(self.links(0)))
        return self._all if len(edges) == len(self._all.pulls) else self._all.take(edges)

    def _known(self, pulls: Pulls, number: int) -> tuple[np.ndarray, bool]:
        """(which pulls ask for what was asked for before, whether all nodes have been told of these degrees of rows).

        Degrees are those of a round: where neighbours are away or lost they are others, and are told in that round.
        """
        if "met" not in self.state:
            return np.zeros(len(pulls), bool), False
        links, met = self.links(number), self.state["met"].numpy()
        edge = _edge_of(links, pulls)
        known = met[edge, pulls.segment].copy()
        met[edge, pulls.segment] = True
        if "told" not in self.state or len(pulls) < len(links.ends):
            return known, False
        told = bool(self.state["told"])
        self.state["told"].fill_(True)
        return known, told

    def _outcome(self, here: np.ndarray, meeting: Meeting | None, traffic: Traffic) -> Outcome:
        rows, nodes = self._alone(here, meeting)
        measured = {
            "gossip_links": float(traffic.links), "gossip_link_bytes": traffic.of_a_link,
            "gossip_alone": float(nodes), "gossip_alone_rows": float(rows),
        }  # fmt: skip
        return Outcome(here, meeting, traffic, measured)

    def _alone(self, here: np.ndarray, meeting: Meeting | None) -> tuple[int, int]:
        """(rows that nodes asked for and that nobody they heard holds, nodes that have such rows)."""
        network = self.network
        alone = np.zeros(network.nodes, np.int64)
        heat = network.heat(here) if meeting is None else {}
        asked = np.zeros((network.nodes, network.segments.count), bool)
        if meeting is not None:
            asked[meeting.pulls.to, meeting.pulls.segment] = True
        elif here.sum() > 1:
            asked[here] = True
        for k, cut in enumerate(network.cuts):
            held = cut.holdings
            if meeting is None:
                single = np.flatnonzero(heat[held.space.name][held.rows] == 1)
                alone += np.bincount(held.owners[single], minlength=network.nodes) * asked.any(1)
                continue
            found = np.zeros(len(held.rows), bool)
            found[meeting.cuts[k].at] = True
            heard = np.bincount(held.owners[np.flatnonzero(found)], minlength=network.nodes)
            alone += ((cut.end - cut.begin) * asked).sum(1) - heard
        return int(alone.sum()), int(np.count_nonzero(alone))

    # What comes of it

    def _stored(self, name: str) -> Tensor:
        return self.memory.tensors[f"{self.slot}/{name}"]

    def before(self) -> Tree | None:
        """What nodes keep before the round enters it, for means over peers."""
        return {n: self._stored(n).clone() for n in self.network.names} if self.gossip.over == "peers" else None

    def mix(self, found: Outcome, before: Tree | None) -> None:
        """Give all nodes that were there the models that come of what they heard."""
        if found.meeting is None:
            return self._mix_all(found.here, before)
        network, meeting = self.network, found.meeting
        heard = Heard(network.nodes, network.segments.count, meeting.pulls, self.own)
        new: Tree = {}
        for cut, shared in zip(network.cuts, meeting.cuts, strict=True):
            places = Places(cut.holdings.owners, self._segments(cut))
            for name in cut.tables:
                new[name] = mix(self._stored(name), _of(before, name), shared, places, heard)
        for stretch, shared in zip(network.stretches, meeting.stretches, strict=True):
            owners, entries = network.holders(stretch)
            if stretch.name not in new:
                new[stretch.name] = self._stored(stretch.name).clone()
            old = None if before is None else _piece(before[stretch.name], entries, stretch)
            piece = _piece(self._stored(stretch.name), entries, stretch)
            into = new[stretch.name].view(len(new[stretch.name]), -1)
            mixed = mix(piece, old, shared, Places(owners, stretch.segment), heard)
            into[torch.from_numpy(entries).to(into.device), stretch.begin : stretch.end] = mixed
        for name, value in new.items():
            self._stored(name).copy_(value)
        return None

    def _segments(self, cut: Cut) -> int | np.ndarray:
        """The segment of every place, for means over peers of several segments; of a row across a border it is none."""
        if self.gossip.over == "holders" or self.network.segments.count == 1:
            return 0
        rows, of_row = self.network.segments.rows[cut.name], np.zeros(cut.holdings.space.size, np.int64)
        for s, (first, last) in enumerate(zip(rows.first.tolist(), rows.last.tolist(), strict=True)):
            of_row[first:last] = s
        return of_row[cut.holdings.rows]

    def _mix_all(self, here: np.ndarray, before: Tree | None) -> None:
        own = np.ones(self.network.nodes) if self.own is None else self.own
        whole = float(own[here].sum())
        if here.sum() < 2:
            return
        for name in self.network.names:
            space, stored = self.problem.tables.get(name), self._stored(name)
            if space is None:
                there, rows, size = np.flatnonzero(here), np.zeros(int(here.sum()), np.int64), 1
                weights = own[there]
            else:
                owners = self.network.holdings[space.name].owners
                there = np.flatnonzero(here[owners])
                rows, size, weights = space.rows[there].astype(np.int64), space.size, own[owners[there]]
            at = torch.from_numpy(there).to(stored.device)
            old = None if before is None else take_rows(before[name], at)
            stored[at] = mean_of_all(take_rows(stored, at), old, rows, size, weights, whole)


def graph_word(seed: int, round: int) -> int:
    """The word from which a graph is drawn, of 63 bits; round 0 for one that stays."""
    return int(rng.key(seed, rng.GRAPH, round) >> np.uint64(1))


def _edge_of(links: Links, pulls: Pulls) -> np.ndarray:
    """The place in ``links.ends`` of every pull."""
    nodes = len(links.starts) - 1
    return np.searchsorted(links.owners * nodes + links.ends, pulls.to * nodes + pulls.of)


def _of(before: Tree | None, name: str) -> Tensor | None:
    return None if before is None else before[name]


def _piece(values: Tensor, entries: np.ndarray, stretch: Stretch) -> Tensor:
    """The columns of a stretch at some entries, [n, values]."""
    flat = values.reshape(len(values), math.prod(values.shape[1:]))
    return take_rows(flat, torch.from_numpy(entries).to(values.device))[:, stretch.begin : stretch.end].contiguous()
