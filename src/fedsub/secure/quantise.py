"""Numbers to levels and back: unbiased, and with a proof that their sum fits into a ring.

k levels lie on [−c, c], δ = 2c/(k−1) apart. A value x is clipped to that range and becomes

    level(x) = ⌊(x + c)/δ⌋ + Bernoulli(frac((x + c)/δ)),

so that E[δ·level − c] = x inside the range and no error exceeds δ. The offset c belongs to every contributor and is
taken off after the sum:  Σ x ≈ δ·Σ level − (contributors)·c.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsub import rng
from fedsub.checks import check_positive, check_whole
from fedsub.errors import DataError, MethodError
from fedsub.secure.ring import TYPES, Array

SMALLEST, LARGEST = 1e-280, 1e280  # of a clip: levels per unit and unit per level stay finite
_PIECE = 1 << 14  # values at a time, which stay in the processor's cache


@dataclass(frozen=True)
class Quantiser:
    """``levels`` values on [−clip, clip]."""

    clip: float
    levels: int = 2**15

    def __post_init__(self) -> None:
        check_positive("clip", self.clip)
        check_whole("levels", self.levels)
        if not 2 <= self.levels <= 2**32:
            raise MethodError(f"levels must be from 2 to 2^32, got {self.levels}.")
        if not SMALLEST <= self.clip <= LARGEST:
            raise MethodError(
                f"clip must be from {SMALLEST:g} to {LARGEST:g}, where steps between levels and sums of values are "
                f"numbers; got {self.clip:g}. Scale the values first."
            )

    @property
    def step(self) -> float:
        """δ, the largest error of one value."""
        return 2 * self.clip / (self.levels - 1)

    @property
    def most(self) -> int:
        """The highest level: what a client may add to one entry."""
        return self.levels - 1

    def bits(self, clients: int) -> int:
        """The smallest ring that the sum of so many clients cannot leave."""
        for bits in TYPES:
            if self.most * clients < 2**bits:
                return bits
        raise MethodError(f"{self.levels} levels of {clients} clients fit into no ring; take fewer levels.")

    def encode(self, values: Array, word: int) -> Array:
        """Levels, int64. ``word`` keys the coin flips: one of `fedsub.rng.key`, or 64 bits of the system's."""
        values = np.asarray(values).reshape(-1)
        out, word = np.empty(len(values), np.int64), int(word) & (2**64 - 1)
        for start in range(0, len(values), _PIECE):
            piece = slice(start, min(start + _PIECE, len(values)))
            out[piece] = self._levels(values[piece].astype(np.float64), np.uint64((word + start) & (2**64 - 1)))
        return out

    def _levels(self, values: Array, word: np.uint64) -> Array:
        if not np.isfinite(values).all():
            raise DataError("Values to be summed hold NaN or infinity; nothing was sent. Lower the learning rate.")
        np.clip(values, -self.clip, self.clip, out=values)
        values += self.clip
        values *= self.most / (2 * self.clip)
        values += rng.uniform(rng.mix(word + np.arange(len(values), dtype=np.uint64)))
        return np.minimum(values.astype(np.int64), self.most)  # ⌊x + u⌋ is ⌊x⌋ + 1 with the chance of x's fraction

    def decode(self, total: Array, contributors: int | Array) -> Array:
        """Σ x from Σ level, float64; ``contributors`` may differ from entry to entry."""
        return np.asarray(total).astype(np.float64) * self.step - np.asarray(contributors) * self.clip

    def outside(self, values: Array) -> int:
        """How many values clipping changes."""
        return int((np.abs(np.asarray(values)) > self.clip).sum())
