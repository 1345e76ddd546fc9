"""Counts that somebody adds: `SecureCount`, of which nobody sees a client's, and `CentralHistogram`, with noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedsub.checks import check_number, check_positive, check_whole
from fedsub.errors import MethodError
from fedsub.privacy.heat.holdings import Holdings
from fedsub.privacy.heat.mechanism import Estimate, PrivateHeat
from fedsub.privacy.heat.words import NOISE, draws, simulated
from fedsub.privacy.spending import Spend


@dataclass(frozen=True)
class SecureCount(PrivateHeat):
    """The exact counts, and nobody's own (Bonawitz et al., "Practical Secure Aggregation", CCS 2017).

    Clients add their indicator vectors, or w_i times them, in a secure sum (`fedsub.secure`), of which the server sees
    the result alone. A result can still tell something about a client: there is no ε. A simulation computes the plain
    sum, to which the protocol is equal (tests/privacy/test_heat_average.py).
    """

    rows: int | None = field(default=None, init=False, repr=False)

    @property
    def title(self) -> str:
        return "secure sum, in a simulation added in the clear, to which tests show it equal"

    @property
    def epsilon_row(self) -> float:
        return math.inf

    def epsilon_set(self, rows: int) -> float:
        return math.inf if rows else 0.0

    def variance(self, heat: Any, whole: float) -> Any:
        return np.zeros_like(np.asarray(heat, np.float64))

    def upload(self, rows: int) -> int:
        """In a ring of 16 bits: fewer than 65,536 clients, by count; keys and shares come on top."""
        return 2 * rows

    def spends(self, spaces: int = 1) -> tuple[Spend, ...]:
        """Exact counts are not differentially private at all."""
        return (Spend.pure("heat by secure sum: exact counts", math.inf),)

    def _estimate(self, held: Holdings, seed: int, question: int) -> Estimate:
        return Estimate(held.heat.copy(), np.zeros(held.size), held.whole)


@dataclass(frozen=True)
class CentralHistogram(PrivateHeat):
    """Counts of at most ``rows`` rows of each client, with noise before anybody else sees them.

    A client more or less changes k = rows counts by at most 1 (by ``most_samples``, for weighted heat, where a client
    counts as min(w_i, most_samples) samples). With ``epsilon`` alone the noise is a two-sided geometric of scale k/ε
    (Ghosh, Roughgarden, Sundararajan, STOC 2009), with ``noise`` normal of deviation noise · √k, and with ``epsilon``
    and ``delta`` normal with the least ``noise`` that has both (Balle, Wang, "Improving the Gaussian Mechanism for
    Differential Privacy", ICML 2018). ε is for a client with all its rows. Clients that hold k_i > k rows draw k of
    them, which lowers the heat of a row by Σ over its holders of 1 − min(1, k/k_i) on average: a bias.
    """

    epsilon: float | None = None
    rows: int | None = None  # type: ignore[assignment]
    delta: float = 0.0
    noise: float | None = None
    most_samples: int | None = None

    def __post_init__(self) -> None:
        if self.rows is None:
            raise MethodError(
                "CentralHistogram needs rows=k, the most rows that a client may count in: without a bound no noise "
                "hides a client. A usual choice is the median number of rows of a client."
            )
        check_whole("rows of CentralHistogram", self.rows, 1)
        if (self.epsilon is None) == (self.noise is None):
            raise MethodError(f"Give epsilon or noise, one of them; got {self.epsilon!r} and {self.noise!r}.")
        if self.epsilon is not None:
            check_positive("epsilon", self.epsilon)
        else:
            check_positive("noise", self.noise)
        if check_number("delta", self.delta, least=0) >= 1:
            raise MethodError(f"delta must be below 1, got {self.delta}.")
        if self.delta and self.epsilon is None:
            raise MethodError("delta goes with epsilon; with noise the accountant finds ε for any δ.")
        if self.most_samples is not None:
            check_whole("most_samples", self.most_samples, 1)

    @property
    def multiplier(self) -> float | None:
        """Of the normal noise, in sensitivities; None: the noise is geometric."""
        if self.noise is not None or not self.delta:
            return self.noise
        assert self.epsilon is not None
        return gaussian_noise(self.epsilon, self.delta)

    @property
    def title(self) -> str:
        how = f"normal noise of {self.multiplier:.4g}" if self.multiplier is not None else "geometric noise"
        what = f", ε {self.epsilon:g}" + (f" and δ {self.delta:g}" if self.delta else "") if self.epsilon else ""
        return f"central histogram, {how}{what} a client, {self.rows} rows of each"

    @property
    def epsilon_row(self) -> float:
        """One row more or less moves one count by one: 1/k of the whole in the geometric case."""
        if self.multiplier is not None or self.epsilon is None:
            return self.epsilon_set(1)
        assert self.rows is not None
        return self.epsilon / self.rows

    def epsilon_set(self, rows: int) -> float:
        if not rows:
            return 0.0
        return self.epsilon if self.epsilon is not None else math.nan

    def variance(self, heat: Any, whole: float) -> Any:
        return np.zeros_like(np.asarray(heat, np.float64)) + self._deviation(1.0) ** 2

    def upload(self, rows: int) -> int:
        """The rows' numbers, 4 bytes each, to somebody who is trusted with them."""
        assert self.rows is not None
        return 4 * min(self.rows, rows)

    def spends(self, spaces: int = 1) -> tuple[Spend, ...]:
        """For every question: noise is drawn anew."""
        if self.multiplier is not None:
            return (Spend.gaussian(f"heat by {self.title}", self.multiplier, times=spaces),)
        assert self.epsilon is not None
        return (Spend.pure(f"heat by {self.title}", self.epsilon, times=spaces),)

    def check_fits(self, weighted: bool) -> None:
        if weighted and self.most_samples is None:
            raise MethodError(
                "Weighted heat by CentralHistogram needs most_samples, the most samples that a client may count for: "
                "noise must hide all of them. Give it, or take weighting='clients'."
            )

    def _deviation(self, weight: float) -> float:
        assert self.rows is not None
        if self.multiplier is not None:
            return self.multiplier * math.sqrt(self.rows) * weight
        assert self.epsilon is not None
        decay = math.exp(-self.epsilon / (self.rows * weight))
        return math.sqrt(2 * decay) / (1 - decay)

    def _estimate(self, held: Holdings, seed: int, question: int) -> Estimate:
        assert self.rows is not None
        name, most = held.space.name, float(self.most_samples or 1) if held.weighted else 1.0
        some = held.bounded(self.rows, simulated(seed, name, np.arange(len(held))))
        capped = Holdings(some.space, np.minimum(some.weights, most), some.padded, some.weighted)
        draw, deviation = draws(seed, name, NOISE, question), self._deviation(most)
        if self.multiplier is not None:
            noise = deviation * draw.standard_normal(held.size)
        else:
            assert self.epsilon is not None
            end = 1 - math.exp(-self.epsilon / (self.rows * most))
            noise = (draw.geometric(end, held.size) - draw.geometric(end, held.size)).astype(np.float64)
        heat = capped.heat + noise
        return Estimate(heat, np.full(held.size, deviation), held.whole, laplace=self.multiplier is None)


def gaussian_noise(epsilon: float, delta: float) -> float:
    """The least σ, in sensitivities, with which normal noise is (ε, δ)-private.

    δ(σ) = Φ(1/2σ − εσ) − e^ε Φ(−1/2σ − εσ), which falls in σ (Balle and Wang, ICML 2018, theorem 8).
    """

    def excess(sigma: float) -> float:
        below = _normal(-1 / (2 * sigma) - epsilon * sigma)
        return _normal(1 / (2 * sigma) - epsilon * sigma) - (math.exp(epsilon) * below if below else 0.0)

    low, high = 1e-3, 1.0
    while excess(high) > delta:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > delta else (low, middle)
    return high


def _normal(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2
