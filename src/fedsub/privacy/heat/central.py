"""Counts that somebody adds: `SecureCount`, of which nobody sees a client's, and `CentralHistogram`, with noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedsub.checks import check_decay, check_flag, check_number, check_positive, check_whole
from fedsub.errors import MethodError
from fedsub.privacy.heat.holdings import Holdings
from fedsub.privacy.heat.mechanism import Estimate, PrivateHeat
from fedsub.privacy.heat.words import NOISE, Array, Words, draws, simulated
from fedsub.privacy.spending import Spend

LEAST = 1e-9  # ε, below which the noise of a count is no number of clients


@dataclass(frozen=True)
class AddedHeat(PrivateHeat):
    """Counts that somebody adds: what clients give, and what becomes of the sum, in a simulation and over nodes.

    ``adversarial`` and ``dropping``, rates of clients, choose a sparse graph of neighbours for a secure sum between
    nodes (`Setting.plan`); without, all are neighbours.
    """

    adversarial: float = field(default=0.0, kw_only=True)
    dropping: float = field(default=0.0, kw_only=True)

    @property
    def hidden(self) -> bool:
        """Whether clients add in a secure sum, so that nobody sees the rows of one."""
        raise NotImplementedError

    def most(self, heaviest: int, weighted: bool) -> int:
        """What a client counts for at most, where the heaviest has so many samples."""
        return heaviest if weighted else 1

    def given(self, held: Holdings, words: Words) -> Holdings:
        """What clients count in, out of what they hold."""
        return held

    def settled(self, heat: Array, whole: float, weighted: bool, noise: np.random.Generator) -> Estimate:
        """The estimate from the sum of what clients gave."""
        return Estimate(heat, np.zeros(len(heat)), whole)

    def _check_rates(self) -> None:
        for name in ("adversarial", "dropping"):
            check_decay(f"{name} of {type(self).__name__}", getattr(self, name), hint="it is a share of the clients")

    def _estimate(self, held: Holdings, seed: int, question: int) -> Estimate:
        name = held.space.name
        given = self.given(held, simulated(seed, name, np.arange(len(held))))
        return self.settled(given.heat.copy(), held.whole, held.weighted, draws(seed, name, NOISE, question))


@dataclass(frozen=True)
class SecureCount(AddedHeat):
    """The exact counts, and nobody's own (Bonawitz et al., "Practical Secure Aggregation", CCS 2017).

    Clients add their indicator vectors, or w_i times them, in a secure sum (`fedsub.secure`), of which the server sees
    the result alone. A result can still tell something about a client: there is no ε. A simulation computes the plain
    sum, to which the protocol is equal (tests/privacy/test_heat_average.py, tests/node/test_node_heat_sums.py).
    """

    rows: int | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self._check_rates()

    @property
    def hidden(self) -> bool:
        return True

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


@dataclass(frozen=True)
class CentralHistogram(AddedHeat):
    """Counts of at most ``rows`` rows of each client, with noise before anybody else sees them.

    A client more or less changes k = rows counts by at most 1 (by ``most_samples``, for weighted heat, where a client
    counts as min(w_i, most_samples) samples). With ``epsilon`` alone the noise is a two-sided geometric of scale k/ε
    (Ghosh, Roughgarden, Sundararajan, STOC 2009), with ``noise`` normal of deviation noise · √k, and with ``epsilon``
    and ``delta`` normal with the least ``noise`` that has both (Balle, Wang, "Improving the Gaussian Mechanism for
    Differential Privacy", ICML 2018). ε is for a client with all its rows. Clients that hold k_i > k rows draw k of
    them, which lowers the heat of a row by Σ over its holders of 1 − min(1, k/k_i) on average: a bias.

    Over nodes the server counts and adds the noise. With ``secure`` clients add in a secure sum, and it sees the counts
    before the noise but nobody's rows; without, it is told the rows of each, in few bytes.
    """

    epsilon: float | None = None
    rows: int | None = None  # type: ignore[assignment]
    delta: float = 0.0
    noise: float | None = None
    most_samples: int | None = None
    secure: bool = False

    def __post_init__(self) -> None:
        self._check_rates()
        check_flag("secure of CentralHistogram", self.secure)
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
            if self.epsilon < LEAST:
                raise MethodError(
                    f"epsilon of CentralHistogram must be at least {LEAST:g}, got {self.epsilon:g}: its noise would "
                    "drown any count."
                )
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
        counted = ", counted in a secure sum" if self.secure else ""
        return f"central histogram, {how}{what} a client, {self.rows} rows of each{counted}"

    @property
    def hidden(self) -> bool:
        return self.secure

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
        """The rows' numbers, 4 bytes each, to somebody who is trusted with them; or as `SecureCount`."""
        assert self.rows is not None
        return 2 * rows if self.secure else 4 * min(self.rows, rows)

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

    def most(self, heaviest: int, weighted: bool) -> int:
        return self._cap(weighted)

    def _cap(self, weighted: bool) -> int:
        return (self.most_samples or 1) if weighted else 1

    def given(self, held: Holdings, words: Words) -> Holdings:
        assert self.rows is not None
        some = held.bounded(self.rows, words)
        return replace(some, weights=np.minimum(some.weights, float(self._cap(held.weighted))))

    def settled(self, heat: Array, whole: float, weighted: bool, noise: np.random.Generator) -> Estimate:
        assert self.rows is not None
        most, size = float(self._cap(weighted)), len(heat)
        deviation = self._deviation(most)
        if self.multiplier is not None:
            heat = heat + deviation * noise.standard_normal(size)
        else:
            assert self.epsilon is not None
            end = 1 - math.exp(-self.epsilon / (self.rows * most))
            heat = heat + (noise.geometric(end, size) - noise.geometric(end, size)).astype(np.float64)
        return Estimate(heat, np.full(size, deviation), whole, laplace=self.multiplier is None)


def gaussian_noise(epsilon: float, delta: float) -> float:
    """The least σ, in sensitivities, with which normal noise is (ε, δ)-private.

    δ(σ) = Φ(1/2σ − εσ) − e^ε Φ(−1/2σ − εσ), which falls in σ (Balle and Wang, ICML 2018, theorem 8).
    """

    def excess(sigma: float) -> float:
        below = _normal(-1 / (2 * sigma) - epsilon * sigma)
        return _normal(1 / (2 * sigma) - epsilon * sigma) - (math.exp(epsilon + math.log(below)) if below else 0.0)

    low, high = 1e-3, 1.0
    while excess(high) > delta:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > delta else (low, middle)
    return high


def _normal(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2
