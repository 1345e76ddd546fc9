"""The named methods without a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsub.gossip.method import AllReduce, Gossip, Metropolis, Mixing, RandomPeers
from fedsub.gossip.words import availability_of, graph_of
from fedsub.method.average import OverClients
from fedsub.method.named.catalogue import composed, named
from fedsub.method.sampling.availability import Availability

# Of the shared settings, those of local work: all others are about a server, or about who takes part.
LOCAL = (
    "lr", "local_steps", "local_epochs", "batch_size", "batches", "solver", "momentum", "step_decay", "weight_decay",
    "clip_norm", "schedule", "mu", "personal", "personal_init", "groups",
)  # fmt: skip


@named(
    "Gossip", "no server: nodes average with random peers", "x_i ← Σ n_j x_j / Σ n_j, j: itself and R peers",
    "Hu et al. 2019", shared=LOCAL,
)  # fmt: skip
def gossip(
    *, peers: int = 1, graph: Any = "complete", fresh: bool = False, over: str = "holders", weighting: str = "samples",
    availability: str | Availability | None = None, evaluated: str = "nodes", **local: Any,
) -> Gossip:  # fmt: skip
    """Gossip: after its local steps every node asks ``peers`` random others for their models, and takes the mean.

    ``over``: a row's mean is taken over those who hold it ("holders", the heat correction), or over all that were asked
    ("peers"). Ordinary gossip is segmented gossip with one segment.
    C. Hu, J. Jiang, Z. Wang, "Decentralized Federated Learning: A Segmented Gossip Approach", 2019.
    """
    mixing = RandomPeers(peers=peers, weighting=weighting)
    return _nodes("gossip", mixing, local, graph, fresh, over, availability, evaluated)


@named(
    "Segmented gossip", "gossip, every segment of other peers", "x_i[s] ← Σ n_j x_j[s] / Σ n_j, other j for every s",
    "Hu et al. 2019", shared=LOCAL,
)  # fmt: skip
def segmented_gossip(
    *, segments: int = 4, peers: int = 2, graph: Any = "complete", fresh: bool = False, over: str = "holders",
    weighting: str = "samples", availability: str | Availability | None = None, evaluated: str = "nodes", **local: Any,
) -> Gossip:  # fmt: skip
    """Segmented gossip: the model is cut into segments, and each is asked for from ``peers`` random nodes of its own.

    A node receives ``peers`` models, as in ordinary gossip, over as many times as many links as there are segments.
    C. Hu, J. Jiang, Z. Wang, "Decentralized Federated Learning: A Segmented Gossip Approach", 2019.
    """
    mixing = RandomPeers(segments=segments, peers=peers, weighting=weighting)
    return _nodes("segmented_gossip", mixing, local, graph, fresh, over, availability, evaluated)


@named(
    "D-PSGD", "no server: nodes average with their neighbours", "x_i ← Σ W_ij x_j, W_ij = 1/(1 + max(d_i, d_j))",
    "Lian et al. 2017", shared=LOCAL,
)  # fmt: skip
def dpsgd(
    *, graph: Any = "ring", fresh: bool = False, over: str = "holders",
    availability: str | Availability | None = None, evaluated: str = "nodes", **local: Any,
) -> Gossip:  # fmt: skip
    """D-PSGD: after its local steps every node averages with all its neighbours, by Metropolis–Hastings weights.

    X. Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms? A Case Study for Decentralized
    Parallel Stochastic Gradient Descent", NeurIPS 2017.
    """
    return _nodes("dpsgd", Metropolis(), local, graph, fresh, over, availability, evaluated)


@named(
    "Ring all-reduce", "no server: the exact mean of all, around a ring", "x_i ← Σ n_j x_j / Σ n_j over all nodes",
    "Patarasuk, Yuan 2009", shared=LOCAL,
)  # fmt: skip
def ring_all_reduce(
    *, over: str = "holders", weighting: str = "samples", availability: str | Availability | None = None,
    evaluated: str = "nodes", **local: Any,
) -> Gossip:  # fmt: skip
    """Ring all-reduce: after local steps all nodes take the exact mean, of which pieces go round a ring of them.

    The exact end of gossip: FedAvg with everybody (``over="peers"``), or FedSubAvg with everybody ("holders").
    P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009.
    """
    return _nodes(
        "ring_all_reduce", AllReduce(weighting=weighting), local, "complete", False, over, availability, evaluated
    )


def _nodes(
    name: str, mixing: Mixing, local: Mapping[str, Any], graph: Any, fresh: bool, over: str,
    availability: str | Availability | None, evaluated: str,
) -> Gossip:  # fmt: skip
    """A method from its settings; those of local work become a solver and parts as they do everywhere."""
    work = composed(name, OverClients("clients"), local)
    return Gossip(
        local=work.local, parts=work.parts, mixing=mixing, graph=graph_of(graph), fresh=fresh, over=over,
        availability=availability_of(availability), evaluated=evaluated, name=name,
    )  # fmt: skip
