"""Accelerated proximal gradient methods: APGD1, APGD2, IAPGD. One average in every iteration.

F. Hanzely, S. Hanzely, S. Horváth, P. Richtárik, "Lower Bounds and Optimal Algorithms for Personalized Federated
Learning", 2020.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from fedsub.checks import check_positive
from fedsub.families.mixture import constants as theory
from fedsub.families.mixture.constants import Constants
from fedsub.families.mixture.functions import Functions, WithProx, add, root_mean_square
from fedsub.families.mixture.inner import Solved, local_prox
from fedsub.families.mixture.solver import Solver, State, Step, check_lam, new_state
from fedsub.trees import Tree


@dataclass(frozen=True, kw_only=True)
class APGD1(Solver):
    """A prox of every f_i and a gradient of λψ (accelerated FedProx); optimal in communication for λ ≤ L.

        x_i⁺ = argmin_z f_i(z) + (λ/2) ‖z − ȳ‖²,   y_i ← x_i⁺ + β(x_i⁺ − x_i),   β = (√(λ+μ)−√μ)/(√(λ+μ)+√μ)

    which is accelerated proximal gradient on the splitting h = λψ + (μ/2n)‖x‖², φ = f − (μ/2n)‖x‖².
    O(√(λ/μ) log 1/ε) communications. The prox is exact where the functions offer it, else solved locally to
    rounding (`local_prox`). λ = 0 gives the local minimisers, without communication.
    """

    lam: float
    name: ClassVar[str] = "apgd1"
    has_lam: ClassVar[bool] = True

    def check(self) -> None:
        check_lam(self.lam)

    def begin(self, functions: Functions, constants: Constants, start: Tree | None = None) -> State:
        mu = constants.strongly_convex(self.name.upper())
        state = new_state(functions, start, {"y": "x"}, L=constants.L, mu=mu)
        state.numbers["averaged"].fill_(1)
        return state

    def step(self, state: State, functions: Functions, number: int, seed: int) -> Step:
        mu, lam = state.number("mu"), self.lam
        communicates = int(lam > 0)
        solved = self.prox(state, functions, functions.mean(state.trees["y"]) if communicates else state.trees["y"])
        _extrapolate(state, solved.x, theory.apgd1_momentum(mu, lam))
        done = Step(solved.loss, communicates > 0, communicates, solved.gradients, functions.clients)
        return state.count(done)

    def prox(self, state: State, functions: Functions, centre: Tree) -> Solved:
        if isinstance(functions, WithProx):
            return Solved(functions.prox(centre, self.lam), math.nan, 0)
        return local_prox(functions, _constants(state), centre, self.lam, state.x)


@dataclass(frozen=True, kw_only=True)
class IAPGD(APGD1):
    """APGD1 with the prox solved inexactly, by local accelerated gradient with κ = (L+λ)/(μ+λ).

    In iteration k the norm of a client's gradient of its prox problem is brought below ``accuracy`` ·
    (1 − ½√(μ/(λ+μ)))^k times the root mean square of ‖∇f_i(x⁰)‖. The schedule is this library's choice: errors
    that fall at a linear rate slower than the method's own keep it linear.
    """

    accuracy: float = 0.1
    name: ClassVar[str] = "iapgd"

    def check(self) -> None:
        super().check()
        check_positive("accuracy", self.accuracy)

    def begin(self, functions: Functions, constants: Constants, start: Tree | None = None) -> State:
        state = super().begin(functions, constants, start)
        _, gradient = functions.gradient(state.x)
        state.numbers["gradients"] += int(functions.terms.sum())
        state.numbers["scale"] = torch.tensor(root_mean_square(functions, gradient), dtype=torch.float64)
        return state

    def prox(self, state: State, functions: Functions, centre: Tree) -> Solved:
        if self.lam == 0:  # there is no second iteration to correct the first
            return local_prox(functions, _constants(state), centre, 0.0, state.x)
        k = int(state.numbers["iterations"])
        tolerance = state.number("scale") * theory.iapgd_tolerance(state.number("mu"), self.lam, k, self.accuracy)
        return local_prox(functions, _constants(state), centre, self.lam, state.x, tolerance=tolerance)


@dataclass(frozen=True, kw_only=True)
class APGD2(Solver):
    """A gradient of f and a prox of λψ; optimal in communication for λ ≥ L.

        v_i = y_i − ∇f_i(y_i)/L,   x_i⁺ = (L v_i + λ v̄)/(L+λ),   y_i ← x_i⁺ + β(x_i⁺ − x_i),   β = (√L−√μ)/(√L+√μ)

    O(√(L/μ) log 1/ε) communications. λ = 0 is accelerated gradient by every client alone; λ = inf is accelerated
    gradient on Σ f_i, whose minimiser is x(∞).
    """

    lam: float
    name: ClassVar[str] = "apgd2"
    has_lam: ClassVar[bool] = True

    def check(self) -> None:
        check_lam(self.lam, infinite=True)

    def begin(self, functions: Functions, constants: Constants, start: Tree | None = None) -> State:
        mu = constants.strongly_convex("APGD2")
        state = new_state(functions, start, {"y": "x"}, L=constants.L, mu=mu)
        state.numbers["averaged"].fill_(1)
        return state

    def step(self, state: State, functions: Functions, number: int, seed: int) -> Step:
        L, y, communicates = state.number("L"), state.trees["y"], int(self.lam > 0)
        losses, gradient = functions.gradient(y)
        add(y, gradient, -1 / L)
        if communicates:
            mean, share = functions.mean(y), 1.0 if math.isinf(self.lam) else self.lam / (L + self.lam)
            for name, leaf in y.items():
                leaf.lerp_(mean[name], share)
        _extrapolate(state, y, theory.apgd2_momentum(L, state.number("mu")))
        return state.count(Step(float(np.mean(losses)), communicates > 0, communicates, int(functions.terms.sum())))


def _extrapolate(state: State, new: Tree, beta: float) -> None:
    """y ← x⁺ + β(x⁺ − x), then x ← x⁺; ``new`` may be y itself."""
    for name, x in state.x.items():
        ahead = torch.lerp(x, new[name], 1 + beta)
        x.copy_(new[name])
        state.trees["y"][name].copy_(ahead)


def _constants(state: State) -> Constants:
    return Constants(state.number("L"), state.number("mu"))
