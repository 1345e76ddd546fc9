"""What an Adam that hears nothing adds up to, for any number of rounds at once.

A row that nobody sends for k rounds goes on by its moments:

    Σ_{j=1..k} β1^j m / (s^j √v + τ)        s = √β2

With S(u) = Σ_{j≥1} β1^j / (s^j u + 1) the sum is (m/τ) (S(u) − β1^k S(s^k u)), u = √v/τ: the terms after the k-th are
the same sum, begun later. So one function of one number serves every row and every gap. S is smooth in log u; it is
tabulated once and read off by cubics, to less than the last digit of the parameters.

Where β1 ≥ √β2 later terms may be the larger ones, and the difference would lose digits; `usable` says so.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from fedsub.servers.base import Gaps

LOWEST, HIGHEST = -32.0, 45.0  # log u: below, S is β1/(1−β1) to 1e-14; above, √v would be 1e19 τ
CELLS = {torch.float32: 48, torch.float64: 768}  # per unit of log u; a cubic's error is below h⁴/384
BLOCK = 1 << 18


class Fading:
    """S for one β1 and β2, in a table for values of one type."""

    def __init__(self, beta1: float, beta2: float, dtype: torch.dtype):
        self.beta1, self.shift, self.cells = beta1, 0.5 * math.log(beta2), CELLS.get(dtype, CELLS[torch.float32])
        count = int((HIGHEST - LOWEST) * self.cells)
        x = LOWEST + torch.arange(count + 1, dtype=torch.float64) / self.cells
        value, slope = torch.zeros_like(x), torch.zeros_like(x)
        # Until what is left, at most β1^j/(1−β1), is nothing beside S at the highest u.
        terms = math.ceil((HIGHEST + 40.0 - math.log1p(-beta1)) / -math.log(beta1))
        step = max(1, BLOCK // (count + 1))
        for first in range(1, terms + 1, step):
            j = torch.arange(first, min(first + step, terms + 1), dtype=torch.float64)[:, None]
            share = torch.sigmoid(-(x + j * self.shift))  # 1 / (s^j u + 1)
            weighted = torch.pow(beta1, j) * share
            value += weighted.sum(0)
            slope -= (weighted * (1 - share)).sum(0)
        slope /= self.cells
        rise, a, b = value.diff(), slope[:-1], slope[1:]
        # The difference of two S loses digits where k is small: about one (a factor of 1/(1 − β1/s)) is no matter.
        close = beta1 > 0.93 * math.sqrt(beta2)
        self.cubics = tuple(
            one.to(torch.float64 if close else dtype) for one in (value[:-1], a, 3 * rise - 2 * a - b, a + b - 2 * rise)
        )

    def sum(self, root: Tensor, gaps: Gaps, tau: float = 1.0) -> Tensor:
        """Σ_{j=1..k} β1^j / (s^j √v + τ) for each √v of ``root`` [n, …] and gap k."""
        x = root.double().log_().mul_(self.cells).add_(-(math.log(tau) + LOWEST) * self.cells)
        both = torch.stack([x, x + gaps.times(self.shift * self.cells, x)])
        first, later = self._at(both)
        return first.addcmul_(later, gaps.power(self.beta1, later), value=-1).div_(tau)

    def _at(self, x: Tensor) -> Tensor:
        """S at u = exp(x / cells + LOWEST); ``x`` is used up."""
        place = x.view(-1).clamp_(0, len(self.cubics[0]) - 1e-9)
        cell, at = place.long(), place.frac_().to(self.cubics[0].dtype)
        a, b, c, d = (one.to(x.device).index_select(0, cell) for one in self.cubics)
        return d.mul_(at).add_(c).mul_(at).add_(b).mul_(at).add_(a).view(x.shape)


def usable(beta1: float, beta2: float) -> bool:
    """Whether the difference keeps its digits, and the table is made in a moment."""
    return beta1 <= 0.99 and beta1 < 0.999 * math.sqrt(beta2)


@lru_cache(maxsize=8)
def fading(beta1: float, beta2: float, dtype: torch.dtype) -> Fading:
    return Fading(beta1, beta2, dtype)
