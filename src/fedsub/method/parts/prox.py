"""The proximal term of FedProx."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedsub.checks import check_number
from fedsub.errors import MethodError
from fedsub.method.part import Part, Work
from fedsub.method.slots import Method
from fedsub.trees import Tree


@dataclass(frozen=True)
class Prox(Part):
    """Pull a client towards what it was sent: each step uses g + μ (x − X).

    The client then approximately minimises f_i(x) + (μ/2)‖x − X‖² over its submodel.
    T. Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.
    """

    mu: float = 0.01
    pure_step: ClassVar[bool] = True

    @property
    def pull(self) -> float:
        return self.mu

    def check(self, method: Method) -> None:
        check_number("mu of Prox", self.mu, least=0)
        lr = method.local.largest_lr
        if self.mu * lr > 1:
            raise MethodError(
                f"Prox(mu={self.mu}) with lr={lr} overshoots what was sent "
                f"(lr·mu = {self.mu * lr:g} > 1); lower one of them."
            )

    def grad(self, grads: Tree, params: Tree, work: Work) -> Tree:
        return {k: torch.add(g, params[k] - work.sent[k], alpha=self.mu) for k, g in grads.items()}
