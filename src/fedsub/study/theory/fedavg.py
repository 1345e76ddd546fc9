"""Three rates of FedAvg, each as its whole bound with the step sizes that it is proved for.

    strongly convex, clients alike     E f(x̂_T) − f* = O(G² / (μ b K T))  with a mean every H = O(√(T / (K b))) steps
    strongly convex, clients differ    E F(w_T) − F* ≤ κ/(γ + T) · (2 (B + C)/μ + (μ γ/2) ‖w_0 − w*‖²)
    not convex                         (1/T) Σ E‖∇f(x̄)‖² = O(1/√(N T))  if T > N³ and I ≤ T^¼ / N^¾

S. U. Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019, Theorem 2.2; X. Li et al., "On the
Convergence of FedAvg on Non-IID Data", ICLR 2020, Theorems 1 to 3; H. Yu, S. Yang and S. Zhu, "Parallel Restarted SGD
with Faster Convergence and Less Communication", AAAI 2019, Theorem 1 and Corollary 1.

L is ``smoothness``, σ² ``variance`` and G ``gradient_bound``, which bounds the norm of every stochastic gradient that
is met. T counts local steps of a client, not rounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedsub.checks import check_number, check_positive, check_whole
from fedsub.errors import ConfigError
from fedsub.study.theory.arguments import checked

# Strongly convex, clients alike ---------------------------------------------------------------------


@dataclass(frozen=True)
class LocalSGDBound:
    """The three terms of Stich's theorem, and the step sizes η_t = 4 / (μ (a + t)) that it is about.

    It bounds f at x̂_T, the mean of all workers' iterates x_t with weights (a + t)², t = 0 … T − 1.
    """

    mu: float
    shift: float  # a
    start: float  # μ a³ ‖x_0 − x*‖² / (2 S)                    S = Σ (a + t)²
    noise: float  # 4 T (T + 2a) σ² / (μ b K S)
    drift: float  # 256 T G² H² L / (μ² S)

    @property
    def total(self) -> float:
        return self.start + self.noise + self.drift

    def lr(self, step: int) -> float:
        return 4 / (self.mu * (self.shift + step))

    def weight(self, step: int) -> float:
        return (self.shift + step) ** 2


@checked
def local_sgd_bound(
    *, mu: float, smoothness: float, variance: float, gradient_bound: float, distance: float, workers: int,
    horizon: int, period: int, batch_size: int = 1,
) -> LocalSGDBound:  # fmt: skip
    """E f(x̂_T) − f* of K workers with the same f, that take the mean of their models every ``period`` = H steps.

    ``variance`` σ² is that of the gradient of one sample, ``distance`` ‖x_0 − x*‖².
    """
    kappa = _kappa(smoothness, mu)
    for name, count in {"workers": workers, "horizon": horizon, "period": period, "batch_size": batch_size}.items():
        check_whole(name, count, 1, error=ConfigError)
    a = max(16 * kappa, period) + 1
    weights = float(((a + np.arange(horizon, dtype=np.float64)) ** 2).sum())
    return LocalSGDBound(
        mu=mu,
        shift=a,
        start=mu * a**3 * distance / (2 * weights),
        noise=4 * horizon * (horizon + 2 * a) * variance / (mu * batch_size * workers * weights),
        drift=256 * horizon * gradient_bound**2 * period**2 * smoothness / (mu**2 * weights),
    )


@checked
def longest_period(horizon: int, workers: int, batch_size: int = 1) -> float:
    """H = √(T / (K b)): with a mean at least so often, K workers are K times as fast as one."""
    return math.sqrt(horizon / (workers * batch_size))


@checked
def local_sgd_rate(
    *, mu: float, smoothness: float, gradient_bound: float, workers: int, horizon: int, batch_size: int = 1
) -> float:
    """(12 + 768 κ) G² / (μ b K T): what the noise and the drift come to with H = √(T / (K b)), for large T (σ ≤ G)."""
    kappa = _kappa(smoothness, mu)
    return (12 + 768 * kappa) * gradient_bound**2 / (mu * batch_size * workers * horizon)


# Strongly convex, clients differ ---------------------------------------------------------------------


@dataclass(frozen=True)
class NonIIDBound:
    """The constants of Li et al., with step sizes η_t = 2 / (μ (γ + t)), t = 0, 1, …, for ``local_steps`` E a round."""

    mu: float
    kappa: float  # L / μ
    gamma: float  # max(8 κ, E)
    noise: float  # B = Σ p_k² σ_k² + 6 L Γ + 8 (E − 1)² G²
    sampling: float  # C: 4 E² G² / K, times (N − K)/(N − 1) if drawn without replacement; 0 if everybody takes part
    distance: float  # ‖w_0 − w*‖²
    local_steps: int

    def lr(self, step: int) -> float:
        return 2 / (self.mu * (self.gamma + step))

    def after(self, steps: int) -> float:
        """E F(w) − F* ≤ κ/(γ + T) · (2 (B + C)/μ + (μ γ/2) ‖w_0 − w*‖²), at the end of a round."""
        return self.kappa * self._constant / (self.gamma + steps)

    def rounds_to(self, accuracy: float) -> int:
        """T_ε / E: the rounds after which the bound is at most ``accuracy``."""
        check_positive("accuracy", accuracy, error=ConfigError)
        steps = max(0.0, self.kappa * self._constant / accuracy - self.gamma)
        return math.ceil(steps / self.local_steps)

    @property
    def _constant(self) -> float:
        return 2 * (self.noise + self.sampling) / self.mu + self.mu * self.gamma / 2 * self.distance


@checked
def non_iid_bound(
    *, mu: float, smoothness: float, shares: ArrayLike, deviations: ArrayLike, gradient_bound: float,
    heterogeneity: float, distance: float, local_steps: int, clients_per_round: int | None = None,
    replacement: bool = False,
) -> NonIIDBound:  # fmt: skip
    """F = Σ p_k F_k with p_k in ``shares``; client k's stochastic gradients deviate by σ_k (``deviations``).

    ``heterogeneity`` is Γ (`heterogeneity`). ``clients_per_round`` None: everybody takes part and is weighed by p_k.
    Otherwise K are drawn and their plain mean is taken: with ``replacement`` by p_k, without it uniformly, for which
    all p_k must be equal.
    """
    p, sigma = np.asarray(shares, np.float64), np.asarray(deviations, np.float64)
    if p.ndim != 1 or p.shape != sigma.shape or not len(p) or (p < 0).any() or abs(p.sum() - 1) > 1e-9:
        raise ConfigError("shares must be p_k, at least 0 with the sum 1, and deviations σ_k, one for each.")
    steps = check_whole("local_steps", local_steps, 1, error=ConfigError)
    kappa, squared = _kappa(smoothness, mu), gradient_bound**2
    sampling = 0.0
    if clients_per_round is not None:
        k = check_whole("clients_per_round", clients_per_round, 1, error=ConfigError)
        sampling = 4 * steps**2 * squared / k
        if not replacement:
            if k > len(p) or not np.allclose(p, 1 / len(p)):
                raise ConfigError(
                    "Without replacement the theorem is about at most all clients with equal shares; pass "
                    "replacement=True for a draw by p_k."
                )
            sampling *= (len(p) - k) / max(len(p) - 1, 1)
    noise = float((p**2 * sigma**2).sum()) + 6 * smoothness * heterogeneity + 8 * (steps - 1) ** 2 * squared
    return NonIIDBound(mu, kappa, max(8 * kappa, steps), noise, sampling, distance, steps)


@checked
def heterogeneity(optimum: float, shares: ArrayLike, local_optima: ArrayLike) -> float:
    """Γ = F* − Σ p_k F_k*: how much worse the common optimum is than if each client had its own; 0 if they agree."""
    return float(optimum - np.asarray(shares, np.float64) @ np.asarray(local_optima, np.float64))


@checked
def rounds_shape(
    local_steps: float, *, clients_per_round: int, gradient_bound: float, heterogeneity: float, shares: ArrayLike,
    deviations: ArrayLike, smoothness: float, mu: float,
) -> float:  # fmt: skip
    """T_ε/E ∝ (1 + 1/K) E G² + (Σ p_k² σ_k² + L Γ + κ G²)/E + G²: how many rounds E local steps need, up to a factor.

    Too few local steps and too many both cost rounds; `best_local_steps` is where it is least.
    """
    rises, falls = _shape(clients_per_round, gradient_bound, heterogeneity, shares, deviations, smoothness, mu)
    return rises * local_steps + falls / local_steps + gradient_bound**2


@checked
def best_local_steps(
    *, clients_per_round: int, gradient_bound: float, heterogeneity: float, shares: ArrayLike, deviations: ArrayLike,
    smoothness: float, mu: float,
) -> float:  # fmt: skip
    """E = √((Σ p_k² σ_k² + L Γ + κ G²) / ((1 + 1/K) G²)), the least of `rounds_shape`."""
    rises, falls = _shape(clients_per_round, gradient_bound, heterogeneity, shares, deviations, smoothness, mu)
    return math.sqrt(falls / rises)


def _shape(k, gradient_bound, gap, shares, deviations, smoothness, mu) -> tuple[float, float]:
    """The factors of E and of 1/E."""
    squared = check_positive("gradient_bound", gradient_bound, error=ConfigError) ** 2
    rises = (1 + 1 / check_whole("clients_per_round", k, 1, error=ConfigError)) * squared
    spread = float((np.asarray(shares, np.float64) ** 2 * np.asarray(deviations, np.float64) ** 2).sum())
    return rises, spread + smoothness * gap + _kappa(smoothness, mu) * squared


# Not convex ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NonConvexBound:
    """The three terms of Yu, Yang and Zhu, whose sum bounds (1/T) Σ_t E‖∇f(x̄_t)‖², t = 0 … T − 1."""

    start: float  # 2 (f(x̄_0) − f*) / (γ T)
    drift: float  # 4 γ² I² G² L²
    noise: float  # γ L σ² / N

    @property
    def total(self) -> float:
        return self.start + self.drift + self.noise


@checked
def non_convex_bound(
    *, gap: float, lr: float, horizon: int, workers: int, interval: int, smoothness: float, variance: float,
    gradient_bound: float,
) -> NonConvexBound:  # fmt: skip
    """N workers, all in every round, that take the mean every ``interval`` = I steps; γ = ``lr`` at most 1/L."""
    if not 0 < lr <= 1 / smoothness:
        raise ConfigError(f"lr is {lr:g}, and the theorem holds for rates above 0 up to 1/L = {1 / smoothness:g}.")
    return NonConvexBound(
        start=2 * gap / (lr * horizon),
        drift=4 * lr**2 * interval**2 * gradient_bound**2 * smoothness**2,
        noise=lr * smoothness * variance / workers,
    )


@checked
def non_convex_lr(workers: int, horizon: int, smoothness: float) -> float:
    """γ = √N / (L √T)."""
    return math.sqrt(workers / horizon) / smoothness


@checked
def longest_interval(workers: int, horizon: int) -> float:
    """I ≤ T^¼ / N^¾; above 1, so that a round may have several steps, only if T > N³."""
    return horizon**0.25 / workers**0.75


@checked
def non_convex_rate(
    *, gap: float, workers: int, horizon: int, smoothness: float, variance: float, gradient_bound: float
) -> float:
    """(2 L (f(x̄_0) − f*) + 4 G² + σ²) / √(N T): the bound with that γ and an I up to `longest_interval`."""
    if horizon < workers**3:
        raise ConfigError(
            f"With horizon={horizon:,} and workers={workers:,} no interval fits: it needs T > N³ = {workers**3:,}."
        )
    return (2 * smoothness * gap + 4 * gradient_bound**2 + variance) / math.sqrt(workers * horizon)


def _kappa(smoothness: float, mu: float) -> float:
    check_positive("mu", mu, error=ConfigError)
    return check_number("smoothness", smoothness, least=mu, error=ConfigError) / mu
