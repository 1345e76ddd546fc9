"""What a model says to samples that are made up: any items, for any client, in any context."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from fedsub.errors import ConfigError
from fedsub.objective.losses import HalfCrossEntropy, Loss
from fedsub.objective.problem import Problem
from fedsub.round.cut import cut
from fedsub.round.engines.base import Filled, columns_to, template
from fedsub.round.predict import PersonalModel, Predictor
from fedsub.trees import Model, Tree, whole

BATCH = 1 << 14  # samples that a shared model is asked about at once


class Scorer:
    """Asks shared and personal models; modules are made once and filled with the parameters of the moment."""

    def __init__(self, problem: Problem, columns: tuple[str, ...]):
        self.problem, self.columns = problem, columns
        self._module: Filled | None = None
        self._personal: Predictor | None = None

    def full(self, params: Model) -> Filled:
        """The module with the full tables; values are shared, not copied: a table may fill half the memory."""
        return self._filled(whole(params, "This"))

    def over(self, params: Model, arrays: dict[str, np.ndarray]) -> tuple[Filled, dict[str, np.ndarray]]:
        """(the module for samples of these columns, and the columns for it): of tables elsewhere just their rows."""
        own, arrays, _ = cut(self.problem.tables, params, arrays)
        return self._filled(own), arrays

    def _filled(self, params: Tree) -> Filled:
        if self._module is None:
            self._module = Filled(template(self.problem, next(iter(params.values())).device))
            self._module.module.eval()
        self._module.fill(params)
        return self._module

    def personal(self, model: PersonalModel) -> Predictor:
        if self._personal is None:
            self._personal = Predictor(self.problem, self.columns, next(iter(model.shared.values())).device)
        return self._personal

    def scores(self, model: Model | PersonalModel, ids: np.ndarray, arrays: dict[str, np.ndarray]) -> np.ndarray:
        """One number a sample [u, b] of columns [u, b, …]; ``ids`` [u] are the clients, for personal models."""
        count, width = next(iter(arrays.values())).shape[:2]
        loss = self.problem.objective.loss
        if isinstance(model, PersonalModel):
            real = np.ones((count, width), bool)
            said = self.personal(model).ask(model, ids, dict(arrays), real)[1]
            return one_score(said.reshape(count * width, *said.shape[2:]), loss).reshape(count, width)
        flat = {n: a.reshape(count * width, *a.shape[2:]) for n, a in arrays.items()}
        parts = [one_score(said, loss) for said in self.outputs(model, flat)]
        return np.concatenate(parts).reshape(count, width)

    def outputs(self, model: Model, arrays: dict[str, np.ndarray]) -> Iterator[Tensor]:
        """What a shared model says to samples [n, …], batch by batch."""
        objective, count = self.problem.objective, len(next(iter(arrays.values())))
        device = next(iter(model.values())).device
        for low in range(0, count, BATCH):
            module, some = self.over(model, {n: a[low : low + BATCH] for n, a in arrays.items()})
            batch = columns_to(some, device)
            mask = torch.ones(min(BATCH, count - low), device=device)
            with torch.no_grad():
                said = objective.output(module.module, {**batch, "sample_mask": mask})
            yield said


def one_score(output: Tensor, loss: Loss) -> np.ndarray:
    """The number by which a sample is ranked, float64 [n]; NaN counts as the least."""
    if isinstance(loss, HalfCrossEntropy):
        output = output[..., 0] - output[..., 1]
    elif output.ndim == 2 and output.shape[1] == 1:
        output = output[:, 0]
    if output.ndim != 1:
        raise ConfigError(
            f"Ranking needs one score a sample, and the module returns {list(output.shape[1:])} numbers for each; "
            "let it return one."
        )
    found = output.double().cpu().numpy()
    return np.where(np.isnan(found), -np.inf, found)
