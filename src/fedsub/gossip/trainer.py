"""The rounds of gossip: nodes train as clients of any round do, and then mix what they keep."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedsub.data.clients import Clients
from fedsub.gossip.exchange import Exchange, Outcome
from fedsub.gossip.spectrum import Spectrum
from fedsub.method.groups import Cohort
from fedsub.method.slots import Method
from fedsub.objective.problem import Problem
from fedsub.round.engines.base import Engine, Plan
from fedsub.round.here import Here
from fedsub.round.layout import Asked
from fedsub.round.predict import PersonalModel
from fedsub.round.prepare import Trainer
from fedsub.round.remembered import Remembered
from fedsub.round.server import Opened
from fedsub.round.transport import Answers
from fedsub.trees import Tree, add_rows

if TYPE_CHECKING:
    from fedsub.gossip.method import Gossip


class Between:
    """The transport of gossip: local work is done here, and what crosses wires crosses between nodes."""

    def __init__(self, here: Here, exchange: Exchange):
        self.here, self.exchange_of = here, exchange
        self._found: Outcome | None = None

    def rows(self, number: int, cohort: Cohort) -> dict[str, Asked]:
        """Nobody asks a server for rows."""
        spaces = self.here.half.problem.spaces
        return {name: Asked(space.rows[:0], space.counts[cohort.clients]) for name, space in spaces.items()}

    def ask(self, opened: Opened) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        raise NotImplementedError("there is no server that asks for losses")

    def exchange(self, opened: Opened) -> Answers:
        answers = self.here.exchange(opened)
        found = self._found = self.exchange_of.meet(opened.number, answers.delivered)
        who = opened.cohort.clients
        return replace(answers, down=found.traffic.down[who], up=found.traffic.up[who], measured=found.measured)

    def accept(self, number: int, answers: Answers) -> None:
        assert self._found is not None
        before = self.exchange_of.before()
        self.here.accept(number, answers)
        self.exchange_of.mix(self._found, before)
        self._found = None


class GossipTrainer(Trainer):
    """All nodes in one process. The shared parameters are the mean of the nodes' models, for evaluation alone."""

    def __init__(
        self, gossip: Gossip, problem: Problem, method: Method, params: Tree, engine: Engine, plan: Plan, **options
    ):  # fmt: skip
        super().__init__(problem, method, params, engine, plan, **options)
        seed = options.get("seed", 0)
        keeper = method.keeper
        assert keeper is not None
        self.gossip, self.slot, self.apart = gossip, keeper.own_slot, gossip.private(problem.names)
        self.here.tracking = False  # every node moves in every round, so all of it is saved
        self.exchange = Exchange(gossip, problem, params, self.memory, self.slot, self.apart, seed)
        self.transport = Between(self.here, self.exchange)
        self.spectrum = Spectrum(gossip, len(problem.clients), seed)
        tables = {f"client/{name}": value for name, value in self.memory.tensors.items()}
        small = self.server.small() | {f"gossip/{name}": value for name, value in self.exchange.state.items()}
        self.state = Remembered(small, tables, {}, all_rows=True)
        self._held = {name: self._weights_of(name) for name in problem.names}
        self._mean_of = -1

    def _weights_of(self, name: str) -> tuple[Tensor, Tensor, Tensor]:
        """(rows of a parameter's entries, their weights, Σ of these by row) for the mean of the nodes' models."""
        space = self.problem.tables.get(name)
        own = self.exchange.own if self.exchange.own is not None else np.ones(len(self.problem.clients))
        if space is None:
            rows, weights, size = np.zeros(len(own), np.int64), own, 1
        else:
            rows, weights = space.rows.astype(np.int64), np.repeat(own, space.counts)
            size = len(self.params[name])
        held = np.bincount(rows, weights, size)
        device = self.params[name].device
        return tuple(torch.from_numpy(np.ascontiguousarray(v)).to(device) for v in (rows, weights, held))  # type: ignore[return-value]

    def _mean(self, number: int) -> Tree:
        """The shared parameters: every row's mean over its holders; one that nobody holds stays as it was."""
        if self._mean_of == number:
            return self.params
        for name, value in self.params.items():
            rows, weights, held = self._held[name]
            own = self.memory.tensors[f"{self.slot}/{name}"].to(value.device)
            shape = (-1, *[1] * (own.ndim - 1))
            total = torch.zeros(len(held), *own.shape[1:], dtype=torch.float64, device=value.device)
            add_rows(total, rows, own.double() * weights.reshape(shape))
            there = held > 0
            mean = (total[there] / held[there].reshape(shape)).to(value.dtype)
            if name in self.problem.tables:
                value[there] = mean
            elif len(mean):
                value.copy_(mean[0])
        self._mean_of = number
        return self.params

    def model(self, number: int) -> Tree | PersonalModel:
        names = self.apart if self.gossip.evaluated == "mean" else self.problem.names
        shared = self._mean(number)
        return PersonalModel(shared, self.memory, self.slot, tuple(names)) if names else shared

    def saves(self, number: int, run: Path) -> dict[str, object]:
        """A checkpoint holds the mean, too: it is what an unfinished run is loaded as."""
        self._mean(number)
        return {}

    def settle(self, number: int) -> None:
        self._mean(number)

    def measures(self, splits: dict[str, Clients]) -> dict[str, float]:
        """How far the nodes' models are from their mean, and the spectral gap of the mixing matrix."""
        apart = np.zeros(len(self.problem.clients))
        for name in self.exchange.network.names:
            rows, _, _ = self._held[name]
            own = self.memory.tensors[f"{self.slot}/{name}"]
            mean = self.params[name] if name in self.problem.tables else self.params[name].unsqueeze(0)
            square = (
                (own.double() - mean.double().to(own.device)[rows]).square().reshape(len(own), -1).sum(1).cpu().numpy()
            )
            space = self.problem.tables.get(name)
            apart += square if space is None else np.bincount(self._owners(space.name), square, len(apart))
        return {
            "gossip.consensus": float(np.sqrt(apart.mean())),
            "gossip.furthest": float(np.sqrt(apart.max())),
            "gossip.gap": self.spectrum.gap(max(self._mean_of, 1)),
        }

    def _owners(self, space: str) -> np.ndarray:
        return self.exchange.network.holdings[space].owners
