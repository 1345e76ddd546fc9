"""The constants of FedMAvg's theorem: X_p ≈ W H_p with W shared, steps 1/c on H_p and 1/d on W.

    c = (γ1/2) L_H, γ1 > 1        d = γ2 L_W,  γ2 ≥ Q2^1 √(2 (7 + 4 L̄_W² / L̲_W²))

Q2^1 = Q̂ + 1 is the number of steps on W in round 1, the most of all rounds; L̲_W and L̄_W bound
L_W,p = (2/N_p) λ_max(H_p H_pᵀ) over clients and rounds. Under them G_H + G_W, the squared distances from stationarity,
go to 0 like 1/S in the mean over S rounds. S. Wang, R. C. Suwandi and T.-H. Chang, "Demystifying Model Averaging for
Communication-Efficient Federated Matrix Factorization", ICASSP 2021, Theorem 1.

The bound on γ2 is very conservative: in practice γ2 = 1 does. The factors below are of the descent lemma, for each
half of a round by itself.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from fedsub.checks import check_number, check_positive, check_whole
from fedsub.errors import ConfigError


def steps_on_w(q2_hat: int, round: int) -> int:
    """Q2^s = ⌊Q̂ / s⌋ + 1, for rounds s = 1, 2, …"""
    check_whole("round", round, 1, error=ConfigError)
    return check_whole("q2_hat", q2_hat, 0, error=ConfigError) // round + 1


def lipschitz_of_w(h: ArrayLike) -> float:
    """L_W,p = (2/N_p) λ_max(H Hᵀ) of a client's H [k, N_p]."""
    found = np.asarray(h, np.float64)
    return float(2 / found.shape[1] * np.linalg.eigvalsh(found @ found.T)[-1])


def lipschitz_of_h(w: ArrayLike, columns: int) -> float:
    """L_H = (2/N_p) λ_max(Wᵀ W) of W [M, k] and a client with so many columns."""
    found = np.asarray(w, np.float64)
    return float(2 / columns * np.linalg.eigvalsh(found.T @ found)[-1])


def least_gamma2(q2_hat: int, lowest: float, highest: float) -> float:
    """Q2^1 √(2 (7 + 4 L̄_W² / L̲_W²)), with L̲_W = ``lowest`` and L̄_W = ``highest``."""
    low = check_positive("lowest", lowest, error=ConfigError)
    ratio = check_number("highest", highest, least=low, error=ConfigError) / low
    return steps_on_w(q2_hat, 1) * math.sqrt(2 * (7 + 4 * ratio**2))


def h_factor(gamma1: float) -> float:
    """γ1² / (2 (γ1 − 1)): a projected step on H lowers F by at least G_H over this times L_H. Least at γ1 = 2.

    So Σ_s G_H is at most this times the largest L_H times what F lost, and γ1 must be above 1.
    """
    if check_number("gamma1", gamma1, least=1, error=ConfigError) == 1:
        raise ConfigError("gamma1 must be above 1, got 1: then c = L_H / 2, and a step need not lower F.")
    return gamma1**2 / (2 * (gamma1 - 1))


def w_factor(gamma2: float) -> float:
    """γ2² / (γ2 − ½): the same of G_W, L_W and the step on W of a round in which everybody sends after one step.

    Rounds after Q̂ are such. With more steps in a round clients drift apart, which is what the bound on γ2 is for.
    """
    if check_positive("gamma2", gamma2, error=ConfigError) <= 0.5:
        raise ConfigError(f"gamma2 must be above ½ for a step that lowers F, got {gamma2:g}.")
    return gamma2**2 / (gamma2 - 0.5)
