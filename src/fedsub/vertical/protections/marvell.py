"""Marvell: of all normal noise of a given power, the one after which the gradients of the two classes differ least.

    g | y=1 ~ N(ḡ₁, vI)  and  g | y=0 ~ N(ḡ₀, uI)  in d dimensions,  Δ = ḡ₁ − ḡ₀,  p = the share of positives
    find Σ₁, Σ₀ ⪰ 0 that minimise  KL(P̃₁ ‖ P̃₀) + KL(P̃₀ ‖ P̃₁),   P̃_y = P_y * N(0, Σ_y),
    with  p tr Σ₁ + (1 − p) tr Σ₀ ≤ P = power · ‖Δ‖²

(O. Li, J. Sun, X. Yang, W. Gao, H. Zhang, J. Xie, V. Smith, C. Wang, "Label leakage and protection in two-party split
learning", ICLR 2022, theorems 1 and 2.) The best Σ have one variance along Δ and one across it. Let a, b be the whole
variances along Δ of negatives and positives, c, e those across:

    sum of KL = ½ [ (d−1)(c/e + e/c) + (a + ‖Δ‖²)/b + (b + ‖Δ‖²)/a ] − d,   a ≥ c ≥ u,  b ≥ e ≥ v,
    p [(b−v) + (d−1)(e−v)] + (1−p) [(a−u) + (d−1)(c−u)] ≤ P

This is a geometric programme, convex in the logarithms: what is a minimum nearby is the minimum. Two of the four are
known: say u ≤ v (else swap the classes). Then e = v, since noise across Δ for the wider class only costs; and the power
is used up, since more noise for both along Δ always helps. Left are c, and how the rest is shared along Δ, each found
by a golden section.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsub.checks import check_positive
from fedsub.vertical.protection import Draws, Protection

GOLDEN = (5**0.5 - 1) / 2
STEPS = 44  # of a golden section: an interval 1.6e9 times smaller; nearer, values can no longer be told apart


@dataclass(frozen=True)
class Marvell(Protection):
    """Noise for each class of the covariance that solves the optimisation above, with moments of the batch.

    ``power`` is s of the paper: the mean squared length of the noise over that of the distance of the class means.
    Binary labels. The sum of KL bounds from above what any attack on one gradient can reach: AUC ≤ ½ + √KL/2 − KL/8
    for KL < 4, as far as the normal picture holds. A batch of one class alone gets noise in all directions, with its
    own mean in place of the distance.
    """

    power: float = 4.0

    def __post_init__(self) -> None:
        check_positive("power", self.power)

    def protect(self, gradient: Tensor, labels: Tensor, draws: Draws) -> Tensor:
        b, d = gradient.shape
        positive = labels > 0.5
        along_noise, noise = draws.normal(b, 1, like=gradient), draws.normal(b, d, like=gradient)
        count = int(positive.sum())
        if not 0 < count < b:
            return gradient + noise * gradient.mean(0).norm() * (self.power / d) ** 0.5
        means = gradient[~positive].mean(0), gradient[positive].mean(0)
        gap = means[1] - means[0]
        u, v = (
            float((gradient[which] - mean).square().sum(1).mean()) / d
            for which, mean in zip((~positive, positive), means, strict=True)
        )
        size = float(gap.square().sum())
        if not size:
            return gradient
        best = allocate(u, v, count / b, d, size, self.power * size)
        own = positive[:, None]
        across = torch.where(own, best.across_positive, best.across_negative)
        along = torch.where(own, best.along_positive, best.along_negative)
        side = gap / size**0.5
        extra = (along - across).clamp_min(0).sqrt() * along_noise * side
        return gradient + (extra + across.sqrt() * noise).to(gradient.dtype)


@dataclass(frozen=True)
class Allocation:
    """Variances of the noise by class, along Δ and in each direction across it, and the sum of KL that is left."""

    along_negative: float
    across_negative: float
    along_positive: float
    across_positive: float
    divergence: float

    @property
    def most_auc(self) -> float:
        """No attack on one gradient has a higher AUC, if gradients are normal (theorem 1 of the paper)."""
        return min(1.0, 0.5 + self.divergence**0.5 / 2 - self.divergence / 8) if self.divergence < 4 else 1.0


def allocate(u: float, v: float, p: float, d: int, gap: float, power: float) -> Allocation:
    """The best noise for classes with variances u (negative) and v (positive), ‖Δ‖² = ``gap`` and P = ``power``."""
    least = 1e-12 * gap  # a class with one sample has no variance; a divergence must stay finite
    u, v = max(u, least), max(v, least)
    if u > v:
        other = allocate(v, u, 1 - p, d, gap, power)
        return Allocation(
            other.along_positive, other.across_positive, other.along_negative, other.across_negative, other.divergence
        )
    q = 1 - p

    def shared(across: float) -> tuple[float, float]:
        """(divergence, noise along Δ of negatives), given theirs across it."""
        rest = power - q * (d - 1) * across

        def at(along: float) -> float:
            return divergence(u + along, v + (rest - q * along) / p, u + across, v, d, gap)

        along = _least(at, across, max(across, rest / q))
        return at(along), along

    across = _least(lambda x: shared(x)[0], 0.0, min(v - u, power / (q * d))) if d > 1 else 0.0
    value, along = shared(across)
    return Allocation(along, across, (power - q * (d - 1) * across - q * along) / p, 0.0, value)


def divergence(a: float, b: float, c: float, e: float, d: int, gap: float) -> float:
    """KL(P̃₁ ‖ P̃₀) + KL(P̃₀ ‖ P̃₁) of variances along Δ (a negatives', b positives') and across it (c, e)."""
    return 0.5 * ((d - 1) * (c / e + e / c) + (a + gap) / b + (b + gap) / a) - d


def _least(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that falls and then rises is least; the ends are looked at too."""
    ends = (low, high)
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_left, at_right = function(left), function(right)
    for _ in range(STEPS):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - GOLDEN * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + GOLDEN * (high - low)
            at_right = function(right)
    return min((*ends, (low + high) / 2), key=function)
