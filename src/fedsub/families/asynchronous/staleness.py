"""Staleness: what an update counts for that began τ server steps before it is added.

C. Xie, S. Koyejo, I. Gupta, "Asynchronous Federated Optimization", 2019 (arXiv 1903.03934), have all three;
J. Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022, take 1/√(1 + τ).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsub.checks import check_number, check_positive
from fedsub.method.spelling import read_word


class Staleness:
    """s(τ), 1 for τ = 0. Subclasses are frozen dataclasses."""

    def weights(self, ages: np.ndarray) -> np.ndarray:
        """s of every age, float64."""
        raise NotImplementedError


@dataclass(frozen=True)
class Constant(Staleness):
    """s = 1: an old update counts as much as a new one."""

    def weights(self, ages: np.ndarray) -> np.ndarray:
        return np.ones(len(ages))


@dataclass(frozen=True)
class Polynomial(Staleness):
    """s = (1 + τ)^(−power)."""

    power: float = 0.5

    def __post_init__(self) -> None:
        check_positive("power of Polynomial staleness", self.power)

    def weights(self, ages: np.ndarray) -> np.ndarray:
        return (1.0 + ages) ** -self.power


@dataclass(frozen=True)
class Hinge(Staleness):
    """s = 1 up to τ = ``free``, then 1 / (``slope`` (τ − free) + 1)."""

    free: float = 4.0
    slope: float = 0.5

    def __post_init__(self) -> None:
        check_number("free of Hinge staleness", self.free, least=0)
        check_positive("slope of Hinge staleness", self.slope)

    def weights(self, ages: np.ndarray) -> np.ndarray:
        return 1.0 / (self.slope * np.maximum(ages - self.free, 0.0) + 1.0)


WORDS = {"constant": (Constant, None), "polynomial": (Polynomial, float), "hinge": (Hinge, float)}


def staleness_of(given: str | Staleness) -> Staleness:
    """An object as it is, or what a word stands for: "constant", "polynomial:0.5", "hinge:4"."""
    return given if isinstance(given, Staleness) else read_word(given, WORDS, "staleness")
