"""Ways to x(λ) for one λ after the other: as exactly as asked, or by a number of iterations of any algorithm."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np

from fedsub.errors import MethodError, NoUsableClient
from fedsub.families.mixture.constants import Constants
from fedsub.families.mixture.functions import Functions, WithProx, add, assign, copy, root_mean_square
from fedsub.families.mixture.inner import local_prox
from fedsub.families.mixture.proximal import APGD1, APGD2
from fedsub.families.mixture.solver import Solver, State, Step, draw_terms, new_state
from fedsub.trees import Tree

Watch = Callable[[float, int, float], None]  # lam, iteration, optimality residual (nan: not looked at)


@dataclass(frozen=True)
class Reached:
    """Where it ended and what that took. ``residual`` is of the optimality condition."""

    x: Tree
    residual: float
    iterations: int
    communications: int
    method: str


class Reach(Protocol):
    """To x(λ), from ``start``, usually x of a neighbouring λ, if it is ``warm``; else from x⁰."""

    warm: ClassVar[bool]

    def __call__(
        self, functions: Functions, lam: float, constants: Constants, start: Tree, watch: Watch | None = None
    ) -> Reached: ...


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
class Closely:
    """To an optimality residual of ``goal``, or ``most`` iterations: APGD1 where λ ≤ L, APGD2 where λ > L.

    These are the better ones in communications. λ = 0 are the local minimisers.
    """

    goal: float
    most: int = 10_000
    warm: ClassVar[bool] = True

    def __call__(
        self, functions: Functions, lam: float, constants: Constants, start: Tree, watch: Watch | None = None
    ) -> Reached:
        if lam == 0:
            exact = functions.prox(start, 0.0) if isinstance(functions, WithProx) else None
            x = local_prox(functions, constants, start, 0.0, start, tolerance=self.goal).x if exact is None else exact
            return Reached(x, optimality_residual(functions, x, 0.0), 1, 0, APGD1.name)
        solver = APGD1(lam=lam) if lam <= constants.L else APGD2(lam=lam)
        state = solver.begin(functions, constants, start)
        if math.isinf(lam):
            mean = functions.mean(state.x)
            state.trees = {"x": mean, "y": copy(mean)}
        residual, number = optimality_residual(functions, state.x, lam), 0
        while residual > self.goal and number < self.most:
            number += 1
            solver.step(state, functions, number, 0)
            residual = optimality_residual(functions, state.x, lam)
            if watch is not None:
                watch(lam, number, residual)
        return Reached(state.x, residual, number, int(state.numbers["communications"]), solver.name)


@dataclass(frozen=True)
class Iterations:
    """A fixed number of iterations of an algorithm with a λ, for functions that need not be convex.

    Every λ has the same coins and draws, and the same start: what is compared are equal budgets, as `fedsub.run`
    would train them. λ = ∞ is `Together`, since these algorithms have no such λ.
    """

    solver: Solver
    rounds: int
    seed: int = 0
    warm: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.solver.has_lam:
            raise MethodError(f"{self.solver.name} has no lam, so it has no path; use l2sgd+, for example.")
        if self.rounds < 1:
            raise MethodError(f"rounds must be at least 1, got {self.rounds!r}.")

    def __call__(
        self, functions: Functions, lam: float, constants: Constants, start: Tree, watch: Watch | None = None
    ) -> Reached:
        stochastic = bool(functions.terms.max() > 1)
        solver: Solver = Together(stochastic=stochastic) if math.isinf(lam) else replace(self.solver, lam=lam)  # type: ignore[call-arg]
        state = solver.begin(functions, constants)
        for number in range(1, self.rounds + 1):
            solver.step(state, functions, number, self.seed)
            if watch is not None:
                watch(lam, number, math.nan)
        if not all(np.isfinite(functions.dot(state.x, state.x))):
            raise NoUsableClient(
                f"lam = {lam:g}: the models hold NaN or infinity after {self.rounds} iterations of {solver.name}. The "
                f"step size is too large: L = {constants.L:.4g} was assumed; give a larger L, or a smaller alpha."
            )
        residual = optimality_residual(functions, state.x, lam)
        return Reached(state.x, residual, self.rounds, int(state.numbers["communications"]), solver.name)


@dataclass(frozen=True, kw_only=True)
class Together(Solver):
    """λ = ∞ by gradient steps of one model for all: x ← mean of x − α∇f_i(x), on all data or a term of each client.

    α = 1/L, and 1/(2(L + L̃/n)) on terms, whose noise the mean over n clients divides by n. Communicates in every
    iteration.
    """

    stochastic: bool = False
    name: ClassVar[str] = "together"

    def begin(self, functions: Functions, constants: Constants, start: Tree | None = None) -> State:
        noisy = 1 / (2 * (constants.L + constants.of_terms / functions.clients))
        state = new_state(functions, start, {}, alpha=noisy if self.stochastic else 1 / constants.L)
        assign(state.x, functions.mean(state.x))
        return state

    def step(self, state: State, functions: Functions, number: int, seed: int) -> Step:
        which = draw_terms(functions.terms, number, seed) if self.stochastic else None
        losses, gradient = functions.gradient(state.x, which)
        add(state.x, functions.mean(gradient), -state.number("alpha"))
        terms = functions.clients if self.stochastic else int(functions.terms.sum())
        return state.count(Step(float(np.mean(losses)), True, 1, terms))
