"""How rows begin that nobody has touched: each value is a function of (seed, row, column), so a row takes no memory.

    word(r, c) = key(LAZY, seed, r, c)                 a 64-bit word (`fedsub.rng`)
    Normal     std · √(−2 ln(1 − u)) · cos(2π u')      u, u' the uniform numbers of two words made of it
    Uniform    low + (high − low) · u                  u = ⌊word / 2¹¹⌋ · 2⁻⁵³
    Zeros      0

computed in double precision and rounded to the table's type. A seed that is not given is drawn from torch's generator,
as the values of other modules are, and stays with the initialiser.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from fedsub import rng
from fedsub.checks import check_positive, check_seed, is_number
from fedsub.errors import ObjectiveError


class Init:
    """An initialiser. Subclasses are frozen dataclasses."""

    def values(self, rows: np.ndarray, width: int) -> np.ndarray:
        """Values of some rows, float64 [n, width]."""
        raise NotImplementedError

    @property
    def moments(self) -> tuple[float, float]:
        """Mean and standard deviation of a value."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """As plain JSON."""
        return {"type": type(self).__name__, **asdict(self)}  # type: ignore[call-overload]


@dataclass(frozen=True)
class Zeros(Init):
    """All zero."""

    def values(self, rows: np.ndarray, width: int) -> np.ndarray:
        return np.zeros((len(rows), width))

    @property
    def moments(self) -> tuple[float, float]:
        return 0.0, 0.0


@dataclass(frozen=True)
class Normal(Init):
    """Normal numbers of mean 0."""

    std: float = 0.01
    seed: int | None = None

    def __post_init__(self) -> None:
        check_positive("std of Normal", self.std)
        _seed(self)

    def values(self, rows: np.ndarray, width: int) -> np.ndarray:
        return self.std * rng.normal(_words(self.seed, rows, width))

    @property
    def moments(self) -> tuple[float, float]:
        return 0.0, self.std


@dataclass(frozen=True)
class Uniform(Init):
    """Uniform numbers from ``low`` up to ``high``."""

    low: float = -0.05
    high: float = 0.05
    seed: int | None = None

    def __post_init__(self) -> None:
        if not (is_number(self.low) and is_number(self.high) and self.low < self.high):
            raise ObjectiveError(f"Uniform needs low below high, got low={self.low!r}, high={self.high!r}.")
        _seed(self)

    def values(self, rows: np.ndarray, width: int) -> np.ndarray:
        return self.low + (self.high - self.low) * rng.uniform(_words(self.seed, rows, width))

    @property
    def moments(self) -> tuple[float, float]:
        return (self.low + self.high) / 2, (self.high - self.low) / 12**0.5


def made(described: dict[str, Any]) -> Init:
    """What `Init.describe` described."""
    kinds = {kind.__name__: kind for kind in (Zeros, Normal, Uniform)}
    return kinds[described["type"]](**{k: v for k, v in described.items() if k != "type"})


def _words(seed: int | None, rows: np.ndarray, width: int) -> np.ndarray:
    assert seed is not None
    return rng.key(rng.LAZY, seed, np.asarray(rows, np.int64)[:, None], np.arange(width)[None])


def _seed(init: Normal | Uniform) -> None:
    if init.seed is None:
        object.__setattr__(init, "seed", int(torch.randint(2**62, ()).item()))
    check_seed("seed of an initialiser", init.seed, error=ObjectiveError)
