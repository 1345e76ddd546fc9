"""`fedsub bench --gossip`: a round of gossip over all nodes beside a round of FedAvg over all of them.

Logistic regression on the MovieLens twin, of the size of MovieLens-1M; 10 steps of batches of 5, and the bytes are
counted. All ways to do without a server take turns with FedAvg in one process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.table import Table

from fedsub import methods
from fedsub.data.clients import Clients
from fedsub.data.twins import TWINS
from fedsub.method.training import Algorithm, Options, Trains
from fedsub.objective.models import make_objective
from fedsub.objective.problem import Problem
from fedsub.round.prepare import prepare
from fedsub.round.quiet import one_thread
from fedsub.study.bench.timing import interleave

BAR, TURNS = 2.0, 12


def contenders() -> dict[str, Algorithm]:
    m = methods
    return {
        "FedAvg": m.fedavg(clients_per_round=None), "FedSubAvg": m.fedsubavg(clients_per_round=None),
        "local training alone": m.gossip(peers=0), "gossip, 1 peer": m.gossip(), "gossip, 2 peers": m.gossip(peers=2),
        "gossip, 2 peers, over peers": m.gossip(peers=2, over="peers"),
        "segmented gossip, 4 × 2": m.segmented_gossip(segments=4, peers=2),
        "D-PSGD, ring": m.dpsgd(graph="ring"), "D-PSGD, random, 8 neighbours": m.dpsgd(graph="regular:8"),
        "ring all-reduce": m.ring_all_reduce(),
    }  # fmt: skip


class Rounds:
    """A method's rounds over all nodes."""

    def __init__(self, name: str, method: Algorithm, clients: Clients):
        self.name = name
        problem = Problem.bind(make_objective(clients, "lr", seed=0), clients)
        self.trainer: Trains = prepare(method, problem, problem.params(), Options(engine="batched")).trainer
        self.trainer.state.tracking = False  # as in a run without a directory

    def round(self, number: int) -> object:
        return self.trainer.round(number)


def run(
    *, scale: float = 1.0, rounds: int | None = None, progress: Callable[[str], None] = lambda what: None
) -> dict[str, Any]:
    """CPU seconds of a round of every way, in turn."""
    progress("making data")
    with one_thread():
        clients = TWINS["movielens-like"].make(scale=scale)
        progress("set-up")
        ways = [Rounds(name, method, clients) for name, method in contenders().items()]
    timed = interleave(ways, rounds or TURNS, progress=progress)
    fedavg = timed["FedAvg"]
    out = {
        name: {"cpu": t.best, "cpu_median": t.median, "rounds": len(t.rounds), "x_fedavg": t.best / fedavg.best,
               "x_fedavg_median": t.median / fedavg.median}
        for name, t in timed.items()
    }  # fmt: skip
    return {
        "clients": len(clients),
        "rows": sum(len(space.rows) for space in clients.spaces.values()),
        "contenders": out,
        "bar": BAR,
        "held": all(one["x_fedavg"] <= BAR for one in out.values()),
    }


def table(found: dict[str, Any]) -> Table:
    title = f"Gossip: a round over all {found['clients']:,} nodes, {found['rows']:,} own rows"
    out = Table(title=title, title_justify="left", caption_justify="left")
    for head in ("", "CPU ms", "median", "x FedAvg", "of medians", "rounds"):
        out.add_column(head, justify="right" if head else "left")
    for name, one in found["contenders"].items():
        out.add_row(
            name, f"{1e3 * one['cpu']:.1f}", f"{1e3 * one['cpu_median']:.1f}", f"{one['x_fedavg']:.2f}",
            f"{one['x_fedavg_median']:.2f}", str(one["rounds"]),
        )  # fmt: skip
    held = "held" if found["held"] else "NOT held"
    out.caption = f"at most {found['bar']:g} × FedAvg: {held}"
    return out
