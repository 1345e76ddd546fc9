"""The spectral gap of a mixing matrix: how fast models that only average come together.

Without local steps ‖x − x̄‖ shrinks by |λ₂| or more a round, where |λ₂| is the second largest absolute value of an
eigenvalue of W; the gap is 1 − |λ₂|, 0 if the graph falls apart. Of random peers it is that of the mean of W over the
draws: a node of d neighbours that hears R of them, all of one weight, keeps 1/(R + 1) of itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedsub import rng
from fedsub.errors import lacking
from fedsub.gossip.graphs import Complete, Graph, Links, Ring, Torus

if TYPE_CHECKING:
    from fedsub.gossip.method import Gossip

DENSE = 500  # nodes up to which all eigenvalues are computed
STEPS = 5000  # of the Lanczos iteration, at most


class Spectrum:
    """The gap of every round's graph; of one that stays it is computed once."""

    def __init__(self, gossip: Gossip, nodes: int, seed: int):
        from fedsub.gossip.method import AllReduce, RandomPeers

        self.gossip, self.nodes, self.seed = gossip, nodes, seed
        self.peers = gossip.mixing.peers if isinstance(gossip.mixing, RandomPeers) else None
        self.exact = isinstance(gossip.mixing, AllReduce)
        self._known: tuple[int, float] | None = None

    def gap(self, round: int) -> float:
        """Of the graph of a round, with all nodes there."""
        number = round if self.gossip.fresh else 0
        if self._known is None or self._known[0] != number:
            self._known = number, 1.0 if self.exact else self._gap(number)
        return self._known[1]

    def _gap(self, number: int) -> float:
        from fedsub.gossip.exchange import graph_word

        graph, nodes = self.gossip.graph, self.nodes
        if nodes < 2:
            return 1.0
        if isinstance(graph, Complete):
            heard = nodes - 1 if self.peers is None else min(self.peers, nodes - 1)
            return 1.0 - abs(1 / (heard + 1) - heard / ((heard + 1) * (nodes - 1)))
        known = _adjacency(graph, nodes)
        if known is not None:
            degree = float(known.max())
            heard = degree if self.peers is None else min(self.peers, degree)
            eigenvalues = np.sort((1 + heard * known / degree) / (heard + 1))
            return max(0.0, 1.0 - float(np.abs(eigenvalues[:-1]).max()))
        links = graph.links(nodes, graph_word(self.seed, number), moved=self.gossip.fresh)
        return gap_of(*matrix(links, self.peers))


def matrix(links: Links, peers: int | None) -> tuple[Links, np.ndarray, np.ndarray]:
    """(links, values at them, diagonal) of a symmetric matrix with the eigenvalues of W; ``peers`` None: Metropolis."""
    degrees, owners = links.degrees, links.owners
    if peers is None:
        values = 1.0 / (1 + np.maximum(degrees[owners], degrees[links.ends]))
        return links, values, 1.0 - np.bincount(owners, values, len(degrees))
    heard = np.minimum(peers, degrees)
    one_way = np.divide(heard, degrees * (heard + 1.0), out=np.zeros(len(degrees)), where=degrees > 0)
    # W_ij = c_i for neighbours: √(c_i c_j) is similar to it.
    return links, np.sqrt(one_way[owners] * one_way[links.ends]), 1.0 / (heard + 1.0)


def gap_of(links: Links, values: np.ndarray, diagonal: np.ndarray) -> float:
    """1 − |λ₂| of a symmetric matrix whose largest eigenvalue is 1; NaN if it is not found."""
    nodes, owners = len(diagonal), links.owners
    if nodes <= DENSE:
        whole = np.diag(diagonal)
        whole[owners, links.ends] += values
        return max(0.0, 1.0 - float(np.sort(np.abs(np.linalg.eigvalsh(whole)))[-2]))
    try:
        from scipy.sparse import coo_array
        from scipy.sparse.linalg import ArpackNoConvergence, eigsh
    except ImportError as err:
        raise lacking("scipy, which finds the spectral gap of large graphs,", "gossip") from err
    every = np.arange(nodes)
    at = np.concatenate([owners, every]), np.concatenate([links.ends, every])
    sparse = coo_array((np.concatenate([values, diagonal]), at), shape=(nodes, nodes)).tocsr()
    start = rng.normal(rng.key(rng.GRAPH, every))  # its own would be drawn anew by every process
    try:
        high = eigsh(sparse, 2, which="LA", v0=start, maxiter=STEPS, return_eigenvectors=False)
        low = eigsh(sparse, 1, which="SA", v0=start, maxiter=STEPS, return_eigenvectors=False)
    except ArpackNoConvergence:
        return float("nan")
    return max(0.0, 1.0 - max(abs(float(np.min(high))), abs(float(low[0]))))


def _adjacency(graph: Graph, nodes: int) -> np.ndarray | None:
    """The eigenvalues of the adjacency matrix where they are known; its degree is the largest."""
    if isinstance(graph, Ring) and nodes >= 3:
        return _circle(nodes)
    if isinstance(graph, Torus):
        height, width = graph.sides(nodes)
        if height >= 3:
            return np.add.outer(_circle(height), _circle(width)).reshape(-1)
    return None


def _circle(nodes: int) -> np.ndarray:
    return 2 * np.cos(2 * np.pi * np.arange(nodes) / nodes)
