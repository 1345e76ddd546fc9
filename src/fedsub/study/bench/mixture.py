"""`fedsub bench --mixture`: an iteration of L2SGD+ over all clients beside a step of centralised SGD.

Logistic regression on the MovieLens twin. Every client takes one batch of its own in a local iteration, so the
central step has as many samples: clients × batch size, one shared model, plain torch. An averaging iteration looks at
no sample. The coin decides which one it is: both are measured, and what an iteration costs on average follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.table import Table

from fedsub import methods
from fedsub.data.clients import Clients
from fedsub.data.twins import TWINS
from fedsub.families.mixture.solver import toss
from fedsub.families.mixture.trainer import MixtureTrainer
from fedsub.method.training import Options
from fedsub.objective.models import make_objective
from fedsub.objective.problem import Problem
from fedsub.round.quiet import one_thread
from fedsub.study.bench.timing import interleave

BATCH, LAM, BAR = 5, 0.1, 3.0
TURNS, BURST = 15, 3


class CentralStep:
    """One step of plain SGD on ``samples`` samples of all clients."""

    name = "central"

    def __init__(self, clients: Clients, samples: int):
        objective = make_objective(clients, "lr", seed=0)
        self.module, self.samples = objective.module, samples
        ids = [c for space in clients.spaces.values() for c in space.columns]
        self.columns = clients.gather(np.arange(clients.samples), [*ids, "label"], local=False)
        self.shared = torch.optim.SGD(self.module.parameters(), lr=0.1)

    def round(self, number: int) -> None:
        chosen = np.random.default_rng([2, number]).choice(len(self.columns["label"]), self.samples)
        batch = {k: torch.from_numpy(v[chosen]) for k, v in self.columns.items()}
        self.shared.zero_grad()
        F.binary_cross_entropy_with_logits(self.module(batch), batch["label"]).backward()
        self.shared.step()


class Iteration:
    """Iterations of L2SGD+ of one kind: those whose coin says so."""

    def __init__(self, name: str, trainer: MixtureTrainer, *, averaging: bool):
        self.name, self.trainer, self.averaging = name, trainer, averaging
        self._numbers = self._fitting()

    def _fitting(self) -> Iterator[int]:
        p, seed = self.trainer.solved.number("p"), self.trainer.seed
        return (number for number in count(1) if toss(p, number, seed) == self.averaging)

    def round(self, number: int) -> object:
        return self.trainer.round(next(self._numbers))


def make_trainer(clients: Clients, *, batch: int = BATCH, lam: float = LAM) -> MixtureTrainer:
    problem = Problem.bind(make_objective(clients, "lr", seed=0), clients)
    params = problem.params(torch.device("cpu"))
    options = Options("batched", None, 1, False, 0, 0.0, "skip", None)
    trainer = methods.l2sgd_plus(lam=lam, batch_size=batch).prepare(problem, params, options).trainer
    assert isinstance(trainer, MixtureTrainer)
    return trainer


def run(
    *,
    scale: float = 1.0,
    rounds: int | None = None,
    lam: float = LAM,
    progress: Callable[[str], None] = lambda what: None,
) -> dict[str, Any]:
    """CPU seconds of both kinds of iterations, and of the central step, in turn."""
    progress("making data")
    with one_thread():
        clients = TWINS["movielens-like"].make(scale=scale)
        progress("set-up")
        trainer = make_trainer(clients, lam=lam)
        contenders = [
            CentralStep(clients, BATCH * len(clients)),
            Iteration("local", trainer, averaging=False),
            Iteration("averaging", trainer, averaging=True),
        ]
    timed = interleave(contenders, rounds or TURNS, burst=BURST, progress=progress)
    p, central = trainer.solved.number("p"), timed["central"]
    out = {
        name: {"cpu": t.best, "cpu_median": t.median, "rounds": len(t.rounds), "x_central": t.best / central.best,
               "x_central_median": t.median / central.median}
        for name, t in timed.items()
    }  # fmt: skip
    mean = {
        key: (1 - p) * out["local"][key] + p * out["averaging"][key]
        for key in ("cpu", "cpu_median", "x_central", "x_central_median")
    }
    return {
        "clients": len(clients),
        "samples": BATCH * len(clients),
        "rows": sum(len(space.rows) for space in clients.spaces.values()),
        "lam": lam,
        "p": p,
        "contenders": {**out, "iteration": mean},
        "bar": BAR,
        "held": mean["x_central"] <= BAR,
    }


LABELS = {
    "central": "CentralSGD, one step",
    "local": "L2SGD+, local iteration",
    "averaging": "L2SGD+, averaging iteration",
    "iteration": "L2SGD+, an iteration on average",
}


def table(found: dict[str, Any]) -> Table:
    title = f"Mixture: {found['clients']:,} clients, {found['samples']:,} samples, {found['rows']:,} own rows"
    out = Table(title=title, title_justify="left", caption_justify="left")
    for head in ("", "CPU ms", "median", "x CentralSGD", "of medians", "rounds"):
        out.add_column(head, justify="right" if head else "left")
    for name, one in found["contenders"].items():
        out.add_row(
            LABELS[name],
            f"{1e3 * one['cpu']:.2f}",
            f"{1e3 * one['cpu_median']:.2f}",
            f"{one['x_central']:.2f}",
            f"{one['x_central_median']:.2f}",
            str(one.get("rounds", "")),
        )
    held = "held" if found["held"] else "NOT held"
    out.caption = f"lam = {found['lam']:g}, p = {found['p']:.3f}; at most {found['bar']:g} on average: {held}"
    return out
