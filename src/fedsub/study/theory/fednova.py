"""What FedAvg minimises where clients take different numbers of steps, and what FedNova's theorem says of it.

Client i's update is −η Σ_k a_ik g_ik; a_i = (1, …, 1) of plain SGD. Averaged with weights p_i, it descends on

    F̃ = Σ w_i F_i,   w_i = p_i ‖a_i‖₁ / Σ p_j ‖a_j‖₁,   at τ_eff = Σ p_i ‖a_i‖₁ steps a round

and not on F = Σ p_i F_i. J. Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization", NeurIPS 2020, Theorems 1 and 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedsub.checks import check_column, check_decay, check_whole
from fedsub.errors import ConfigError
from fedsub.study.theory.arguments import checked

Array = np.ndarray


def accumulation(steps: int, *, momentum: float = 0.0, pull: float = 0.0) -> Array:
    """a_i of so many local steps, float64 [τ]: plain, with momentum ρ, or with a proximal term, α = η μ = ``pull``.

    plain 1;  momentum (1 − ρ^{τ−k})/(1 − ρ);  proximal (1 − α)^{τ−1−k};  k = 0 … τ − 1.
    """
    tau = check_whole("steps", steps, 1, error=ConfigError)
    for name, value in (("momentum", momentum), ("pull", pull)):
        check_decay(name, value, hint="it is a factor per step", error=ConfigError)
    if momentum and pull:
        raise ConfigError("a is known for momentum or for a proximal term, not for both; leave one out.")
    left = tau - np.arange(tau)
    return (1 - momentum**left) / (1 - momentum) if momentum else (1 - pull) ** (left - 1.0)


@checked
def surrogate_weights(shares: ArrayLike, accumulations: Sequence[ArrayLike]) -> Array:
    """w_i = p_i ‖a_i‖₁ / Σ p_j ‖a_j‖₁: whose mean FedAvg minimises. FedNova's are ``shares``."""
    weights = _shares(shares, accumulations) * _norms(accumulations)
    return weights / weights.sum()


@checked
def effective_steps(shares: ArrayLike, accumulations: Sequence[ArrayLike]) -> float:
    """τ_eff = Σ p_i ‖a_i‖₁: of FedAvg, and FedNova's default."""
    return float(_shares(shares, accumulations) @ _norms(accumulations))


@checked
def slowdown(steps: ArrayLike, effective: float) -> float:
    """τ̄ / τ_eff, the factor on the rate's first term; τ̄ is the mean number of local steps, each client counted once.

    Above 1 where the clients with most steps have little weight: they work, and the server does not go as far.
    """
    return float(np.mean(np.asarray(steps, np.float64)) / effective)


@dataclass(frozen=True)
class NovaConstants:
    """A, B and C of Theorem 1, for weights w_i. With m clients, T rounds and η = √(m/(τ̄ T)), the least E‖∇F̃‖² is

    O(τ̄/τ_eff / √(m τ̄ T)) + O(A σ² / √(m τ̄ T)) + O(m B σ² / (τ̄ T)) + O(m C κ² / (τ̄ T)).
    """

    noise: float  # A = m τ_eff Σ w_i² ‖a_i‖₂² / ‖a_i‖₁²
    drift_noise: float  # B = Σ w_i (‖a_i‖₂² − a_i,−1²)
    drift: float  # C = max_i (‖a_i‖₁² − ‖a_i‖₁ a_i,−1)


@checked
def nova_constants(weights: ArrayLike, accumulations: Sequence[ArrayLike], effective: float) -> NovaConstants:
    """a_i,−1 is the last entry of a_i. With one step each there is no drift: B = C = 0."""
    w, ones = _shares(weights, accumulations), _norms(accumulations)
    squares = np.array([float((np.asarray(a, np.float64) ** 2).sum()) for a in accumulations])
    last = np.array([float(np.asarray(a, np.float64)[-1]) for a in accumulations])
    return NovaConstants(
        noise=float(len(w) * effective * (w**2 * squares / ones**2).sum()),
        drift_noise=float((w * (squares - last**2)).sum()),
        drift=float((ones**2 - ones * last).max()),
    )


@checked
def mismatch(shares: ArrayLike, weights: ArrayLike) -> float:
    """χ²(p‖w) = Σ (p_i − w_i)² / w_i, by which Theorem 2 bounds what is left of ∇F where ∇F̃ vanishes."""
    p, w = np.asarray(shares, np.float64), np.asarray(weights, np.float64)
    return float(((p - w) ** 2 / w).sum())


def _norms(accumulations: Sequence[ArrayLike]) -> Array:
    found = [check_column(f"accumulations[{i}]", a) for i, a in enumerate(accumulations)]
    if bad := [i for i, a in enumerate(found) if not a.sum()]:
        raise ConfigError(f"accumulations[{bad[0]}] has no step, or none that counts; leave such a client out.")
    return np.array([float(a.sum()) for a in found])


def _shares(shares: ArrayLike, accumulations: Sequence[ArrayLike]) -> Array:
    p = np.asarray(shares, np.float64)
    if p.shape != (len(accumulations),) or not len(p) or (p < 0).any() or abs(p.sum() - 1) > 1e-9:
        raise ConfigError(
            f"Weights of shape {p.shape} with the sum {p.sum():g} do not fit {len(accumulations)} clients; give each "
            "a share of at least 0, with the sum 1."
        )
    return p
