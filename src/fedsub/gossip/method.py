"""Gossip as a method of `fedsub.run`: no server, every node keeps a model and averages it with those of others."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np

from fedsub.checks import check_flag, check_whole
from fedsub.errors import MethodError
from fedsub.gossip.graphs import Complete, Graph
from fedsub.gossip.own import OwnModel, without_server
from fedsub.gossip.trainer import GossipTrainer
from fedsub.method.average import OverClients
from fedsub.method.part import Part
from fedsub.method.parts import Personal
from fedsub.method.sampling import Available, Everyone
from fedsub.method.sampling.availability import Availability
from fedsub.method.servers import Add
from fedsub.method.slots import Local, Method, check_parts, check_slot
from fedsub.method.training import Algorithm, Options, Prepared
from fedsub.objective.problem import Problem
from fedsub.round.prepare import check_own, fit
from fedsub.trees import Tree

OVER, EVALUATED, WEIGHTINGS = ("holders", "peers"), ("nodes", "mean"), ("samples", "clients")


@dataclass(frozen=True)
class Mixing:
    """With whom a node averages, and how."""

    segments: ClassVar[int] = 1  # into which the model is cut

    def weights(self, sizes: np.ndarray) -> np.ndarray | None:
        """a_i of nodes with so many samples, float64; None: Metropolis weights."""
        return None

    def check(self, graph: Graph) -> None:
        """Raise MethodError if it makes no sense on a graph."""


@dataclass(frozen=True)
class RandomPeers(Mixing):
    """Gossip: for each of its ``segments`` every node asks ``peers`` random others, and takes the weighted mean.

    New segment = Σ a_j x_j / Σ a_j over itself and those peers; a_j is j's number of samples, or 1. ``segments`` = 1 is
    ordinary gossip; what a node receives is ``peers`` models, however many segments there are.
    C. Hu, J. Jiang, Z. Wang, "Decentralized Federated Learning: A Segmented Gossip Approach", 2019.
    """

    peers: int = 1
    segments: int = 1  # pyright: ignore[reportIncompatibleVariableOverride]
    weighting: str = "samples"

    def __post_init__(self) -> None:
        check_whole("peers of gossip", self.peers, 0)
        check_whole("segments of gossip", self.segments, 1)
        _check_weighting(self.weighting)

    def weights(self, sizes: np.ndarray) -> np.ndarray:
        return _weights(self.weighting, sizes)


@dataclass(frozen=True)
class Metropolis(Mixing):
    """D-PSGD: every node averages with all its neighbours, W_ij = 1/(1 + max(d_i, d_j)), and keeps the rest of itself.

    W is symmetric and its rows and columns sum to 1, so that the mean of all models stays what it is.
    X. Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?", NeurIPS 2017, in the order in
    which a node takes its steps first and averages then.
    """


@dataclass(frozen=True)
class AllReduce(Mixing):
    """The weighted mean of all nodes, exactly: sums of K pieces of the model go round a ring of the K nodes.

    Each node sends 2 (K − 1) pieces. A node passes on sums of what it does not hold, so that whole models travel.
    """

    weighting: str = "samples"

    def __post_init__(self) -> None:
        _check_weighting(self.weighting)

    def weights(self, sizes: np.ndarray) -> np.ndarray:
        return _weights(self.weighting, sizes)

    def check(self, graph: Graph) -> None:
        if not isinstance(graph, Complete):
            raise MethodError("An all-reduce makes a ring of all nodes itself; leave graph out.")


@dataclass(frozen=True, kw_only=True)
class Gossip(Algorithm):
    """Nodes that train from their own models, and mix them over a ``graph``; ``fresh``: one drawn anew every round.

    ``over``: a row is averaged over those who hold it ("holders"), or over all that were asked ("peers"), where one
    that does not hold it stands for no change; see `fedsub.gossip.mixing`. ``availability`` says which nodes are there
    in a round; the others neither train nor answer, and go on from where they were. ``evaluated``: every node's own
    model ("nodes"), or the mean of all ("mean"), in both cases of each row over those who hold it.
    """

    local: Local
    mixing: Mixing
    graph: Graph = field(default_factory=Complete)
    fresh: bool = False
    over: str = "holders"
    parts: tuple[Part, ...] = ()
    availability: Availability | None = None
    evaluated: str = "nodes"
    name: str = "gossip"
    pooled: bool = False

    def __post_init__(self) -> None:
        check_slot("local", self.local, "Gossip")
        for what, value, kind, example in (
            ("mixing", self.mixing, Mixing, "RandomPeers(2)"), ("graph", self.graph, Graph, "Ring()"),
        ):  # fmt: skip
            if not isinstance(value, kind) or type(value) is kind:
                raise MethodError(f"{what} of Gossip must be an object like {example}, got {value!r}.")
        check_flag("fresh", self.fresh)
        for what, value, known in (("over", self.over, OVER), ("evaluated", self.evaluated, EVALUATED)):
            if value not in known:
                raise MethodError(f"{what} of {self.name} must be {' or '.join(known)}, got {value!r}.")
        if self.fresh and isinstance(self.graph, Complete):
            raise MethodError(
                "The complete graph is the same in every round; leave fresh out, or choose another graph."
            )
        if self.pooled:
            raise MethodError("Gossip is between nodes with data of their own; leave pooled out.")
        self.mixing.check(self.graph)
        check_parts(self.parts)
        without_server(self.parts, self.name)
        if len(keepers := [part for part in self.parts if isinstance(part, Personal)]) > 1:
            raise MethodError(f"parts holds Personal {len(keepers)} times; name all parameters in one.")
        self.method()

    @property
    def keeper(self) -> Personal | None:
        """What says which parameters are never exchanged."""
        return next((part for part in self.parts if isinstance(part, Personal)), None)

    def private(self, names: Collection[str]) -> tuple[str, ...]:
        """The parameters that are never exchanged."""
        return self.keeper.private(names) if self.keeper is not None else ()

    def method(self, names: Collection[str] = ()) -> Method:
        """The local work of a round, as a composition of slots in which nothing goes to a server."""
        everyone, own = Everyone(), OwnModel(self.keeper, self.private(names) if names else ())
        return Method(
            local=self.local,
            parts=(*(part for part in self.parts if not isinstance(part, Personal)), own),
            average=OverClients("clients"),
            server=Add(),
            sampler=everyone if self.availability is None else Available(everyone, self.availability),
            name=self.name,
        )

    def prepare(self, problem: Problem, params: Tree, options: Options) -> Prepared:
        options.refuse(f"{self.name}, where every node has its own tables,", "shards")
        check_own(self.name, self.keeper, problem)
        self.check_population(problem.clients.sizes)
        self._check_segments(problem, params)
        return fit(self.method(problem.names), problem, params, options, partial(GossipTrainer, self))

    def _check_segments(self, problem: Problem, params: Tree) -> None:
        apart = self.private(problem.names)
        values = sum(params[name].numel() for name in problem.names if name not in apart)
        if 0 < values < self.mixing.segments:
            raise MethodError(
                f"segments={self.mixing.segments:,} of {self.name} is more than the {values:,} values that nodes "
                "exchange: some would be empty, and each is asked for all the same. Give fewer; 4 is usual."
            )

    def check_population(self, sizes: np.ndarray) -> None:
        if len(sizes) < 2:
            raise MethodError("Gossip needs at least two clients.")
        self.graph.check(len(sizes))
        self.method().check_population(sizes)

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"kind": type(self.mixing).__name__}


def _weights(weighting: str, sizes: np.ndarray) -> np.ndarray:
    return np.ones(len(sizes)) if weighting == "clients" else sizes.astype(np.float64)


def _check_weighting(weighting: str) -> None:
    if weighting not in WEIGHTINGS:
        raise MethodError(f"weighting must be one of {', '.join(WEIGHTINGS)}; got {weighting!r}.")
