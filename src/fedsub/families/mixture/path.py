"""The path x(λ) from purely local models (λ = 0) to one global model (λ = ∞), and its link with MAML.

F. Hanzely and P. Richtárik, "Federated Learning of a Mixture of Global and Local Models", 2020: along the path
f(x(λ)) does not fall and ψ(x(λ)) does not rise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedsub.errors import MethodError
from fedsub.families.mixture.constants import Constants
from fedsub.families.mixture.functions import Functions, WithValue, add, copy, minus, root_mean_square
from fedsub.families.mixture.reach import Closely, Reached
from fedsub.families.mixture.solver import check_lam
from fedsub.trees import Tree


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
    check_tolerance(tolerance)
    first = functions.start() if start is None else start
    scale = gradient_size(functions, first)
    reach = Closely(tolerance * scale, most)
    ends = {lam: reach(functions, lam, constants, first) for lam in (0.0, math.inf)}
    at = ends[0.0].x
    for lam in order:
        found = ends[lam] if lam in ends else reach(functions, lam, constants, at)
        at = found.x
        yield measured(functions, lam, found, ends[0.0].x, ends[math.inf].x, scale)


def check_tolerance(tolerance: float) -> None:
    if not 0 < tolerance < 1:
        raise MethodError(f"tolerance must lie between 0 and 1, got {tolerance!r}.")


def gradient_size(functions: Functions, x: Tree) -> float:
    """√((1/n) Σ‖∇f_i(x_i)‖²), over which residuals are told."""
    return root_mean_square(functions, functions.gradient(x)[1]) or 1.0


def measured(functions: Functions, lam: float, found: Reached, local: Tree, far: Tree, scale: float) -> PathPoint:
    """The point of the path that was reached; ``local`` is x(0), ``far`` x(∞)."""
    return PathPoint(
        lam=lam,
        x=found.x,
        f=value_of(functions, found.x),
        psi=spread_of(functions, found.x),
        to_local=root_mean_square(functions, minus(found.x, local)),
        to_global=root_mean_square(functions, minus(found.x, far)),
        residual=found.residual / scale,
        iterations=found.iterations,
        communications=found.communications,
        method=found.method,
    )


def value_of(functions: Functions, x: Tree) -> float:
    """f(x) = (1/n) Σ f_i(x_i)."""
    values = functions.values(x) if isinstance(functions, WithValue) else functions.gradient(x)[0]
    return float(values.mean())


def spread_of(functions: Functions, x: Tree) -> float:
    """ψ(x) = (1/2n) Σ ‖x_i − x̄‖²."""
    return 0.5 * root_mean_square(functions, minus(x, functions.mean(x))) ** 2


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
