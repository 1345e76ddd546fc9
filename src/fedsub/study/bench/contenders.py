"""Ways to do one round of a workload, each an object with ``round(number)``.

Federated      fedsub itself: sampling, packing, training, summing, byte counts; no evaluation
CentralSGD     the limit: plain torch SGD over as many samples with one shared model, I steps of batch K·B
DeepcopyLoop   what one writes first: deepcopy the model per client, train, average the state dicts
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsub import methods
from fedsub.method.slots import Method
from fedsub.objective.problem import Problem
from fedsub.round.engines.batched import Batched
from fedsub.round.engines.setup import choose
from fedsub.round.prepare import Trainer
from fedsub.study.bench.workloads import Workload

ENGINES = ("serial", "batched", "compiled")


class Contender(Protocol):
    name: str

    def round(self, number: int) -> object: ...


class Federated:
    """Rounds of FedSubAvg (or ``method``) with one of fedsub's engines."""

    def __init__(self, workload: Workload, engine: str, *, method: Method | None = None, seed: int = 0):
        self.name = engine
        problem = Problem.bind(workload.objective(), workload.data.clients)
        params = problem.params()
        method = method or federated_method(workload, methods.fedsubavg)
        plain = "batched" if engine == "compiled" else engine
        chosen = choose(problem, method, params, engine=plain, seed=seed)
        self.reason = chosen.reason
        runner = chosen.engine
        if engine == "compiled" and isinstance(runner, Batched):
            runner = Batched(problem, chosen.plan, compile=True)  # checked above, before compiling
        self.trainer = Trainer(problem, method, params, runner, chosen.plan, seed=seed)
        self.trainer.state.tracking = False  # as in a run without a directory

    @property
    def params(self) -> dict[str, Tensor]:
        return self.trainer.params

    def round(self, number: int) -> object:
        return self.trainer.round(number)


def federated_method(workload: Workload, make=methods.fedsubavg, weighting: str = "samples") -> Method:
    return make(
        lr=workload.lr,
        local_steps=workload.steps,
        batch_size=workload.batch,
        clients_per_round=workload.cohort,
        weighting=weighting,
    )


def auto_choice(workload: Workload) -> tuple[str, str]:
    """The engine that ``engine="auto"`` settles on, and the sentence that says why."""
    auto = Federated(workload, "auto")
    runner, sentences = auto.trainer.engine, [auto.reason]
    runner.recall("", sentences.append)
    auto.round(1)
    return runner.name, sentences[-1]


@dataclass
class _Plain:
    """What both loops without fedsub share: global ids, and torch's own optimiser and loss."""

    workload: Workload

    def __post_init__(self) -> None:
        self.module, self.data = self.workload.objective().module, self.workload.data

    @property
    def params(self) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in self.module.named_parameters()}

    def optimiser(self, module: nn.Module) -> torch.optim.SGD:
        return torch.optim.SGD(module.parameters(), lr=self.workload.lr)

    def train(self, module: nn.Module, optimiser: torch.optim.SGD, samples: np.ndarray) -> None:
        """SGD steps on ``samples`` [steps, batch]."""
        ids = torch.from_numpy(self.data.ids[samples].astype(np.int64))
        labels = torch.from_numpy(self.data.labels[samples])
        for step_ids, step_labels in zip(ids, labels, strict=True):
            optimiser.zero_grad()
            F.binary_cross_entropy_with_logits(module({"ids": step_ids}), step_labels).backward()
            optimiser.step()


class CentralSGD(_Plain):
    name = "central"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.shared = self.optimiser(self.module)

    def round(self, number: int) -> None:
        w = self.workload
        rng = np.random.default_rng([2, number])
        samples = rng.choice(len(self.data.labels), (w.steps, w.cohort * w.batch))
        self.train(self.module, self.shared, samples)


class DeepcopyLoop(_Plain):
    name = "deepcopy"

    def round(self, number: int) -> None:
        states = []
        for client in self.cohort(number):
            local = copy.deepcopy(self.module)
            self.train(local, self.optimiser(local), self.samples(number, client))
            states.append(local.state_dict())
        self.module.load_state_dict({k: torch.stack([s[k] for s in states]).mean(0) for k in states[0]})

    def cohort(self, number: int) -> list[int]:
        rng = np.random.default_rng([1, number])
        return rng.choice(self.workload.clients, self.workload.cohort, replace=False).tolist()

    def samples(self, number: int, client: int) -> np.ndarray:
        """[steps, batch] of one client, without replacement where it has enough."""
        w, begin, end = self.workload, self.data.offsets[client], self.data.offsets[client + 1]
        count = w.steps * w.batch
        chosen = np.random.default_rng([number, client]).choice(end - begin, count, replace=end - begin < count)
        return begin + chosen.reshape(w.steps, w.batch)
