"""Gradient mix-up and projection: the two halves of MixPro, the protection that came with FedAds.

(P. Wei et al., "FedAds: a benchmark for privacy-preserving CVR estimation with vertical federated learning", SIGIR
2023.) Neither needs labels, and neither promises anything: what they do is measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsub.checks import check_decay, check_positive
from fedsub.vertical.protection import Draws, Protection


@dataclass(frozen=True)
class GradientMixup(Protection):
    """Every row is mixed with another one of the batch, of which it takes less than half.

        g̃_i = λ_i g_i + (1 − λ_i) g_π(i),   λ_i = max(β_i, 1 − β_i),   β_i ~ Beta(α, α)

    π is a random order of the batch. The mean over the batch is unbiased. Small α mix little, large ones half and half.
    """

    alpha: float = 0.6

    def __post_init__(self) -> None:
        check_positive("alpha", self.alpha)

    def protect(self, gradient: Tensor, labels: Tensor, draws: Draws) -> Tensor:
        other = gradient[draws.permutation(len(gradient))]
        share = beta(self.alpha, len(gradient), draws, gradient)
        share = torch.maximum(share, 1 - share)[:, None]
        return share * gradient + (1 - share) * other


@dataclass(frozen=True)
class GradientProjection(Protection):
    """Every row whose angle to the batch's mean gradient ḡ is too wide is turned until its cosine is ``goal``.

        φ = cos(g_i, ḡ) < goal:   g̃_i = g_i + ḡ · ‖g_i‖ (goal √(1−φ²) − φ √(1−goal²)) / (‖ḡ‖ √(1−goal²))

    The step is that of Z. Wang et al., "Gradient Vaccine", ICLR 2021. A row opposite to ḡ has no side on which to turn,
    and gets a random one.
    """

    goal: float = 0.5

    def __post_init__(self) -> None:
        check_decay("goal", self.goal, hint="the least cosine between a row and the mean of all")

    def protect(self, gradient: Tensor, labels: Tensor, draws: Draws) -> Tensor:
        mean = gradient.mean(0)
        size, length = mean.norm(), gradient.norm(dim=1)
        if not float(size):
            return gradient
        cosine = (gradient @ mean / (size * length.clamp_min(torch.finfo(gradient.dtype).tiny))).clamp(-1, 1)
        narrow = (1 - self.goal**2) ** 0.5
        step = length * (self.goal * (1 - cosine.square()).sqrt() - cosine * narrow) / (size * narrow)
        turned = gradient + step[:, None] * mean
        opposite = 1 + cosine < 16 * torch.finfo(gradient.dtype).eps
        if bool(opposite.any()) and gradient.shape[1] > 1:
            turned = torch.where(opposite[:, None], self._sideways(gradient, mean / size, draws), turned)
        return torch.where((cosine < self.goal)[:, None], turned, gradient)

    def _sideways(self, gradient: Tensor, mean: Tensor, draws: Draws) -> Tensor:
        """Rows as long as they were, with the cosine ``goal``, on a random side of the mean."""
        side = draws.normal(*gradient.shape, like=gradient)
        side = side - (side @ mean)[:, None] * mean
        side = side / side.norm(dim=1, keepdim=True)
        return gradient.norm(dim=1, keepdim=True) * (self.goal * mean + (1 - self.goal**2) ** 0.5 * side)


def beta(alpha: float, count: int, draws: Draws, like: Tensor) -> Tensor:
    """``count`` draws of Beta(α, α): X / (X + Y) of two gamma variables."""
    x, y = gamma(alpha, count, draws), gamma(alpha, count, draws)
    total = x + y
    return torch.where(total > 0, x / total.clamp_min(1e-300), 0.5).to(like.dtype)


def gamma(alpha: float, count: int, draws: Draws) -> Tensor:
    """Draws of Gamma(α, 1), float64 (G. Marsaglia and W. W. Tsang, 2000), by rejection until all are there."""
    wide = torch.zeros(0, dtype=torch.float64)
    boosted = alpha + 1 if alpha < 1 else alpha
    d = boosted - 1 / 3
    out, missing = torch.zeros(count, dtype=torch.float64), torch.ones(count, dtype=torch.bool)
    while bool(missing.any()):
        n = int(missing.sum())
        normal, uniform = draws.normal(n, like=wide), draws.uniform(n, like=wide)
        v = (1 + normal / (9 * d) ** 0.5) ** 3
        right = (v > 0) & (torch.log1p(-uniform) < normal.square() / 2 + d - d * v + d * v.clamp_min(1e-300).log())
        at = missing.nonzero()[:, 0][right]
        out[at] = d * v[right]
        missing[at] = False
    if alpha < 1:
        out = out * (1 - draws.uniform(count, like=wide)) ** (1 / alpha)
    return out
