"""FedNova: clients that take more local steps must not count for more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedsub.errors import MethodError
from fedsub.method.part import Message, Part, Total, Work
from fedsub.method.slots import Method
from fedsub.trees import Tree


@dataclass(frozen=True)
class NormalisedSteps(Part):
    """X ← X + τ_eff Σ p_i Δ_i / ‖a_i‖₁, where Δ_i = −η Σ_k a_ik g_ik is linear in the client's gradients.

        local solver                    ‖a_i‖₁ after τ_i steps
        SGD                             τ_i
        with proximal term, α = η μ     (1 − (1−α)^τ_i) / α
        momentum ρ                      [τ_i − ρ (1−ρ^τ_i)/(1−ρ)] / (1−ρ)
        rate η c^k at step k            (1 − c^τ_i) / (1−c)
          with proximal term            Σ_k c^k Π_{j>k} (1 − α c^j)
          momentum ρ                    [(1−c^τ_i)/(1−c) − ρ (1−(ρc)^τ_i)/(1−ρc)] / (1−ρ)

    ``effective``: τ_eff = Σ p_i ‖a_i‖₁ ("norms") or Σ p_i τ_i ("steps", as the authors' code does with a
    proximal term). The client sends one number more. Wang et al., "Tackling the Objective Inconsistency
    Problem in Heterogeneous Federated Optimization", NeurIPS 2020.
    """

    effective: str = "norms"
    numbers: ClassVar[tuple[str, ...]] = ("effective",)
    rowwise: ClassVar[bool] = True

    @property
    def key(self) -> str:
        return "fednova"

    def check(self, method: Method) -> None:
        if self.effective not in ("norms", "steps"):
            raise MethodError(f'effective of NormalisedSteps must be "norms" or "steps", got {self.effective!r}.')
        pull = _pull(method, method.local.lr)
        try:
            method.local.path_norm(torch.ones(1, dtype=torch.float64), pull)
        except MethodError as err:
            raise MethodError(f"FedNova divides a client's update by ‖a‖₁: {err}.") from err
        if pull and any("lr" in values for values in (method.local.groups or {}).values()):
            raise MethodError(
                "With a proximal term ‖a‖₁ depends on the rate, and a client sends one number for all parameters; "
                "leave lr out of groups, or the proximal term."
            )
        self._check_others(method)

    def _check_others(self, method: Method) -> None:
        for part in method.parts:
            if part.votes:
                raise MethodError(
                    f"What {type(part).__name__} sends has no size, which FedNova's division by the number of steps "
                    "would change, so it would be lost; use ErrorFeedbackSign(), or leave one of them out."
                )
            if part.steers and method.parts.index(part) > method.parts.index(self):
                name = type(part).__name__
                raise MethodError(
                    f"{name} reads the client's path off its update, so it must come before FedNova divides it; "
                    f"write parts=({name}(), NormalisedSteps())."
                )

    def finish(self, message: Message, params: Tree, work: Work) -> None:
        assert work.steps is not None
        update = message.trees["update"]
        norms = {scale: self._norm(work, scale) for scale in {work.scales.get(n, 1.0) for n in update} or {1.0}}
        for name, value in update.items():
            norm = norms[work.scales.get(name, 1.0)].to(value.dtype)
            update[name] = value * work.group.spread(1.0 / norm, name, value)
        message.numbers[f"{self.key}.effective"] = norms[max(norms)] if self.effective == "norms" else work.steps

    def _norm(self, work: Work, scale: float) -> Tensor:
        """‖a_i‖₁ of every client of the group, float64."""
        assert work.steps is not None
        assert work.method is not None
        return work.method.local.path_norm(work.steps.to(torch.float64), _pull(work.method, work.lr * scale))

    def combine(self, mean: dict[str, Tree], total: Total, state: dict[str, Tree], round: int) -> None:
        for value in mean["update"].values():
            value.mul_(total.numbers[f"{self.key}.effective"])


def _pull(method: Method, rate: float) -> float:
    """η μ of the proximal terms."""
    return rate * sum(part.pull for part in method.parts)
