"""Paired intervals: does a method differ from the reference by more than seeds do?

Runs of one seed share their draws (of clients, batches, initial values, perhaps the split), so methods are compared
seed by seed. With differences d_1 … d_n of mean d and sample standard deviation s,

    d ± t · s / √n,    t: the quantile of Student's t with n − 1 degrees of freedom

covers the expected difference in 95 % of the cases, if differences are about normal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from fedsub.running.result import mean_std

SHARE = 0.95


@dataclass(frozen=True)
class Interval:
    """The mean difference over ``seeds`` pairs, and the ends of its interval."""

    mean: float
    low: float
    high: float
    seeds: int

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def paired(values: Mapping[int, float], reference: Mapping[int, float]) -> Interval | None:
    """The difference of values by seed to those of a reference; None with fewer than two finite pairs."""
    found = [v - reference[seed] for seed, v in values.items() if seed in reference]
    kept = [d for d in found if math.isfinite(d)]
    if len(kept) < 2:
        return None
    mean, std = mean_std(kept)
    half = t_quantile(len(kept) - 1) * std / math.sqrt(len(kept))
    return Interval(mean, mean - half, mean + half, len(kept))


@lru_cache
def t_quantile(freedom: int, share: float = SHARE) -> float:
    """The t within which a Student variable lies, on both sides of 0, with probability ``share``."""
    low, high = 0.0, math.pi / 2  # the angle atan(t / √freedom) is bounded, t is not
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < share else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: int) -> float:
    """The probability of |T| < √freedom · tan(angle): Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    cosine, odd = math.cos(angle), freedom % 2
    term, total = cosine if odd else 1.0, 0.0
    for k in range(odd + 1, freedom, 2):  # k = 2, 4, … for odd freedom, 1, 3, … for even
        total += term
        term *= cosine * cosine * k / (k + 1)
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total
