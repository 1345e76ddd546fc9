"""Step sizes, coins, momenta, rates and bounds of the mixture objective: a small function for every formula.

n clients, λ = ``lam``, m = ``terms`` (the largest m_i), f_i L-smooth and μ-strongly convex, its terms L̃-smooth
(``L_terms``). Sources: F. Hanzely and P. Richtárik, "Federated Learning of a Mixture of Global and Local Models",
2020 (L2GD and its stochastic forms); F. Hanzely, S. Hanzely, S. Horváth, P. Richtárik, "Lower Bounds and Optimal
Algorithms for Personalized Federated Learning", 2020 (accelerated methods, lower bounds).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedsub.checks import check_positive
from fedsub.errors import MethodError


@dataclass(frozen=True)
class Constants:
    """Every f_i is ``L``-smooth and ``mu``-strongly convex, every term of it ``L_terms``-smooth (as f_i if None)."""

    L: float
    mu: float = 0.0
    L_terms: float | None = None

    def __post_init__(self) -> None:
        check_positive("L, the largest curvature of a client's loss,", self.L)
        if not 0 <= self.mu <= self.L:
            raise MethodError(f"mu must be from 0 to L = {self.L:g}, got {self.mu!r}.")
        if self.L_terms is not None:  # None: the same as L
            check_positive("L_terms", self.L_terms)

    @property
    def of_terms(self) -> float:
        """L̃."""
        return self.L if self.L_terms is None else self.L_terms

    def strongly_convex(self, method: str) -> float:
        """μ, which an accelerated method divides by."""
        if self.mu > 0:
            return self.mu
        raise MethodError(
            f"{method} needs strongly convex local functions, but mu is 0. Add weight decay to the objective or "
            "set mu to a small positive number yourself."
        )


# L2GD ----------------------------------------------------------------------------------------------


def expected_smoothness(L: float, lam: float, p: float, clients: int) -> float:
    """𝓛 = (1/n) max{L/(1−p), λ/p}; with p = 0 = λ the second is 0."""
    return max(L / (1 - p), lam / p if lam else 0.0) / clients


def l2gd_coin(L: float, lam: float) -> float:
    """p* = λ/(L+λ), which makes 𝓛 least: (L+λ)/n."""
    return lam / (L + lam)


def l2gd_step(L: float, lam: float, p: float, clients: int) -> float:
    """α = 1/(2𝓛), the largest for which the theory holds; then γ ≤ ½."""
    return 1 / (2 * expected_smoothness(L, lam, p, clients))


def local_rate(alpha: float, p: float, clients: int) -> float:
    """β = α/(n(1−p)), the step along a local gradient."""
    return alpha / (clients * (1 - p))


def pull_rate(alpha: float, lam: float, p: float, clients: int) -> float:
    """γ = αλ/(np), the share of the way to the mean."""
    return alpha * lam / (clients * p) if lam else 0.0


def contraction(alpha: float, mu: float, clients: int) -> float:
    """1 − αμ/n, by which the expected squared distance shrinks in an iteration."""
    return 1 - alpha * mu / clients


def gradient_noise(squared_gradients: float, squared_residuals: float, lam: float, p: float, clients: int) -> float:
    """σ² = (1/n²) Σ( ‖∇f_i(x_i(λ))‖²/(1−p) + λ² ‖x_i(λ) − x̄(λ)‖²/p ), given the two sums of squares."""
    return (squared_gradients / (1 - p) + (lam**2 * squared_residuals / p if lam else 0.0)) / clients**2


def noise_floor(alpha: float, noise: float, mu: float, clients: int) -> float:
    """2nασ²/μ, the bound on L2GD's squared distance to x(λ) after many iterations."""
    return 2 * clients * alpha * noise / mu


def expected_communications(p: float, iterations: int) -> float:
    """p(1−p)(k−1), the switches from a local iteration to an averaging one when the start counts as averaged."""
    return p * (1 - p) * max(0, iterations - 1)


# L2GD+, L2SGD2, L2SGD+ -------------------------------------------------------------------------------


def variance_reduced_step(L_terms: float, mu: float, lam: float, p: float, terms: int, clients: int) -> float:
    """α = min{ n(1−p)/(4L̃+μm), np/(4λ+μ) }; L2GD+ is the case of one term."""
    local = clients * (1 - p) / (4 * L_terms + mu * terms)
    return min(local, clients * p / (4 * lam + mu)) if lam else local


def variance_reduced_coin(L_terms: float, mu: float, lam: float, terms: int) -> float:
    """p* = (4λ+μ)/(4λ+4L̃+(m+1)μ), which makes both terms of α equal; 0 without a pull."""
    return (4 * lam + mu) / (4 * lam + 4 * L_terms + (terms + 1) * mu) if lam else 0.0


# Accelerated proximal gradient ------------------------------------------------------------------------


def momentum(smoothness: float, convexity: float) -> float:
    """(√κ−1)/(√κ+1) with κ = smoothness/convexity."""
    a, b = math.sqrt(smoothness), math.sqrt(convexity)
    return (a - b) / (a + b)


def apgd1_momentum(mu: float, lam: float) -> float:
    """β = (√(λ+μ)−√μ)/(√(λ+μ)+√μ)."""
    return momentum(lam + mu, mu)


def apgd2_momentum(L: float, mu: float) -> float:
    """β = (√L−√μ)/(√L+√μ)."""
    return momentum(L, mu)


def apgd1_rate(mu: float, lam: float) -> float:
    """1 − √(μ/(λ+μ)), by which the distance in F shrinks in an iteration."""
    return 1 - math.sqrt(mu / (lam + mu))


def apgd2_rate(L: float, mu: float) -> float:
    """1 − √(μ/L)."""
    return 1 - math.sqrt(mu / L)


def inner_condition(L: float, mu: float, lam: float) -> float:
    """κ = (L+λ)/(μ+λ) of the problem that a local prox solves."""
    return (L + lam) / (mu + lam)


def iapgd_tolerance(mu: float, lam: float, iteration: int, first: float = 0.1) -> float:
    """0.1 · (1 − ½√(μ/(λ+μ)))^k: this library's choice; the errors fall a little slower than the iterates."""
    return first * (1 - 0.5 * math.sqrt(mu / (lam + mu))) ** iteration


# AL2SGD+ ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Katyusha:
    """The parameters of AL2SGD+ (loopless Katyusha over the two-term sum).

    𝓛_F = (λ+L̃)/n, 𝓛 = (1/n) max{L̃/(1−p), λ/p}, μ_F = μ/n, M = max{𝓛_F, 𝓛};
    η = 1/(4M), θ2 = 𝓛/(2M), θ1 = min{½, √(ημ_F max{½, θ2/ρ})}, γ = 1/max{2μ_F, 4θ1/η}, β = 1 − γμ_F.
    """

    eta: float
    theta1: float
    theta2: float
    gamma: float
    beta: float


def katyusha(L_terms: float, mu: float, lam: float, p: float, rho: float, clients: int) -> Katyusha:
    smoothness = expected_smoothness(L_terms, lam, p, clients)
    largest, convexity = max((lam + L_terms) / clients, smoothness), mu / clients
    eta, theta2 = 1 / (4 * largest), smoothness / (2 * largest)
    theta1 = min(0.5, math.sqrt(eta * convexity * max(0.5, theta2 / rho)))
    gamma = 1 / max(2 * convexity, 4 * theta1 / eta)
    return Katyusha(eta, theta1, theta2, gamma, 1 - gamma * convexity)


def refresh_for_communication(p: float) -> float:
    """ρ = p(1−p): as many refreshes as switches, O(√(min{L̃,λ}/μ) log 1/ε) communications."""
    return p * (1 - p)


def refresh_for_computation(terms: int) -> float:
    """ρ = 1/m: O((m + √(m(L̃+λ)/μ)) log 1/ε) gradients of terms."""
    return 1 / terms


# Lower bounds, up to constants ---------------------------------------------------------------------------


def communications_bound(L: float, mu: float, lam: float, epsilon: float) -> float:
    """√(min{L,λ}/μ) log(1/ε) communications."""
    return math.sqrt(min(L, lam) / mu) * math.log(1 / epsilon)


def gradients_bound(L: float, mu: float, epsilon: float) -> float:
    """√(L/μ) log(1/ε) local gradients, of each client."""
    return math.sqrt(L / mu) * math.log(1 / epsilon)


def proxes_bound(L: float, mu: float, lam: float, epsilon: float) -> float:
    """√(min{L,λ}/μ) log(1/ε) local proxes, of each client."""
    return communications_bound(L, mu, lam, epsilon)


def term_gradients_bound(L_terms: float, mu: float, terms: int, epsilon: float) -> float:
    """(m + √(mL̃/μ)) log(1/ε) gradients of terms, of each client."""
    return (terms + math.sqrt(terms * L_terms / mu)) * math.log(1 / epsilon)
