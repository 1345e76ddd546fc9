"""What an Adam that hears nothing adds up to, for any number of rounds at once.

A row that nobody sends for k rounds goes on by its moments:

    Σ_{j=1..k} β1^j m / (s^j √v + τ)        s = √β2

With S(u) = Σ_{j≥1} β1^j / (s^j u + 1) the sum is (m/τ) (S(u) − β1^k S(s^k u)), u = √v/τ: the terms after the k-th are
the same sum, begun later. So one function of one number serves every row and every gap. S is smooth; it is tabulated
once and read off by polynomials, to less than the last digit of the parameters. The cells are those of floating-point
numbers themselves: exponent and first bits of u name the cell, its other bits are the place in it. This is done by
numpy, which takes half of torch's time for shifts and look-ups in small tables.

Where β1 ≥ √β2 later terms may be the larger ones, and the difference would lose digits; `usable` says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedsub.method.servers.base import Gaps, by_row

LOWEST, HIGHEST = -46, 65  # log2 u: below, S is β1/(1−β1) to 1e-14; above, √v would be 1e19 τ
BLOCK = 1 << 18


@dataclass(frozen=True)
class Format:
    """A floating-point type: its bits, and how finely S is tabulated for it."""

    dtype: type[np.floating]
    integer: type[np.integer]
    mantissa: int
    bias: int
    cells: int  # log2 of the cells between 1 and 2
    degree: int

    @property
    def low(self) -> int:
        """How many bits say the place in a cell."""
        return self.mantissa - self.cells


SINGLE = Format(np.float32, np.int32, 23, 127, 6, 2)
DOUBLE = Format(np.float64, np.int64, 52, 1023, 10, 3)


class Fading:
    """S/τ for one β1, β2 and τ, in a table for values of one type; with ``power`` 1 its terms times j."""

    def __init__(self, beta1: float, beta2: float, tau: float, dtype: torch.dtype, power: int = 0):
        # The difference of two S loses digits where k is small: about one (a factor of 1/(1 − β1/s)) is no matter.
        close = beta1 > 0.93 * math.sqrt(beta2)
        self.format = DOUBLE if close or dtype == torch.float64 else SINGLE
        self.beta1, self.decay, self.tau = beta1, math.sqrt(beta2), tau
        count = (HIGHEST - LOWEST) << self.format.cells
        self.first = (LOWEST + self.format.bias) << self.format.cells
        octave, within = np.divmod(np.arange(count), 1 << self.format.cells)
        width = np.exp2(octave + LOWEST - self.format.cells)
        begin = np.exp2(octave + LOWEST) + within * width
        # Interpolated at Chebyshev's points of each cell.
        nodes = 0.5 - 0.5 * np.cos((np.arange(self.format.degree + 1) + 0.5) * math.pi / (self.format.degree + 1))
        values = np.stack([_series(begin + t * width, beta1, self.decay, power) for t in nodes])
        powers = np.linalg.solve(np.vander(nodes, increasing=True), values) / tau
        scale = np.exp2(-self.format.low * np.arange(self.format.degree + 1))  # places are whole numbers
        self.polynomials = [row.astype(self.format.dtype) for row in powers * scale[:, None]]

    def sum(self, root: Tensor, gaps: Gaps) -> Tensor:
        """Σ_{j=1..k} β1^j / (s^j √v + τ) for each √v of ``root`` [n, …] and gap k."""
        first, later = self.ends(root, gaps)
        return torch.from_numpy(np.subtract(first, later, out=first)).to(root.device)

    def ends(self, root: Tensor, gaps: Gaps) -> tuple[np.ndarray, np.ndarray]:
        """S(u)/τ and β1^k S(s^k u)/τ."""
        precise = root.to(torch.float64) if self.format is DOUBLE else root
        shrunk, faded = gaps.power(self.decay, precise), gaps.power(self.beta1, precise)
        both = np.empty((2, *root.shape), self.format.dtype)
        np.multiply(precise.cpu().numpy(), self.format.dtype(1 / self.tau), out=both[0])
        np.multiply(both[0], shrunk.cpu().numpy(), out=both[1])
        first, later = self._at(both)
        later *= faded.cpu().numpy()
        return first, later

    def _at(self, u: np.ndarray) -> np.ndarray:
        """S(u)/τ."""
        bits = u.view(self.format.integer)
        cell = (bits >> self.format.low).astype(np.intp)
        cell -= self.first
        place = (bits & ((1 << self.format.low) - 1)).astype(self.format.dtype)
        *rest, value = (one.take(cell, mode="clip") for one in self.polynomials)  # below and above: the end cells
        for coefficient in reversed(rest):
            value *= place
            value += coefficient
        return value


def _series(u: np.ndarray, beta1: float, decay: float, power: int = 0) -> np.ndarray:
    """S(u), its terms times j^power, until what is left, at most β1^j/(1−β1), is nothing beside S at the highest u."""
    x, value = np.log(u), np.zeros_like(u)
    terms = math.ceil((HIGHEST * math.log(2) + 40.0 - math.log1p(-beta1)) / -math.log(beta1))
    step = max(1, BLOCK // len(u))
    for first in range(1, terms + 1, step):
        j = np.arange(first, min(first + step, terms + 1))[:, None]
        with np.errstate(over="ignore"):
            value += (j**power * np.power(beta1, j) / (1 + np.exp(x + j * math.log(decay)))).sum(0)
    return value


def usable(beta1: float, beta2: float) -> bool:
    """Whether the difference keeps its digits, and the table is made in a moment."""
    return beta1 <= 0.99 and beta1 < 0.999 * math.sqrt(beta2)


@lru_cache(maxsize=8)
def fading(beta1: float, beta2: float, tau: float, dtype: torch.dtype, power: int = 0) -> Fading:
    return Fading(beta1, beta2, tau, dtype, power)


def mean_sum(beta1: float, beta2: float, tau: float, root: Tensor, gaps: Gaps, fade: float) -> Tensor:
    """The mean over j = 1 … k of the first j terms' sum, weighted by fade^(k−j), for each √v and gap k.

    With f_i the terms, Σ_j fade^(k−j) Σ_{i≤j} f_i is

        Σ_i (k+1−i) f_i                           where fade is 1: Σ i f_i is a sum of the same kind, R
        Σ_i (1 − fade^(k+1−i)) f_i / (1 − fade)   else: Σ fade^(−i) f_i is one with β1/fade for β1
    """
    plain = fading(beta1, beta2, tau, root.dtype)
    first, later = (torch.from_numpy(end.astype(np.float64)).to(root.device) for end in plain.ends(root, gaps))
    k = by_row(gaps.rounds, first)
    if fade == 1:
        ends = fading(beta1, beta2, tau, root.dtype, 1).ends(root, gaps)
        times, times_later = (torch.from_numpy(end.astype(np.float64)).to(root.device) for end in ends)
        total = (k + 1) * (first - later) - (times - times_later - k * later)
    else:
        older = fading(beta1 / fade, beta2, tau, root.dtype).sum(root, gaps).to(torch.float64)
        total = (first - later - fade * gaps.power(fade, first) * older) / (1 - fade)
    return total / gaps.mass(fade, first).clamp(min=1)


def means_usable(beta1: float, beta2: float, fade: float) -> bool:
    """Whether the means of these sums keep their digits too."""
    return usable(beta1, beta2) and fade > 0.9 and usable(beta1 / fade, beta2)
