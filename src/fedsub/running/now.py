"""`Now`: the run as it is at this moment, for callbacks. Nothing is computed before it is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from fedsub.data.clients import Clients
from fedsub.errors import DataError, RunError
from fedsub.method.training import Trains
from fedsub.objective.problem import Problem
from fedsub.round.engines.base import template
from fedsub.round.evaluate import Evaluate, Evaluator
from fedsub.round.norms import Norms
from fedsub.round.predict import Elsewhere, Evaluated, PersonalModel
from fedsub.trees import Tree, whole


class Now:
    """What a callback may ask of the run that it follows, in ``on_start``, ``on_round`` and ``on_end``.

    ``round`` is the last one that was played; ``splits`` are the data that are evaluated, by name. What is handed out
    are copies: they stay as they are while training goes on, and changing them changes no result.
    """

    def __init__(self, problem: Problem, trainer: Trains, evaluator: Evaluator, round: int):
        self.round, self.splits = round, dict(evaluator.splits)
        self._problem, self._trainer, self._evaluator = problem, trainer, evaluator
        self._model: tuple[int, Evaluated] | None = None

    def model(self) -> Evaluated:
        """What is evaluated: parameters by name, or shared and personal ones. Training goes on in them: only read."""
        if self._model is None or self._model[0] != self.round:
            self._model = self.round, self._trainer.model(self.round)
        return self._model[1]

    def params(self, client: Any = None) -> Tree:
        """Copies of the shared parameters by name, or of those that a client, given by its id, would use."""
        model = self.model()
        shared = model.shared if isinstance(model, PersonalModel | Elsewhere) else model
        out = {name: value.detach().clone() for name, value in whole(shared, "A copy of the parameters").items()}
        if client is None:
            return out
        if not isinstance(model, PersonalModel):
            raise RunError("Clients of this method have no parameters of their own; leave client out.")
        (at,) = found if len(found := np.flatnonzero(self._problem.clients.client_ids == client)) == 1 else (None,)
        if at is None:
            some = ", ".join(repr(c) for c in self._problem.clients.client_ids[:3].tolist())
            raise DataError(f"There is no client {client!r} in the training data; they are {some} …")
        for name in model.names:
            own = model.kept.tensors[f"{model.slot}/{name}"]
            space = self._problem.tables.get(name)
            if space is None:
                out[name] = own[int(at)].detach().clone().to(out[name].device)
                continue
            mine = slice(int(space.row_offsets[at]), int(space.row_offsets[at + 1]))
            rows = torch.from_numpy(space.rows_of(int(at)).astype(np.int64)).to(out[name].device)
            out[name][rows] = own[mine].to(out[name].device)
        return out

    def module(self, client: Any = None) -> nn.Module:
        """An ordinary nn.Module with these values, in eval mode."""
        values = self.params(client)
        made = template(self._problem, next(iter(values.values())).device)
        own = dict(made.named_parameters())
        for name, value in values.items():
            own[name].data = value
        return made.eval()

    def norms(self, weighting: str = "samples") -> dict[str, float]:
        """‖∇f‖² and ∇fᵀ D ∇f now, on all training data (`fedsub.round.norms`)."""
        return self._evaluator.norms(self.model(), Norms(weighting=weighting).weighting)

    def evaluate(
        self, splits: dict[str, Clients] | None = None, plan: Evaluate | None = None, *, final: bool = False
    ) -> dict[str, Any]:
        """The metrics now, as in a record: of the run's splits and plan, or of others.

        ``final=True`` gives everything by split, as `Result.final`.
        """
        known = self._evaluator
        if splits is not None or plan is not None:
            known = Evaluator(
                self._problem, splits or self.splits, plan or known.plan, known.columns, known.population
            )  # fmt: skip
        return known.final(self.model()) if final else known(self.model())
