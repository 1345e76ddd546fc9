"""FedMAvg and SFMF as methods of `fedsub.run`: client = user, W = the item table, h = what clients keep."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsub.data.clients import Clients
from fedsub.errors import MethodError, NoUsableClient
from fedsub.families.factorisation.measures import measure
from fedsub.families.factorisation.rounds import Outcome, rounds_of
from fedsub.families.factorisation.settings import SFMF, FedMAvg
from fedsub.families.factorisation.stacks import Data, from_ratings
from fedsub.method.groups import Cohort
from fedsub.method.training import Options, Prepared, Trains
from fedsub.objective.losses import Squared
from fedsub.objective.models.factorisation import Factorisation
from fedsub.objective.problem import Problem
from fedsub.round.layout import asked_of
from fedsub.round.ledger import Ledger, RoundReport
from fedsub.round.memory import ClientState
from fedsub.round.predict import PersonalModel
from fedsub.round.remembered import Moved, Remembered
from fedsub.round.schema import Field, Schema, lengths
from fedsub.trees import Tree

TABLE, SLOT = "items.weight", "personal"


def prepare(method: FedMAvg | SFMF, problem: Problem, params: Tree, options: Options) -> Prepared:
    options.refuse(method.name, "engine", "chunk", "workers", "compile", "shards")
    trainer = FactorisationTrainer(method, problem, params, options)
    loss = problem.objective.loss
    assert isinstance(loss, Squared)
    groups = len(trainer.data.stacks)
    return Prepared(
        trainer, f"factorisation: all clients at once, in {groups} groups of about the same size",
        (trainer.item, loss.label),
    )  # fmt: skip


class FactorisationTrainer(Trains):
    """The rounds of FedMAvg or SFMF on a problem whose module is a `Factorisation`."""

    def __init__(self, method: FedMAvg | SFMF, problem: Problem, params: Tree, options: Options):
        module, loss = problem.objective.module, problem.objective.loss
        if not isinstance(module, Factorisation) or not isinstance(loss, Squared):
            raise MethodError(
                f"{method.name} factorises ratings: it needs the model 'factorisation' with losses.squared, got "
                f'{type(module).__name__}. Make it with fedsub.models.make_objective(clients, "factorisation").'
            )
        if getattr(problem.objective, "l2", 0.0):
            raise MethodError(f"Give l2 to {method.name} itself, not to the objective: its steps depend on it.")
        self.method, self.problem, self.params, self.options = method, problem, params, options
        self.engine, self.item = SimpleNamespace(name="factorisation"), module.item
        self.names = ("user", "offset") if "offset" in problem.dense else ("user",)
        self.memory = ClientState(problem, params, {SLOT: self.names}, folder=options.scratch)
        tables = {f"client/{name}": value for name, value in self.memory.tensors.items()}
        moved = {TABLE: Moved(len(params[TABLE]))} | {f"client/{n}": one for n, one in self.memory.moved.items()}
        self.state = Remembered({}, tables, moved, all_rows=isinstance(method, SFMF))
        schema = Schema((), {TABLE: params[TABLE]}, {TABLE: problem.tables[TABLE].name} if method.submodel else {})
        self.ledger = Ledger(schema, len(problem.clients), {n: space.size for n, space in problem.spaces.items()})
        user, item, value = ratings_of(problem.clients, module.item, loss.label)
        offset = self._offsets(module, user, value)
        w, kept = params[TABLE], self.memory.tensors
        self.data = _to(from_ratings(user, item, value - offset, users=len(problem.clients), items=len(w)), w)
        self.h = kept[f"{SLOT}/user"].unsqueeze(2)  # a view: what is kept changes with it
        self.rounds = rounds_of(method, self.data, w, self.h, seed=options.seed, lost=options.lost)

    def _offsets(self, module: Factorisation, user: np.ndarray, value: np.ndarray) -> np.ndarray:
        """What is subtracted from each rating: the mean of its client, as the client keeps it, or a constant."""
        if "offset" not in self.names:
            return np.full(len(user), float(module.offset))
        counts = np.bincount(user, minlength=len(self.problem.clients))
        own = self.memory.tensors[f"{SLOT}/offset"]
        means = np.bincount(user, value, len(counts)) / np.maximum(counts, 1)
        own.copy_(torch.from_numpy(np.where(counts > 0, means, float(self.params["offset"]))))
        return own.double().cpu().numpy()[user]

    def round(self, number: int) -> RoundReport:
        outcome = self.rounds.round(number)
        everyone, lost, bad = np.arange(len(outcome.sent)), outcome.lost, outcome.bad
        if bad.any() and self.options.on_bad_update == "raise":
            named = ", ".join(str(self.problem.clients.client_ids[c]) for c in np.flatnonzero(bad)[:5])
            raise NoUsableClient(f"Round {number}: what client {named} sent holds NaN or infinity; lower lr.")
        self._note(outcome)
        down, up = self.traffic(outcome)
        return RoundReport(everyone, outcome.loss, down, up, everyone[lost], everyone[bad])

    def traffic(self, outcome: Outcome) -> tuple[np.ndarray, np.ndarray]:
        """Bytes (down, up) of every client.

        Everybody receives W; those who were drawn send W_p, once for every time. In submodels only the own rows
        travel, and everybody asks for them by id. FedMAvg's common step costs a number in each direction. What a client
        refuses to send, for it holds NaN or infinity, is an empty message.
        """
        schema, count, space = self.ledger.schema, len(outcome.sent), self.problem.tables[TABLE]
        counts, everyone = {space.name: space.counts}, Cohort.of(np.arange(count))
        number = [Field("step", torch.float64, ())] if isinstance(self.method, FedMAvg) else []
        down = lengths([*schema.tree("model", (TABLE,)), *number], counts, count)
        update = lengths(schema.tree("update", (TABLE,)), counts, count)
        up = np.where(outcome.lost, 0, outcome.sent) * np.where(outcome.bad, lengths((), {}, count), update)
        if number:
            up += lengths(number, {}, count)
        if self.method.submodel:
            up += self.ledger.asked(everyone, asked_of({space.name: space}, everyone.clients))
        return down, up

    def _note(self, outcome: Outcome) -> None:
        space = self.problem.tables[TABLE]
        senders = np.flatnonzero((outcome.sent > 0) & ~outcome.lost)
        rows = [space.rows_of(client) for client in senders.tolist()]
        moved = np.unique(np.concatenate(rows)).astype(np.int64) if rows else np.zeros(0, np.int64)
        self.state.note(TABLE, torch.from_numpy(moved))
        for name in self.memory.moved:
            self.state.note(f"client/{name}", torch.arange(len(self.problem.clients)))

    def model(self, number: int) -> PersonalModel:
        return PersonalModel(self.params, self.memory, SLOT, self.names)

    def settle(self, number: int) -> None:
        """Nothing is ever owed."""

    def measures(self, splits: dict[str, Clients]) -> dict[str, float]:
        """The objective and the distance from stationarity, on the training data."""
        method = self.method if isinstance(self.method, FedMAvg) else FedMAvg()
        found = measure(self.data, method, self.params[TABLE], self.h)
        return {f"train.{name}": value for name, value in found.items()}


def ratings_of(clients: Clients, item: str, value: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(client, item, rating) of every sample."""
    samples = np.arange(clients.samples)
    arrays = clients.gather(samples, (item, value), local=False)
    return clients.clients_of(samples), arrays[item], arrays[value].astype(np.float64)


def _to(data: Data, like: Tensor) -> Data:
    """The same data in the type and on the device of the model."""
    from dataclasses import replace

    def moved(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.to(like.device) if value.dtype == torch.int64 else value.to(like)

    stacks = tuple(replace(stack, **{k: moved(v) for k, v in vars(stack).items()}) for stack in data.stacks)
    return replace(data, stacks=stacks)
