"""Local solvers: how a client improves its copy of the submodel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from fedsub.batches import check_local
from fedsub.core import Tree, Work


@dataclass(frozen=True)
class SGD:
    """Plain stochastic gradient descent: x ← x − lr · g.

    Either ``local_steps`` steps, or ``local_epochs`` passes over the client's data (then the number of
    steps differs by client). ``batch_size=None`` takes all local data as one batch. ``batches``:
    "shuffled" (a fresh permutation each pass), "ordered" (file order, from the start each round) or
    "replacement".
    """

    lr: float = 0.1
    local_steps: int | None = 10
    local_epochs: int | None = None
    batch_size: int | None = 5
    batches: str = "shuffled"
    pure_step: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_local(self)

    def init(self, params: Tree) -> Any:
        return None

    def step(self, params: Tree, grads: Tree, state: Any, work: Work) -> None:
        if work.active is not None:
            grads = {k: g * work.group.spread(work.active, k, g) for k, g in grads.items()}
        torch._foreach_add_(list(params.values()), list(grads.values()), alpha=-work.lr)
