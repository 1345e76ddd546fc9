"""What all engines share: the local work of a group of clients, and modules that hold a submodel."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import torch
from torch import Tensor, nn

from fedsub.errors import ObjectiveError
from fedsub.method.batches import Batches
from fedsub.method.part import Work
from fedsub.objective.losses import Batch
from fedsub.objective.objective import Objective
from fedsub.objective.problem import Problem
from fedsub.torch_private import foreach_add_, foreach_mul_
from fedsub.trees import Tree


@dataclass(frozen=True)
class Plan:
    """What the setup learned about the module, for engines to rely on."""

    columns: tuple[str, ...]  # the columns that module and loss read
    dropout: bool = False
    sample_mask: bool = False  # whether the module reads which samples are real
    random: bool = False  # other random functions; only the serial engine can seed them


Sent = Callable[[slice], Tree]  # what some clients of a cohort were sent
Groups = Callable[["Engine"], list[slice]]
Run = Callable[["Engine", slice], object]


class Engine:
    """How the local steps of clients are computed: all that serial and batched differ in."""

    name: str
    stacked: bool  # whether clients share tensors: then there are at least two of them

    def recall(self, before: str, tell: Callable[[str], None]) -> None:
        """``before`` names the engine that an earlier session of the run settled on, ""; ``tell`` hears of a choice."""

    def settle(self, clients: int, groups: Groups, run: Run) -> Engine:
        """The engine of a round of so many clients: itself, or the one that is chosen by trying.

        ``groups`` splits the cohort for an engine, ``run`` does the work of one of its groups.
        """
        return self

    def split(self, batches: Batches, sent: Sent) -> list[slice]:
        """The clients of a cohort in groups that are computed together."""
        raise NotImplementedError

    def steps(self, work: Work, batches: Batches, keys: np.ndarray | None) -> tuple[Tree, np.ndarray]:
        """(where a group's parameters end, losses [steps, c] in float64; 0 where a client was done).

        ``keys`` int64 [c, steps]: a random word per client and step.
        """
        raise NotImplementedError


@overload
def first_steps(steps: int, share: float) -> int: ...
@overload
def first_steps(steps: np.ndarray, share: float) -> np.ndarray: ...
def first_steps(steps: int | np.ndarray, share: float) -> int | np.ndarray:
    """A share of a client's steps, rounded up."""
    found = np.ceil(np.multiply(steps, share)).astype(np.int64)
    return found if isinstance(steps, np.ndarray) else int(found)


def mean_gradient(params: Tree, at: Tree, steps: Sequence[Callable[[], Tree]]) -> Tree:
    """The mean over steps of the gradient at ``at``. The steps read ``params``, which are lent and given back."""
    own = {name: value.clone() for name, value in params.items()}
    for name, value in params.items():
        value.copy_(at[name])
    mean = steps[0]()
    for step in steps[1:]:
        foreach_add_(list(mean.values()), list(step().values()))
    foreach_mul_(list(mean.values()), 1.0 / len(steps))
    for name, value in params.items():
        value.copy_(own[name])
    return mean


def template(problem: Problem, device: torch.device) -> nn.Module:
    """A copy of the user's module without its tables, to be filled with a submodel, on ``device``."""
    own = dict(problem.objective.module.named_parameters())
    empty = {id(own[n]): nn.Parameter(torch.empty((0, *own[n].shape[1:]), dtype=own[n].dtype)) for n in problem.tables}
    try:
        return copy.deepcopy(problem.objective.module, empty).to(device).train()
    except Exception as err:
        raise ObjectiveError(
            f"The module cannot be copied ({type(err).__name__}: {err}); engines work on copies of it. Keep locks, "
            "files and results of forward out of its attributes."
        ) from err


class Filled:
    """A module whose parameters are exchanged: every client gets fresh ones, so that nothing of the last is left."""

    def __init__(self, module: nn.Module):
        self.module = module
        names = {id(p): name for name, p in module.named_parameters()}
        self._places: dict[str, list[tuple[nn.Module, str]]] = {}
        for owner in module.modules():
            for attribute, p in owner.named_parameters(recurse=False, remove_duplicate=False):
                self._places.setdefault(names[id(p)], []).append((owner, attribute))

    def losses(self, objective: Objective, data: Batch, real: Tensor) -> tuple[Tensor, Tensor]:
        """(losses [B], output) of the submodel that it holds; ``real`` [B] is 1 for samples that are not padding."""
        data = {**data, "sample_mask": real}
        output = objective.output(self.module, data)
        return objective.loss(output, data), output

    def fill(self, values: Tree) -> dict[str, nn.Parameter]:
        """Put ``values`` into the module (shared, not copied) and return the parameters that hold them."""
        params = {name: nn.Parameter(value) for name, value in values.items()}
        for name, param in params.items():
            for owner, attribute in self._places[name]:
                setattr(owner, attribute, param)
        return params


def columns_to(arrays: dict[str, np.ndarray], device: torch.device) -> Batch:
    return {name: torch.from_numpy(a).to(device) for name, a in arrays.items()}
