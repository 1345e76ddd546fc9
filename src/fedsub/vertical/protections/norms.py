"""Protections that hide how long a gradient is: where positives are rare, theirs are the long ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsub.checks import check_positive
from fedsub.vertical.protection import Draws, Protection


@dataclass(frozen=True)
class NormAlignment(Protection):
    """Every row is made as long as the longest of the batch; directions stay, and tell what they told.

        g̃_i = g_i · max_j ‖g_j‖ / ‖g_i‖

    The deterministic form of `MaxNormNoise`. A row of zeros gets a random direction.
    """

    def protect(self, gradient: Tensor, labels: Tensor, draws: Draws) -> Tensor:
        rows, length, longest = directed(gradient, draws)
        return rows * (longest / length)


@dataclass(frozen=True)
class MaxNormNoise(Protection):
    """Noise along each row, so that its length is the longest one's in the mean square.

        g̃_i = g_i (1 + σ_i ξ_i),   ξ_i ~ N(0, 1),   σ_i² = max_j ‖g_j‖² / ‖g_i‖² − 1

    Unbiased (O. Li et al., "Label leakage and protection in two-party split learning", ICLR 2022, section 4.1,
    max_norm). The longest row stays as it is; a row of zeros gets a random direction.
    """

    def protect(self, gradient: Tensor, labels: Tensor, draws: Draws) -> Tensor:
        rows, length, longest = directed(gradient, draws)
        deviation = ((longest / length).square() - 1).clamp_min(0).sqrt()
        noise = draws.normal(len(gradient), 1, like=gradient)
        return torch.where((gradient != 0).any(1, keepdim=True), rows * (1 + deviation * noise), rows * longest * noise)


@dataclass(frozen=True)
class IsotropicNoise(Protection):
    """The same normal noise for every row and direction.

        g̃_i = g_i + ξ_i,   ξ_i ~ N(0, power · max_j ‖g_j‖² / d · I)

    Unbiased (Li et al., ICLR 2022, iso): ‖ξ_i‖² is ``power`` times the longest row's in the mean. Labels need not be
    known.
    """

    power: float = 1.0

    def __post_init__(self) -> None:
        check_positive("power", self.power)

    def protect(self, gradient: Tensor, labels: Tensor, draws: Draws) -> Tensor:
        longest = gradient.norm(dim=1).max()
        deviation = longest * (self.power / gradient.shape[1]) ** 0.5
        return gradient + deviation * draws.normal(*gradient.shape, like=gradient)


def directed(gradient: Tensor, draws: Draws) -> tuple[Tensor, Tensor, Tensor]:
    """(rows, their lengths [b, 1], the longest length), with a random row of length 1 in place of zeros."""
    length = gradient.norm(dim=1, keepdim=True)
    longest = length.max()
    if bool((length == 0).any()):
        random = draws.normal(*gradient.shape, like=gradient)
        random = random / random.norm(dim=1, keepdim=True)
        gradient, length = torch.where(length == 0, random, gradient), torch.where(length == 0, 1.0, length)
    return gradient, length, longest
