"""The label party's samples that others lack: steps of its own, and modules that can do without activations.

A click from another publisher has features and a label at the ads platform and nothing anywhere else. A split model on
the intersection alone leaves all those unused, and they are most (P. Wei et al., "FedAds", SIGIR 2023). With
``LabelParty(own=…)`` the label party takes ``own_steps`` batches of such samples after each batch with the others,
while those compute; nothing of it crosses. Its module is called with a batch in which no party's activations stand
(`fedsub.vertical.joined`).
"""

from __future__ import annotations

import numpy as np
import torch

from fedsub import rng
from fedsub.data.clients import Clients
from fedsub.errors import DataError, ObjectiveError, RunError
from fedsub.objective.objective import Objective
from fedsub.objective.problem import Problem
from fedsub.vertical import agreed
from fedsub.vertical.side import Side


class OwnSteps:
    """Steps on samples that the label party has alone, of the parameters and the optimiser of its ``side``."""

    def __init__(self, side: Side, objective: Objective, data: Clients, count: int, batch_size: int, seed: int):
        _check(side.problem.clients, data)
        self.problem = Problem.bind(objective, data)
        self.count, self.batch_size = count, batch_size
        self.seed = int(rng.key(seed, rng.SIDES)) >> 1  # an order of its own
        self.side = Side(self.problem, side.params, side.rule, seed=seed, place=side.place + 1)
        self.side.state, self.side.moved = side.state, side.moved
        try:
            self.side.inspect(self._batch(1), {})
        except ObjectiveError as err:
            raise ObjectiveError(
                f"{err} This was a batch of samples that the label party has alone: use OwnHead or Students, or a "
                "module that looks which names are in its batch."
            ) from err

    def _batch(self, number: int) -> np.ndarray:
        return agreed.batch_of(self.seed, self.problem.clients.samples, self.batch_size, number)

    def take(self, step: int, clock: int) -> None:
        """Those that follow step ``step`` with the others; ``clock`` counts the steps of the optimiser before them."""
        for k in range(self.count):
            opened = self.side.open(self._batch((step - 1) * self.count + k + 1), {}, clock + k + 1)
            loss = self.problem.objective.loss(opened.output, opened.batch).mean()
            if not bool(torch.isfinite(loss)):
                raise RunError(
                    f"The loss of the label party's own samples is {loss.item()} after step {step}; lower the rate, or "
                    "scale plain value columns."
                )
            found = torch.autograd.grad(loss, tuple(opened.leaves.values()), allow_unused=True)
            self.side.advance(opened, found, clock + k + 1)


def _check(aligned: Clients, own: Clients) -> None:
    """Refuse samples whose ids stand for other rows."""
    for name, space in aligned.spaces.items():
        other = own.spaces.get(name)
        same = other is not None and other.size == space.size
        if same and space.vocabulary is not None and other is not None:
            same = other.vocabulary is not None and bool((space.vocabulary == other.vocabulary).all())
        if not same:
            raise DataError(
                f"The label party's own samples number the table {name!r} in another way than the aligned ones; read "
                "both as one table and cut it, or give vocabulary= the aligned ones."
            )
