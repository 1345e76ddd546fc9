"""The sets that factors are kept in, and the nearest point of each: P(v) = argmin over the set of ‖u − v‖."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fedsub.checks import check_positive
from fedsub.errors import MethodError, nearest
from fedsub.method.spelling import read_word

KINDS = ("none", "nonnegative", "simplex", "ball", "one-hot")


@dataclass(frozen=True)
class Projection:
    """The projection of vectors onto a set.

    none          everything
    nonnegative   v ≥ 0
    simplex       v ≥ 0 and Σ v = 1
    ball          ‖v‖ ≤ radius
    one-hot       one entry is 1, the others are 0 (not convex; of equal entries the first)
    """

    kind: str = "none"
    radius: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise MethodError(f"There is no projection {self.kind!r}; {nearest(str(self.kind), KINDS)}")
        check_positive("The radius of a ball", self.radius)

    @classmethod
    def parse(cls, text: str) -> Projection:
        """``"simplex"``, or with a radius ``"ball:2.5"``."""
        words = {kind: (partial(cls, kind), float if kind == "ball" else None) for kind in KINDS}
        return read_word(text, words, "projection", objects=False)

    def __str__(self) -> str:
        return f"ball:{self.radius:g}" if self.kind == "ball" else self.kind

    def __call__(self, values: Tensor, dim: int) -> Tensor:
        """Project the vectors along ``dim``."""
        if self.kind == "nonnegative":
            return values.clamp(min=0)
        if self.kind == "ball":
            norms = values.norm(dim=dim, keepdim=True)
            return values * (self.radius / norms.clamp(min=self.radius))
        if self.kind == "simplex":
            return _simplex(values, dim)
        if self.kind == "one-hot":
            return torch.zeros_like(values).scatter_(dim, values.argmax(dim, keepdim=True), 1.0)
        return values


def _simplex(values: Tensor, dim: int) -> Tensor:
    """max(v − t, 0) with the t that makes the sum 1, found from the sorted entries.

    Duchi et al., "Efficient Projections onto the l1-Ball", ICML 2008.
    """
    values = values.movedim(dim, -1)
    falling = values.sort(-1, descending=True).values
    excess = falling.cumsum(-1) - 1
    ranks = torch.arange(1, values.shape[-1] + 1, dtype=values.dtype, device=values.device)
    last = (falling * ranks > excess).sum(-1, keepdim=True).clamp(min=1) - 1
    threshold = (excess / ranks).gather(-1, last)
    return (values - threshold).clamp(min=0).movedim(-1, dim)
