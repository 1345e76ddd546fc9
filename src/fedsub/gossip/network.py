"""What nodes exchange in a round: who asks whom for what, and which rows both of them hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedsub.gossip.holdings import Holdings, Shared
from fedsub.gossip.peers import Pulls
from fedsub.gossip.segments import Segments, Stretch
from fedsub.objective.problem import Problem
from fedsub.trees import Tree


@dataclass(frozen=True)
class Cut:
    """Tables of one space that are cut into segments alike: what two nodes share of one, they share of all."""

    tables: tuple[str, ...]
    holdings: Holdings
    begin: np.ndarray  # place of the first whole row of every node and segment, int64 [nodes, S]
    end: np.ndarray
    asked: tuple[np.ndarray, np.ndarray]  # the same with the rows across borders: those that a node names

    @property
    def name(self) -> str:
        return self.tables[0]

    @cached_property
    def named(self) -> np.ndarray:
        """How many rows a node names of every segment, int64 [nodes, S]."""
        return self.asked[1] - self.asked[0]

    def shared(self, pulls: Pulls) -> Shared:
        """The whole rows that the two nodes of each pull share of its segment."""
        to, of, s = pulls.to, pulls.of, pulls.segment
        begin, end = (self.begin[to, s], self.begin[of, s]), (self.end[to, s], self.end[of, s])
        return self.holdings.shared(to, of, begin, end)


@dataclass(frozen=True)
class Meeting:
    """What is shared in a round: of every cut, and of every stretch with places among its holders."""

    pulls: Pulls
    cuts: tuple[Shared, ...]
    stretches: tuple[Shared, ...]

    def take(self, which: np.ndarray) -> Meeting:
        """Of some pulls alone, sorted."""
        pulls = Pulls(self.pulls.to[which], self.pulls.of[which], self.pulls.segment[which])
        return Meeting(
            pulls, tuple(one.take(which) for one in self.cuts), tuple(one.take(which) for one in self.stretches)
        )


class Network:
    """All nodes and what they hold; ``names`` are the parameters that they exchange."""

    def __init__(self, problem: Problem, params: Tree, names: tuple[str, ...], count: int):
        self.problem, self.names = problem, names
        self.nodes = len(problem.clients)
        self.tables = {name: problem.tables[name] for name in names if name in problem.tables}
        spaces = {name: space.name for name, space in self.tables.items()}
        self.segments = Segments.of(count, params, names, spaces)
        self.holdings = {space.name: Holdings(space) for space in self.tables.values()}
        alike: dict[tuple[str, bytes], list[str]] = {}
        for name, rows in self.segments.rows.items():
            alike.setdefault((spaces[name], rows.key), []).append(name)
        self.cuts = tuple(self._cut(tuple(tables), space) for (space, _), tables in alike.items())
        self.stretches = self.segments.stretches
        self._holders = {st: self._places(st) for st in self.stretches if st.row is not None}

    def _cut(self, tables: tuple[str, ...], space: str) -> Cut:
        rows, holdings = self.segments.rows[tables[0]], self.holdings[space]
        begin, end = holdings.within(rows.first, rows.last)
        return Cut(tables, holdings, begin, end, holdings.within(rows.touched[:, 0], rows.touched[:, 1]))

    def _places(self, stretch: Stretch) -> np.ndarray:
        """Where the holders of a stretch's row have it, sorted."""
        return np.flatnonzero(self.tables[stretch.name].rows == stretch.row)

    def holders(self, stretch: Stretch) -> tuple[np.ndarray, np.ndarray]:
        """(the nodes that hold a stretch, where each has it in the memory of clients)."""
        if stretch.row is None:
            everyone = np.arange(self.nodes)
            return everyone, everyone
        places = self._holders[stretch]
        return self.holdings[self.tables[stretch.name].name].owners[places], places

    def meet(self, pulls: Pulls) -> Meeting:
        """Find out what the nodes of all pulls share."""
        return Meeting(
            pulls, tuple(cut.shared(pulls) for cut in self.cuts),
            tuple(self._of_stretch(stretch, pulls) for stretch in self.stretches),
        )  # fmt: skip

    def _of_stretch(self, stretch: Stretch, pulls: Pulls) -> Shared:
        now = np.flatnonzero(pulls.segment == stretch.segment)
        if stretch.row is None:
            return Shared(pulls.to[now], pulls.of[now], now)
        owners, _ = self.holders(stretch)
        number = np.full(self.nodes, -1, np.int64)
        number[owners] = np.arange(len(owners))
        at, there = number[pulls.to[now]], number[pulls.of[now]]
        both = (at >= 0) & (there >= 0)
        return Shared(at[both], there[both], now[both])

    def heat(self, here: np.ndarray) -> Mapping[str, np.ndarray]:
        """How many of the nodes that are ``here``, bool [nodes], hold each row, by space."""
        return {
            name: np.bincount(one.rows[here[one.owners]], minlength=one.space.size)
            for name, one in self.holdings.items()
        }
