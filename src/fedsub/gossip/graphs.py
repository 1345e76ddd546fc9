"""Graphs: which nodes may exchange models. Edges have no direction, and a node is no neighbour of itself.

    complete                everybody with everybody
    ring  torus             two neighbours; four, on a grid whose edges meet
    regular:8               a random graph in which everybody has 8
    small-world:8,0.1       a ring with 8 neighbours each, one end of every edge moved with the chance 0.1

Made by networkx, all but the complete one, from a seed. Watts and Strogatz, "Collective dynamics of 'small-world'
networks", Nature 1998.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from fedsub import rng
from fedsub.checks import check_mix, check_whole
from fedsub.errors import MethodError, lacking


@dataclass(frozen=True)
class Links:
    """The neighbours of node k are ``ends[starts[k]:starts[k + 1]]``, sorted; int64."""

    starts: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(cls, nodes: int, edges: np.ndarray) -> Links:
        """From edges [E, 2], in any order; those of a node with itself are left out."""
        edges = edges[edges[:, 0] != edges[:, 1]]
        both = np.unique(np.concatenate([edges, edges[:, ::-1]]), axis=0)
        return cls(np.searchsorted(both[:, 0], np.arange(nodes + 1)), np.ascontiguousarray(both[:, 1]))

    @property
    def degrees(self) -> np.ndarray:
        return np.diff(self.starts)

    @property
    def owners(self) -> np.ndarray:
        """The node at the other end of each of ``ends``."""
        return np.repeat(np.arange(len(self.starts) - 1), self.degrees)

    def among(self, here: np.ndarray) -> tuple[Links, np.ndarray]:
        """(the links between nodes that are ``here``, bool [nodes], which of ``ends`` those are)."""
        kept = here[self.owners] & here[self.ends]
        degrees = np.bincount(self.owners[kept], minlength=len(here))
        return Links(np.concatenate([[0], np.cumsum(degrees)]), self.ends[kept]), np.flatnonzero(kept)


@dataclass(frozen=True)
class Graph:
    """Who may exchange models. Subclasses are frozen dataclasses and write `edges`."""

    def edges(self, nodes: int, seed: int) -> np.ndarray:
        """Edges [E, 2] of a graph of so many nodes."""
        raise NotImplementedError

    def check(self, nodes: int) -> None:
        """Raise MethodError if there is no such graph of so many nodes."""

    def links(self, nodes: int, word: int, *, moved: bool = False) -> Links:
        """The graph that a random word makes; ``moved``: with the nodes in places of their own."""
        edges = np.asarray(self.edges(nodes, word), np.int64).reshape(-1, 2)
        if moved:
            edges = rng.first_of_permutation(nodes, nodes, rng.key(word, rng.GRAPH))[edges]
        return Links.of(nodes, edges)


@dataclass(frozen=True)
class Complete(Graph):
    """Everybody with everybody. Its edges are never listed."""


@dataclass(frozen=True)
class Ring(Graph):
    """Node k with k − 1 and k + 1."""

    def edges(self, nodes: int, seed: int) -> np.ndarray:
        return _edges(_networkx().cycle_graph(nodes))


@dataclass(frozen=True)
class Torus(Graph):
    """A grid whose opposite sides meet: four neighbours. Its sides are as equal as the number of nodes lets them."""

    def check(self, nodes: int) -> None:
        if self.sides(nodes)[0] < 2:
            raise MethodError(
                f"{nodes:,} nodes fill no grid of two sides, as a torus needs; take graph='ring', or 'regular:4'."
            )

    @staticmethod
    def sides(nodes: int) -> tuple[int, int]:
        height = max(n for n in range(1, int(nodes**0.5) + 1) if nodes % n == 0)
        return height, nodes // height

    def edges(self, nodes: int, seed: int) -> np.ndarray:
        height, width = self.sides(nodes)
        edges = _edges(_networkx().grid_2d_graph(height, width, periodic=True)).reshape(-1, 2, 2)
        return edges[:, :, 0] * width + edges[:, :, 1]


@dataclass(frozen=True)
class Regular(Graph):
    """A random graph in which every node has ``degree`` neighbours."""

    degree: int = 4

    def __post_init__(self) -> None:
        check_whole("degree of a regular graph", self.degree, 1)

    def check(self, nodes: int) -> None:
        if self.degree >= nodes or nodes * self.degree % 2:
            raise MethodError(
                f"There is no graph of {nodes:,} nodes with {self.degree} neighbours each: they must be fewer than "
                "the nodes, and one of the two numbers even."
            )

    def edges(self, nodes: int, seed: int) -> np.ndarray:
        networkx = _networkx()
        if 2 * self.degree < nodes:
            return _edges(networkx.random_regular_graph(self.degree, nodes, seed=seed))
        # Pairing ends at random until none are left over takes for ever in a dense graph; its gaps are a sparse one.
        return _edges(networkx.complement(networkx.random_regular_graph(nodes - 1 - self.degree, nodes, seed=seed)))


@dataclass(frozen=True)
class SmallWorld(Graph):
    """A ring with ``neighbours`` each, of which one end moves with the chance ``rewired`` (Watts, Strogatz, 1998)."""

    neighbours: int = 4
    rewired: float = 0.1

    def __post_init__(self) -> None:
        check_whole("neighbours of a small world", self.neighbours, 2)
        check_mix("rewired of a small world", self.rewired)
        if self.neighbours % 2:
            raise MethodError(f"neighbours of a small world are as many on both sides: even, not {self.neighbours}.")

    def check(self, nodes: int) -> None:
        if self.neighbours >= nodes:
            raise MethodError(f"{nodes:,} nodes cannot have {self.neighbours} neighbours each; give fewer.")

    def edges(self, nodes: int, seed: int) -> np.ndarray:
        return _edges(_networkx().watts_strogatz_graph(nodes, self.neighbours, self.rewired, seed=seed))


@dataclass(frozen=True)
class Given(Graph):
    """A graph of your own: ``pairs`` [E, 2] of ``nodes`` nodes, numbered as the clients are."""

    nodes: int
    pairs: np.ndarray

    def __post_init__(self) -> None:
        try:
            pairs = np.array(self.pairs)
        except ValueError as err:
            raise MethodError(f"The edges of a graph are pairs of nodes, [E, 2]: {err}") from err
        if not pairs.size:
            pairs = np.zeros((0, 2), np.int64)
        check_whole("nodes of a graph", self.nodes, 1)
        if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
            raise MethodError(f"The edges of a graph are whole numbers [E, 2], got {pairs.dtype} {list(pairs.shape)}.")
        if len(pairs) and (pairs.min() < 0 or pairs.max() >= self.nodes):
            wrong = int(pairs.min()) if pairs.min() < 0 else int(pairs.max())
            raise MethodError(f"An edge names node {wrong}; nodes are numbered from 0 to {self.nodes - 1:,}.")
        pairs.flags.writeable = False
        object.__setattr__(self, "pairs", pairs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Given) and self.nodes == other.nodes and np.array_equal(self.pairs, other.pairs)

    def __hash__(self) -> int:
        return hash((self.nodes, self.pairs.tobytes()))

    def check(self, nodes: int) -> None:
        if self.nodes != nodes:
            raise MethodError(f"The graph has {self.nodes:,} nodes and the data {nodes:,} clients; give one for each.")

    def edges(self, nodes: int, seed: int) -> np.ndarray:
        return self.pairs

    @classmethod
    def of(cls, graph: Any) -> Given:
        """From a networkx graph whose nodes are the numbers of the clients, from 0 on; directions do not count."""
        nodes = sorted(graph.nodes) if all(isinstance(n, int | np.integer) for n in graph.nodes) else None
        if nodes != list(range(len(graph))):
            raise MethodError(
                f"The nodes of a graph must be the numbers 0 to {len(graph) - 1:,}, in the order of the clients; "
                "rename them with networkx.relabel_nodes or networkx.convert_node_labels_to_integers."
            )
        return cls(len(graph), _edges(graph))


def _networkx() -> ModuleType:
    try:
        import networkx
    except ImportError as err:
        raise lacking("networkx, which makes the graphs of gossip (all but the complete one),", "gossip") from err
    return networkx


def _edges(graph: Any) -> np.ndarray:
    return np.array(list(graph.edges()), np.int64).reshape(-1, 2)
