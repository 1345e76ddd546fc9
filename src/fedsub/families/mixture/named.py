"""The named methods of the mixture objective. λ is ``lam``: 0 is purely local, ∞ one model for all.

Where p, α, L, μ are None they come from theory and from the problem (`fedsub.families.mixture.method.Mixture`).
"""

from __future__ import annotations

from fedsub.families.mixture.gd import L2GD, LGD, L2GDPlus
from fedsub.families.mixture.katyusha import AL2SGDPlus
from fedsub.families.mixture.method import Mixture
from fedsub.families.mixture.proximal import APGD1, APGD2, IAPGD
from fedsub.families.mixture.sgd import L2SGD, L2SGD2, L2SGDPlus
from fedsub.method.named.catalogue import named


@named("LGD", "local gradient steps, then the mean", "T times x_i − α∇f_i, then x_i ← x̄", "Hanzely, Richtárik 2020")
def lgd(
    *, local_steps: int = 1, alpha: float | None = None, L: float | None = None, mu: float | None = None
) -> Mixture:
    """LGD, the reference: local gradient steps, then everybody takes the mean. Finds x(∞) for one local step only."""
    return Mixture(solver=LGD(local_steps=local_steps, alpha=alpha), L=L, mu=mu, name="lgd")


@named("L2GD", "personal models pulled to their mean", "x_i − β∇f_i, or (1−γ) x_i + γ x̄", "Hanzely, Richtárik 2020")
def l2gd(
    *, lam: float = 0.1, p: float | None = None, alpha: float | None = None, L: float | None = None,
    mu: float | None = None,
) -> Mixture:  # fmt: skip
    """L2GD: with probability p a step to the mean, else a local gradient step. Stops at a noise floor.

    F. Hanzely and P. Richtárik, "Federated Learning of a Mixture of Global and Local Models", 2020.
    """
    return Mixture(solver=L2GD(lam=lam, p=p, alpha=alpha), L=L, mu=mu, name="l2gd")


@named("L2GD+", "L2GD with control variates", "x_i − (α/n)[(g−J)/(1−p) + J + Ψ]", "Hanzely, Richtárik 2020")
def l2gd_plus(
    *, lam: float = 0.1, p: float | None = None, alpha: float | None = None, L: float | None = None,
    mu: float | None = None,
) -> Mixture:  # fmt: skip
    """L2GD+: L2GD with control variates for f and ψ, which remove the noise floor (Hanzely and Richtárik, 2020)."""
    return Mixture(solver=L2GDPlus(lam=lam, p=p, alpha=alpha), L=L, mu=mu, name="l2gd_plus")


@named("L2SGD", "L2GD on batches", "x_i − β∇f_ij, or (1−γ) x_i + γ x̄", "Hanzely, Richtárik 2020")
def l2sgd(
    *, lam: float = 0.1, batch_size: int = 5, p: float | None = None, alpha: float | None = None,
    L: float | None = None, mu: float | None = None, L_terms: float | None = None,
) -> Mixture:  # fmt: skip
    """L2SGD: L2GD on one batch of every client (Hanzely and Richtárik, 2020)."""
    solver = L2SGD(lam=lam, p=p, alpha=alpha)
    return Mixture(solver=solver, batch_size=batch_size, L=L, mu=mu, L_terms=L_terms, name="l2sgd")


@named("L2SGD2", "L2SGD with variates for f and ψ", "L2GD+ with ∇f_ij", "Hanzely, Richtárik 2020")
def l2sgd2(
    *, lam: float = 0.1, batch_size: int = 5, p: float | None = None, alpha: float | None = None,
    L: float | None = None, mu: float | None = None, L_terms: float | None = None,
) -> Mixture:  # fmt: skip
    """L2SGD2: L2GD+ on one batch of every client; no variates for the batches (Hanzely and Richtárik, 2020)."""
    solver = L2SGD2(lam=lam, p=p, alpha=alpha)
    return Mixture(solver=solver, batch_size=batch_size, L=L, mu=mu, L_terms=L_terms, name="l2sgd2")


@named(
    "L2SGD+", "L2SGD with variates for every batch", "x_i − (α/n)[(g−J_j)/(1−p) + J̄ + Ψ]", "Hanzely, Richtárik 2020",
)  # fmt: skip
def l2sgd_plus(
    *, lam: float = 0.1, batch_size: int = 5, p: float | None = None, alpha: float | None = None,
    L: float | None = None, mu: float | None = None, L_terms: float | None = None,
) -> Mixture:  # fmt: skip
    """L2SGD+: variates for ψ and for every batch; converges to x(λ) exactly (Hanzely and Richtárik, 2020)."""
    solver = L2SGDPlus(lam=lam, p=p, alpha=alpha)
    return Mixture(solver=solver, batch_size=batch_size, L=L, mu=mu, L_terms=L_terms, name="l2sgd_plus")


@named("APGD1", "personal models by accelerated local proxes", "x_i = prox_{f_i/λ}(ȳ)", "Hanzely et al. 2020")
def apgd1(*, lam: float = 0.1, L: float | None = None, mu: float | None = None) -> Mixture:
    """APGD1: accelerated; a local prox and an average each iteration. Fewest communications where λ ≤ L.

    F. Hanzely et al., "Lower Bounds and Optimal Algorithms for Personalized Federated Learning", 2020.
    """
    return Mixture(solver=APGD1(lam=lam), L=L, mu=mu, name="apgd1")


@named("APGD2", "personal models by accelerated gradients", "x_i = (L v_i + λ v̄)/(L+λ)", "Hanzely et al. 2020")
def apgd2(*, lam: float = 0.1, L: float | None = None, mu: float | None = None) -> Mixture:
    """APGD2: accelerated; a local gradient and an average each iteration. Fewest communications where λ ≥ L.

    F. Hanzely et al., "Lower Bounds and Optimal Algorithms for Personalized Federated Learning", 2020.
    """
    return Mixture(solver=APGD2(lam=lam), L=L, mu=mu, name="apgd2")


@named("IAPGD", "APGD1 with inexact proxes", "x_i ≈ prox_{f_i/λ}(ȳ)", "Hanzely et al. 2020")
def iapgd(*, lam: float = 0.1, accuracy: float = 0.1, L: float | None = None, mu: float | None = None) -> Mixture:
    """IAPGD: APGD1 with local proxes solved only as far as needed (Hanzely et al., 2020)."""
    return Mixture(solver=IAPGD(lam=lam, accuracy=accuracy), L=L, mu=mu, name="iapgd")


@named("AL2SGD+", "accelerated L2SGD+", "loopless Katyusha on f + λψ", "Hanzely et al. 2020")
def al2sgd_plus(
    *, lam: float = 0.1, batch_size: int = 5, p: float | None = None, rho: float | str = "communication",
    L: float | None = None, mu: float | None = None, L_terms: float | None = None,
) -> Mixture:  # fmt: skip
    """AL2SGD+: accelerated L2SGD+ (loopless Katyusha). ``rho``: optimal in "communication" or "computation".

    F. Hanzely et al., "Lower Bounds and Optimal Algorithms for Personalized Federated Learning", 2020.
    """
    solver = AL2SGDPlus(lam=lam, p=p, rho=rho)
    return Mixture(solver=solver, batch_size=batch_size, L=L, mu=mu, L_terms=L_terms, name="al2sgd_plus")
