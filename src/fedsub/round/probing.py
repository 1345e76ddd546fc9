"""Asking clients for their loss at the current model, for samplers that choose by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from fedsub.method.batches import draw
from fedsub.method.groups import Cohort
from fedsub.method.slots import Method
from fedsub.objective.problem import Problem
from fedsub.round.engines.base import Filled, columns_to, template
from fedsub.round.sums import CohortRows, SpaceRows

ANSWER = 4  # bytes: one number


def _none() -> np.ndarray:
    return np.zeros(0, np.int64)


@dataclass
class Probes:
    """The questions of one round, and what they cost."""

    ask: Callable[[np.ndarray, bool], np.ndarray]
    traffic: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    clients: np.ndarray = field(default_factory=_none)
    down: np.ndarray = field(default_factory=_none)
    up: np.ndarray = field(default_factory=_none)

    def __call__(self, clients: np.ndarray, batch: bool) -> np.ndarray:
        down, up = self.traffic(clients)
        self.clients = np.concatenate([self.clients, clients])
        self.down, self.up = np.concatenate([self.down, down]), np.concatenate([self.up, up])
        return self.ask(clients, batch)


class Prober:
    """Evaluates the submodel of one client after the other, as the client itself would."""

    def __init__(self, problem: Problem, method: Method, columns: tuple[str, ...] | None):
        self.problem, self.method, self.columns = problem, method, columns
        self._module: Filled | None = None
        self._rows: CohortRows | None = None

    def start(self, number: int, seed: int, params, current: Callable[[dict[str, SpaceRows], int], None]) -> Probes:
        def ask(clients: np.ndarray, batch: bool) -> np.ndarray:
            return self._losses(params, Cohort.of(clients), number, seed, batch, current)

        return Probes(ask, self._traffic)

    def _traffic(self, clients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The submodel down; its row ids and the answer up."""
        values, up = self.problem.sizes_in_bytes(clients)
        return values, up - values + ANSWER

    def _losses(self, params, cohort: Cohort, number: int, seed: int, batch: bool, current) -> np.ndarray:
        problem, device = self.problem, next(iter(params.values())).device
        if self._module is None or self._rows is None:
            self._module, self._rows = Filled(template(problem, device)), CohortRows(problem, device)
        rows = self._rows(cohort)
        current(rows, number)
        samples = None
        if batch:
            local = replace(self.method.local, local_steps=1, local_epochs=None)  # type: ignore[type-var]
            samples = draw(problem.clients, cohort, local, round=number, seed=seed)
        module = self._module.module.eval()
        losses = np.zeros(len(cohort))
        with torch.no_grad():
            for k, client in enumerate(cohort.clients.tolist()):
                sent = {name: params[name] for name in problem.dense}
                for name, space in problem.tables.items():
                    one = rows[space.name]
                    begin = int(one.starts[k])
                    sent[name] = params[name].index_select(0, one.rows[begin : begin + int(one.counts[k])])
                self._module.fill(sent)
                own = np.arange(int(problem.clients.offsets[client]), int(problem.clients.offsets[client + 1]))
                if samples is not None:
                    own = samples.samples[k, 0][samples.weights[k, 0] > 0]
                data = columns_to(problem.clients.gather(own, self.columns, local=True), device)
                data["sample_mask"] = torch.ones(len(own), device=device)
                losses[k] = float(problem.objective.loss(problem.objective.output(module, data), data).mean())
        return losses
