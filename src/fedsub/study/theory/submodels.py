"""The quantities of FedSubAvg's analysis, exact, in float64, for problems small enough to write out.

N clients, M parameters; client i holds the parameters S(i), ``holders[i, m]`` says whether m is one of
them, and n_m is how many clients hold m.

    f = (1/N) sum_i f_i,    H = (1/N) sum_i H_i,    D = diag(N / n_m),    FedSubAvg: X <- X - lr D grad f

Sources: [N] Ding et al., "Federated Submodel Optimization for Hot and Cold Data Features", NeurIPS
2022; [A] the manuscript "Federated Submodel Averaging" by the same group.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedsub.checks import check_number, check_positive, check_whole
from fedsub.errors import ConfigError
from fedsub.study.theory.arguments import checked

Array = np.ndarray


def heat_matrix(holders: ArrayLike) -> Array:
    """n_m, the diagonal of the heat matrix diag(n_m); int64 [M] from bool [N, M]."""
    return np.asarray(holders, bool).sum(axis=0, dtype=np.int64)


# Gradient norms ------------------------------------------------------------------------------------


def elementwise_norm(gradients: ArrayLike, holders: ArrayLike) -> float:
    """Element-wise gradient norm [A, Definition 1]: each parameter's gradient over its own holders.

        (1/N) sum_m (1/n_m) (sum_{i holds m} g_im)^2  =  grad f^T D grad f

    ``gradients`` is [N, M], zero where a client does not hold the parameter. Parameters that nobody
    holds contribute nothing.
    """
    g, held = np.asarray(gradients, np.float64), np.asarray(holders, bool)
    if g.shape != held.shape:
        raise ValueError(f"gradients are {g.shape} and holders {held.shape}; both must be [clients, parameters].")
    if np.any(g[~held]):
        raise ValueError("A client has a gradient for a parameter it does not hold; set it to 0 or the holder to True.")
    n = heat_matrix(held)
    return float((g.sum(axis=0)[n > 0] ** 2 / n[n > 0]).sum() / len(g))


def squared_norm(gradients: ArrayLike) -> float:
    """||grad f||^2 = ||(1/N) sum_i g_i||^2 of gradients [N, M]."""
    return float((np.asarray(gradients, np.float64).mean(axis=0) ** 2).sum())


@checked
def suboptimality_bound(elementwise: float, mu: float) -> float:
    """f - f* <= elementwise / (2 mu), every f_i mu-strongly convex on its submodel [A, Theorem 1]."""
    return elementwise / (2 * mu)


@checked
def suboptimality_bound_from_squared(squared: float, mu: float, n_min: int, n_clients: int) -> float:
    """f - f* <= (N / n_min) ||grad f||^2 / (2 mu): all the squared norm alone can say [A, Theorem 1].

    f is only (n_min/N) mu-strongly convex, so a small gradient may hide a cold parameter far off.
    """
    return n_clients / n_min * squared / (2 * mu)


# Conditioning --------------------------------------------------------------------------------------


def hessian(local_hessians: ArrayLike) -> Array:
    """H = (1/N) sum_i H_i of local Hessians [N, M, M], zero outside S(i) x S(i)."""
    return np.asarray(local_hessians, np.float64).mean(axis=0)


def condition_number(H: ArrayLike) -> float:
    """max |eigenvalue| / min |eigenvalue| of a symmetric matrix; inf if it is singular."""
    size = np.abs(np.linalg.eigvalsh(np.asarray(H, np.float64)))
    return float(size.max() / size.min()) if size.min() > 0 else float("inf")


def preconditioned(H: ArrayLike, n: ArrayLike, n_clients: int) -> Array:
    """D^{1/2} H D^{1/2} with D = diag(N / n_m): the Hessian that FedSubAvg sees [N, Theorem 2].

    A parameter that nobody holds (n_m = 0) keeps the coefficient 1.
    """
    heat = np.asarray(n, np.float64)
    root = np.sqrt(np.divide(n_clients, heat, out=np.ones_like(heat), where=heat > 0))
    return root[:, None] * np.asarray(H, np.float64) * root


def condition_lower_bound(n: ArrayLike, alpha: float, rho1: float, rho2: float) -> float:
    """kappa(H) >= (n_max / n_min) (rho1 - alpha (rho1 + rho2)) / rho2 [N, Theorem 1].

    Local eigenvalues lie in [rho1, rho2] in absolute value, and at most a fraction ``alpha`` of each
    parameter's holders is non-convex. Heat dispersion alone makes FedAvg's problem ill-conditioned.
    """
    low, high = _held_range(n)
    return high / low * _curvature(alpha, rho1, rho2) / rho2


def preconditioned_upper_bound(alpha: float, rho1: float, rho2: float) -> float:
    """kappa(D^{1/2} H D^{1/2}) <= rho2 / (rho1 - alpha (rho1 + rho2)) [N, Theorem 2], whatever the heat."""
    return rho2 / _curvature(alpha, rho1, rho2)


def k_bound(H: ArrayLike, n: ArrayLike, n_clients: int, rho2: float) -> float:
    """kappa(H) <= rho2 n_max / (N sigma_min(H)) =: k [N]."""
    return rho2 * _held_range(n)[1] / (n_clients * _smallest(H))


def k_hat_bound(H: ArrayLike, n: ArrayLike, n_clients: int, rho2: float) -> float:
    """kappa(D^{1/2} H D^{1/2}) <= rho2 / sigma_min(D^{1/2} H D^{1/2}) =: k_hat, and k_hat <= k [N]."""
    return rho2 / _smallest(preconditioned(H, n, n_clients))


def _curvature(alpha: float, rho1: float, rho2: float) -> float:
    """Least curvature of a mean in which a fraction alpha curves the wrong way."""
    left = (1 - alpha) * rho1 - alpha * rho2
    if left <= 0:
        raise ValueError(
            f"(1 - alpha) rho1 - alpha rho2 = {left:.6g} with alpha={alpha}, rho1={rho1}, rho2={rho2}; "
            "the theorems need it to be positive: a smaller alpha or a smaller rho2 / rho1."
        )
    return left


def _held_range(n: ArrayLike) -> tuple[float, float]:
    heat = np.asarray(n)
    heat = heat[heat > 0]
    if len(heat) == 0:
        raise ValueError("No parameter has a holder; n must have an entry above 0.")
    return float(heat.min()), float(heat.max())


def _smallest(H: ArrayLike) -> float:
    """sigma_min of a symmetric matrix."""
    return float(np.abs(np.linalg.eigvalsh(np.asarray(H, np.float64))).min())


# Rate ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RateBound:
    """The four terms of Theorem 3 and their sum."""

    start: float  # 2 (f(X^1) - f*) / (lr T)
    noise: float  # 2 lr L sigma^2 / n_min
    drift: float  # 4 N lr^2 I^2 G^2 L^2 / n_min
    sampling: float  # 2 lr N I^2 G^2 L / (n_min K)

    @property
    def total(self) -> float:
        return self.start + self.noise + self.drift + self.sampling


@checked
def rate_bound(
    *,
    gap: float,
    lr: float,
    horizon: int,
    n_clients: int,
    clients_per_round: int,
    local_steps: int,
    n_min: int,
    smoothness: float,
    variance: float,
    gradient_bound: float,
) -> RateBound:
    """Bound on (1/T) sum_t E[grad f^T D grad f] for non-convex f [N, Theorem 3 = A, Theorem 2].

        2 (f(X^1) - f*)/(lr T) + 2 lr L sigma^2/n_min
            + 4 N lr^2 I^2 G^2 L^2/n_min + 2 lr N I^2 G^2 L/(n_min K)

    ``gap`` is f(X^1) - f*, ``horizon`` T, ``smoothness`` L, ``variance`` sigma^2 and ``gradient_bound``
    G, a bound on the norm of a stochastic gradient.
    """
    per_step = local_steps**2 * gradient_bound**2 * smoothness  # I^2 G^2 L, in the last two terms
    return RateBound(
        start=2 * gap / (lr * horizon),
        noise=2 * lr * smoothness * variance / n_min,
        drift=4 * n_clients * lr**2 * per_step * smoothness / n_min,
        sampling=2 * lr * n_clients * per_step / (n_min * clients_per_round),
    )


@checked
def suggested_lr(n_min: int, clients_per_round: int, n_clients: int, horizon: int) -> float:
    """sqrt(n_min K / (N T)) [N, Theorem 3].

    With it and T > n_min K^3 / N, `rate_bound` is O(sqrt(N / (n_min K T))).
    """
    return float(np.sqrt(n_min * clients_per_round / (n_clients * horizon)))


@dataclass(frozen=True)
class Corollary:
    """Corollary 1: with γ = √(n_min K / (N T)) at most ``constant`` · √(N / (n_min K T)), from T = ``enough`` on.

    ``constant`` = 2 (f(X^1) − f*) + 2 L σ² K/N + 4 I² G² L² + 2 I² G² L,  ``enough`` = n_min K³ / N.
    """

    constant: float
    enough: float
    factor: float  # N / (n_min K)

    def after(self, horizon: int) -> float:
        """What (1/T) Σ E[∇fᵀ D ∇f] is at most after T = ``horizon`` rounds."""
        check_number("horizon", horizon, least=1, error=ConfigError)
        if horizon < self.enough:
            raise ValueError(f"The corollary begins at T = n_min K^3 / N = {self.enough:.6g}; horizon is {horizon}.")
        return self.constant * float(np.sqrt(self.factor / horizon))

    def rounds_to(self, accuracy: float) -> int:
        """The iteration complexity: T = max(n_min K³ / N, (N / (n_min K)) (constant / ε)²), O(N / (n_min K ε²))."""
        check_positive("accuracy", accuracy, error=ConfigError)
        return int(np.ceil(max(self.enough, self.factor * (self.constant / accuracy) ** 2)))


@checked
def corollary(
    *, gap: float, n_clients: int, clients_per_round: int, local_steps: int, n_min: int, smoothness: float,
    variance: float, gradient_bound: float,
) -> Corollary:  # fmt: skip
    """The constants of [N, Corollary 1], arguments as of `rate_bound`."""
    per_step = local_steps**2 * gradient_bound**2 * smoothness
    noise = 2 * smoothness * variance * clients_per_round / n_clients
    return Corollary(
        constant=2 * gap + noise + 4 * per_step * smoothness + 2 * per_step,
        enough=n_min * clients_per_round**3 / n_clients,
        factor=n_clients / (n_min * clients_per_round),
    )


# Closed forms --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Example1:
    """Trajectories of (w1, w2) from round 0 on, each float64 [rounds + 1, 2]."""

    fedavg: Array
    fedsubavg: Array


@checked
def example1(n_clients: int, rounds: int, lr: float, start: tuple[float, float], local_steps: int = 1) -> Example1:
    """Example 1 of [N]: client 1 has loss w1^2 + w2^2, all others w2^2; everyone takes part, exact gradients.

        q = (1 - 2 lr)^I,   FedAvg: ((1 - (1 - q)/N)^r a, q^r b),   FedSubAvg: (q^r a, q^r b)

    w1 is held by one client of N: FedAvg moves it N times too slowly, FedSubAvg like w2.
    """
    check_whole("rounds", rounds, 0, error=ConfigError)
    q = (1 - 2 * lr) ** local_steps
    r = np.arange(rounds + 1)[:, None]
    point = np.asarray(start, np.float64)
    slow = np.array([1 - (1 - q) / n_clients, q])
    return Example1(fedavg=slow**r * point, fedsubavg=np.array([q, q]) ** r * point)


@checked
def drift_fixed_point(a: ArrayLike, e: ArrayLike, lr: float, local_steps: int) -> float:
    """Where FedAvg settles for f_i = a_i (x - e_i)^2 / 2 with everyone taking part.

        sum c_i e_i / sum c_i,   c_i = 1 - (1 - lr a_i)^I

    Equal to `true_optimum` for one local step; more steps pull it towards flat clients.
    """
    c = 1 - (1 - lr * np.asarray(a, np.float64)) ** local_steps
    return float(c @ np.asarray(e, np.float64) / c.sum())


def true_optimum(a: ArrayLike, e: ArrayLike) -> float:
    """Minimiser of the mean of f_i = a_i (x - e_i)^2 / 2: sum a_i e_i / sum a_i."""
    curvature = np.asarray(a, np.float64)
    return float(curvature @ np.asarray(e, np.float64) / curvature.sum())
