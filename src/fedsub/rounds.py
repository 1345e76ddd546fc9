"""One round on one screen: sample, send, train, sum, average, step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fedsub import rng
from fedsub.aggregate import CohortRows, Sum
from fedsub.batches import draw
from fedsub.core import Method, Tree
from fedsub.engines.base import Job
from fedsub.errors import NoUsableClient
from fedsub.problem import Problem


@dataclass(frozen=True)
class RoundReport:
    """What a round did. Arrays are by client of the cohort."""

    clients: np.ndarray
    loss: float  # mean training loss over the clients that delivered
    down: np.ndarray  # bytes
    up: np.ndarray  # bytes; 0 for a client that dropped out
    lost: int  # dropped out before delivering
    rejected: np.ndarray  # clients whose update held NaN or infinity
    moved: dict[str, torch.Tensor]  # table -> rows that changed


class Trainer:
    """The server's side of training: its parameters, and how one round changes them."""

    def __init__(
        self,
        problem: Problem,
        method: Method,
        params: Tree,
        engine,
        *,
        seed: int = 0,
        dropout: float = 0.0,
        on_bad_update: str = "skip",
    ):
        self.problem, self.method, self.params, self.engine, self.seed = problem, method, params, engine, seed
        self.dropout, self.on_bad_update = dropout, on_bad_update
        device = next(iter(params.values())).device
        self.average = method.average.bind(problem, device)
        self.state = method.server.init(params)
        self._rows = CohortRows(problem, device)

    def round(self, number: int) -> RoundReport:
        problem, method = self.problem, self.method
        cohort = method.sampler.select(number, len(problem.clients), self.seed)
        down, up = problem.sizes_in_bytes(cohort.clients)
        invited = cohort.clients
        if self.dropout:
            chance = rng.uniform(cohort.words(self.seed, rng.LOSS, number))
            stays = chance >= self.dropout
            up = np.where(stays, up, 0)
            cohort = cohort.take(np.flatnonzero(stays))
            if not len(cohort):
                raise NoUsableClient(
                    f"Round {number}: all {len(stays)} sampled clients dropped out (dropout={self.dropout}); "
                    "sample more clients per round or lower the dropout."
                )
        if method.pooled:
            down, up = np.zeros_like(down), np.zeros_like(up)

        rows = self._rows(cohort)
        batches = draw(problem.clients, cohort, method.local, round=number, seed=self.seed)
        job = Job(method, self.params, cohort, rows, batches, number, self.seed)
        total = Sum(problem, self.params, rows, held=method.average.needs_held)
        weights = self.average.weights(cohort.clients)
        losses, finite = np.zeros(len(cohort)), np.ones(len(cohort), bool)
        for delivery in self.engine.map(job):
            losses[delivery.where], finite[delivery.where] = delivery.losses, delivery.finite
            share = weights[delivery.where]
            deltas = delivery.deltas
            if not delivery.finite.all():
                share = np.where(delivery.finite, share, 0.0)
                deltas = {name: torch.nan_to_num(d, 0.0, 0.0, 0.0) for name, d in deltas.items()}
            total.add(deltas, delivery.where, share, stacked=delivery.stacked)

        rejected = cohort.clients[~finite]
        self._check(number, rejected, total.count)
        summed = total.total()
        method.server.step(self.params, self.average(summed), summed.rows, self.state, number)
        return RoundReport(
            clients=invited,
            loss=float(losses[finite].mean()),
            down=down,
            up=up,
            lost=len(invited) - len(cohort),
            rejected=rejected,
            moved=summed.rows,
        )

    def _check(self, number: int, rejected: np.ndarray, delivered: int) -> None:
        named = ", ".join(str(self.problem.clients.client_ids[c]) for c in rejected[:5])
        if len(rejected) and self.on_bad_update == "raise":
            raise NoUsableClient(f"Round {number}: the update of client {named} holds NaN or infinity; lower lr.")
        if not delivered:
            raise NoUsableClient(
                f"Round {number}: no client delivered a usable update; {len(rejected)} held NaN or infinity "
                f"(clients {named}). Lower lr, or look at these clients' data."
            )
