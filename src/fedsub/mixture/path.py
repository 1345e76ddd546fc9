"""The path x(λ) from purely local models (λ = 0) to one global model (λ = ∞), and its link with MAML.

F. Hanzely and P. Richtárik, "Federated Learning of a Mixture of Global and Local Models", 2020: along the path
f(x(λ)) does not fall and ψ(x(λ)) does not rise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedsub.core import Tree
from fedsub.errors import MethodError
from fedsub.mixture.constants import Constants
from fedsub.mixture.functions import Functions, WithProx, add, copy, minus, root_mean_square
from fedsub.mixture.inner import local_prox
from fedsub.mixture.proximal import APGD1, APGD2
from fedsub.mixture.solver import check_lam


@dataclass(frozen=True)
class PathPoint:
    """x(λ) and where it lies. Distances are √((1/n) Σ‖·‖²) over clients."""

    lam: float
    x: Tree
    f: float  # (1/n) Σ f_i(x_i)
    psi: float  # (1/2n) Σ ‖x_i − x̄‖²
    to_local: float  # distance to x(0)
    to_global: float  # distance to x(∞)
    residual: float  # of the optimality condition, over its size at x⁰
    iterations: int
    communications: int
    method: str

    def numbers(self) -> dict[str, float | int | str]:
        """Everything but x, for tables."""
        return {name: value for name, value in vars(self).items() if name != "x"}


def lambda_grid(constants: Constants, count: int = 13) -> tuple[float, ...]:
    """0, then ``count`` values from L/1000 to 10 L in equal ratios, then infinity."""
    return (0.0, *np.geomspace(constants.L / 1000, constants.L * 10, count).tolist(), math.inf)


def trace_path(
    functions: Functions,
    lams: Sequence[float],
    constants: Constants,
    *,
    tolerance: float = 1e-6,
    most: int = 10_000,
    start: Tree | None = None,
) -> Iterator[PathPoint]:
    """x(λ) for every λ of ``lams`` in ascending order, each started from the one before; 0 and inf are allowed.

    By APGD1 where λ ≤ L and by APGD2 where λ > L: the better one in communications. A point is done when the
    optimality residual, over its size at the start, is at most ``tolerance``, or after ``most`` iterations.
    """
    order = sorted({float(lam) for lam in lams})
    for lam in order:
        check_lam(lam, infinite=True)
    if not 0 < tolerance < 1:
        raise MethodError(f"tolerance must lie between 0 and 1, got {tolerance!r}.")
    first = functions.start() if start is None else start
    scale = root_mean_square(functions, functions.gradient(first)[1]) or 1.0

    ends = {lam: _reach(functions, lam, constants, first, tolerance * scale, most) for lam in (0.0, math.inf)}
    local, far = ends[0.0].x, ends[math.inf].x
    at = local
    for lam in order:
        found = ends[lam] if lam in ends else _reach(functions, lam, constants, at, tolerance * scale, most)
        at = found.x
        losses, _ = functions.gradient(at)
        yield PathPoint(
            lam=lam,
            x=at,
            f=float(losses.mean()),
            psi=spread_of(functions, at),
            to_local=root_mean_square(functions, minus(at, local)),
            to_global=root_mean_square(functions, minus(at, far)),
            residual=found.residual / scale,
            iterations=found.iterations,
            communications=found.communications,
            method=found.method,
        )


def spread_of(functions: Functions, x: Tree) -> float:
    """ψ(x) = (1/2n) Σ ‖x_i − x̄‖²."""
    return 0.5 * root_mean_square(functions, minus(x, functions.mean(x))) ** 2


def optimality_residual(functions: Functions, x: Tree, lam: float) -> float:
    """Root mean square over clients of ∇f_i(x_i) + λ(x_i − x̄), which is 0 at x(λ) alone.

    For λ = ∞, where all x_i are equal, of the mean gradient.
    """
    _, gradient = functions.gradient(x)
    if math.isinf(lam):
        return root_mean_square(functions, functions.mean(gradient))
    if lam:
        add(gradient, x, lam)
        add(gradient, functions.mean(x), -lam)
    return root_mean_square(functions, gradient)


@dataclass(frozen=True)
class _Reached:
    x: Tree
    residual: float
    iterations: int
    communications: int
    method: str


def _reach(functions: Functions, lam: float, constants: Constants, start: Tree, goal: float, most: int) -> _Reached:
    """x(λ) to an optimality residual of ``goal``."""
    if lam == 0:
        exact = functions.prox(start, 0.0) if isinstance(functions, WithProx) else None
        x = local_prox(functions, constants, start, 0.0, start, tolerance=goal).x if exact is None else exact
        return _Reached(x, optimality_residual(functions, x, 0.0), 1, 0, APGD1.name)
    solver = APGD1(lam=lam) if lam <= constants.L else APGD2(lam=lam)
    state = solver.begin(functions, constants, start)
    if math.isinf(lam):
        mean = functions.mean(state.x)
        state.trees = {"x": mean, "y": copy(mean)}
    residual, number = optimality_residual(functions, state.x, lam), 0
    while residual > goal and number < most:
        number += 1
        solver.step(state, functions, number, 0)
        residual = optimality_residual(functions, state.x, lam)
    return _Reached(state.x, residual, number, int(state.numbers["communications"]), solver.name)


def maml_models(functions: Functions, shared: Tree, alpha: float) -> Tree:
    """z − α∇f_i(z): MAML's personal models from a shared point z, laid out like x."""
    personal = copy(shared)
    add(personal, functions.gradient(shared)[1], -alpha)
    return personal


def maml_gap(functions: Functions, x: Tree, lam: float) -> float:
    """Root mean square distance between x_i(λ) and MAML's step from its mean, x̄ − (1/λ)∇f_i(x̄).

    The mixture's model is x_i = x̄ − (1/λ)∇f_i(x_i), the same with the gradient at the personal point: an implicit
    step in place of an explicit one. They differ by (1/λ)(∇f_i(x̄) − ∇f_i(x_i)), of norm at most
    (L/λ²) ‖∇f_i(x_i)‖ = O(1/λ²). This compares both at the same shared point. MAML's own shared point, stationary
    for Σ f_i(z − α∇f_i(z)), is another one: it differs from x̄(λ) by O(1/λ).
    """
    if not 0 < lam < math.inf:
        raise MethodError(f"The step 1/lam of MAML needs a positive lam, got {lam!r}.")
    return root_mean_square(functions, minus(x, maml_models(functions, functions.mean(x), 1 / lam)))
