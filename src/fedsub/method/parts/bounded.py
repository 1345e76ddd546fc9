"""What differential privacy asks of a client: an update of bounded length, and nothing beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor

from fedsub.checks import check_number, check_positive
from fedsub.errors import MethodError
from fedsub.method.groups import Group
from fedsub.method.part import Message, Part
from fedsub.method.slots import Method
from fedsub.privacy.accounting import library
from fedsub.privacy.budget import Budget
from fedsub.privacy.noise import Secret
from fedsub.trees import Tree

SPARE = 1 - 1e-6  # rounding in single precision must not make an update longer than its bound


@dataclass(frozen=True)
class BoundedUpdate(Part):
    """Every client's whole update is clipped: all tables and dense parameters together, Δ ← Δ · min(1, clip / ‖Δ‖₂)."""

    clip: float = 1.0
    noise: float | None = None
    epsilon: float | None = None
    delta: float = 1e-5
    accountant: str = "rdp"
    secret: Any = field(default=None, kw_only=True)
    silent: ClassVar[bool] = True

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_positive(f"clip of {name}", self.clip)
        if self.noise is not None:
            check_number(f"noise of {name}", self.noise, least=0)
        if self.noise is None and self.epsilon is None:
            raise MethodError(f"{name} needs noise (a multiple of clip), or epsilon, from which the noise follows.")
        _ = self.budget
        if self.noise == 0 and self.epsilon is not None:
            raise MethodError(f"{name} without noise has no epsilon; leave epsilon out, or give noise.")
        if self.secret is not None:
            object.__setattr__(self, "secret", Secret.of(self.secret))
        if self.noise != 0:
            library()  # if it is missing, that is told before training

    @property
    def budget(self) -> Budget:
        """What may be spent; without ``epsilon`` it is only counted."""
        return Budget(float("inf") if self.epsilon is None else self.epsilon, self.delta, self.accountant)

    def check(self, method: Method) -> None:
        name, at = type(self).__name__, method.parts.index(self)
        if method.pooled:
            raise MethodError(f"{name} hides what a client sends; pooled data has no clients.")
        if method.sampler.probes:
            self.refuse_reports(method)
        for other in method.parts:
            if isinstance(other, BoundedUpdate) and other is not self:
                raise MethodError(f"{name} and {type(other).__name__} are two ways to hide the same; choose one.")
            if other is not self and (other.payloads or other.numbers):
                sent = ", ".join((*other.payloads, *other.numbers))
                raise MethodError(
                    f"{type(other).__name__} sends something beside the update ({sent}), which {name} neither clips "
                    "nor covers with noise; leave one of the two out."
                )
        for other in method.parts[at + 1 :]:
            self._check_after(other)

    def refuse_reports(self, method: Method) -> NoReturn:
        raise MethodError(
            f"The sampler {type(method.sampler).__name__} chooses clients by their losses, which they would tell in "
            f"the clear: {type(self).__name__} would hide nothing. Use Poisson(clients_per_round)."
        )

    def _check_after(self, other: Part) -> None:
        """Refuse a part that stands behind this one and breaks what it promises."""

    def finish(self, message: Message, params: Tree, work: Any) -> None:
        update = message.trees["update"]
        message.trees["update"] = clipped(update, norms(update, work.group), self.clip, work.group)


def norms(update: Tree, group: Group) -> Tensor:
    """‖Δ‖₂ of each client of a group, over all its parameters, float64 [c]."""
    square = torch.zeros(group.count, dtype=torch.float64)
    for name, value in update.items():
        square = square.to(value.device) + group.total(name, value.double().square())
    return square.sqrt()


def clipped(update: Tree, lengths: Tensor, clip: float, group: Group) -> Tree:
    """Each client's update, none longer than ``clip``."""
    factors = (clip * SPARE / lengths).clamp_max(1.0)
    return {name: value * group.spread(factors.to(value.dtype), name, value) for name, value in update.items()}


def changes_what_is_sent(part: Part) -> bool:
    return type(part).finish is not Part.finish and not part.shrinks


def looks_at_rows_sent(part: Part) -> bool:
    return type(part).combine is not Part.combine or type(part).limit is not Part.limit
