"""Methods that take full local gradients: LGD, L2GD, L2GD+.

F. Hanzely and P. Richtárik, "Federated Learning of a Mixture of Global and Local Models", 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsub.checks import check_positive
from fedsub.errors import MethodError
from fedsub.families.mixture import constants as theory
from fedsub.families.mixture.coin import Coin
from fedsub.families.mixture.constants import Constants
from fedsub.families.mixture.functions import Functions, add, assign
from fedsub.families.mixture.solver import Solver, State, Step, new_state
from fedsub.trees import Tree


@dataclass(frozen=True, kw_only=True)
class LGD(Solver):
    """Local gradient descent, the reference: T = ``local_steps`` times x_i ← x_i − α∇f_i(x_i), then x_i ← x̄.

    An iteration is one of these T + 1. For T = 1 it is gradient descent on Σ f_i and finds x(∞); for T > 1 its
    fixed point is another one. α is 1/L if not given.
    """

    local_steps: int = 1
    alpha: float | None = None
    name: ClassVar[str] = "lgd"

    def check(self) -> None:
        if self.local_steps < 1:
            raise MethodError(f"local_steps must be at least 1, got {self.local_steps!r}.")
        if self.alpha is not None:  # None: from theory
            check_positive("alpha", self.alpha)

    def begin(self, functions: Functions, constants: Constants, start: Tree | None = None) -> State:
        return new_state(functions, start, {}, alpha=1 / constants.L if self.alpha is None else self.alpha)

    def step(self, state: State, functions: Functions, number: int, seed: int) -> Step:
        averaging = int(state.numbers["iterations"]) % (self.local_steps + 1) == self.local_steps
        state.numbers["averaged"].fill_(averaging)
        if averaging:
            assign(state.x, functions.mean(state.x))
            return state.count(Step(averaged=True, communications=1))
        losses, gradient = functions.gradient(state.x)
        add(state.x, gradient, -state.number("alpha"))
        return state.count(Step(float(np.mean(losses)), gradients=int(functions.terms.sum())))


@dataclass(frozen=True, kw_only=True)
class L2GD(Coin):
    """Loopless local gradient descent. With a coin ξ common to all clients, P(ξ = 1) = p:

        ξ = 0   x_i ← x_i − β∇f_i(x_i),        β = α/(n(1−p))
        ξ = 1   x_i ← (1−γ) x_i + γ x̄,         γ = αλ/(np)

    With α ≤ 1/(2𝓛), 𝓛 = (1/n) max{L/(1−p), λ/p}, E‖x^k − x(λ)‖² ≤ (1−αμ/n)^k ‖x⁰ − x(λ)‖² + 2nασ²/μ. By default
    p = λ/(L+λ) and α = 1/(2𝓛).
    """

    name: ClassVar[str] = "l2gd"

    def _smoothness(self, constants: Constants) -> float:
        return constants.of_terms if self.stochastic else constants.L

    def best_coin(self, functions: Functions, constants: Constants) -> float:
        return theory.l2gd_coin(self._smoothness(constants), self.lam)

    def best_step(self, p: float, functions: Functions, constants: Constants) -> float:
        return theory.l2gd_step(self._smoothness(constants), self.lam, p, functions.clients)

    def train(self, state: State, functions: Functions, which: np.ndarray | None) -> np.ndarray:
        losses, gradient = functions.gradient(state.x, which)
        add(state.x, gradient, -theory.local_rate(state.number("alpha"), state.number("p"), functions.clients))
        return losses

    def average(self, state: State, functions: Functions) -> None:
        mean = functions.mean(state.x)
        share = theory.pull_rate(state.number("alpha"), self.lam, state.number("p"), functions.clients)
        for name, leaf in state.x.items():
            leaf.lerp_(mean[name], share)


@dataclass(frozen=True, kw_only=True)
class L2GDPlus(Coin):
    """L2GD with control variates for both terms of F: J_i, the last ∇f_i used, and Ψ_i, the last λ(x_i − x̄).

        ξ = 0   g = ∇f_i(x_i);   x_i ← x_i − (α/n) [ (g − J_i)/(1−p) + J_i + Ψ_i ];    J_i ← g
        ξ = 1   h = λ(x_i − x̄);  x_i ← x_i − (α/n) [ h/p − (1/p−1) Ψ_i + J_i ];        Ψ_i ← h

    The variates remove the noise at x(λ), so the error falls to 0 at the rate 1 − αμ/n with
    α = min{n(1−p)/(4L+μ), np/(4λ+μ)}. The default p is the one that makes both equal, the case m = 1 of L2SGD+'s:
    for λ ≥ μ close to λ/(L+λ), for smaller λ it needs as many communications and far fewer iterations.
    """

    name: ClassVar[str] = "l2gd+"
    slots: ClassVar[tuple[str, ...]] = ("j", "psi")
    moving_mean: ClassVar[bool] = True

    def _smoothness(self, constants: Constants) -> float:
        return constants.of_terms if self.stochastic else constants.L

    def best_coin(self, functions: Functions, constants: Constants) -> float:
        return theory.variance_reduced_coin(self._smoothness(constants), constants.mu, self.lam, 1)

    def best_step(self, p: float, functions: Functions, constants: Constants) -> float:
        smoothness = self._smoothness(constants)
        return theory.variance_reduced_step(smoothness, constants.mu, self.lam, p, 1, functions.clients)

    def train(self, state: State, functions: Functions, which: np.ndarray | None) -> np.ndarray:
        p, rate = state.number("p"), state.number("alpha") / functions.clients
        losses, gradient = functions.gradient(state.x, which)
        add(state.x, gradient, -rate / (1 - p))
        add(state.x, state.trees["j"], rate * p / (1 - p))
        add(state.x, state.trees["psi"], -rate)
        assign(state.trees["j"], gradient)
        return losses

    def average(self, state: State, functions: Functions) -> None:
        p, rate = state.number("p"), state.number("alpha") / functions.clients
        pull = pull_to_mean(state.x, functions, self.lam)
        add(state.x, pull, -rate / p)
        add(state.x, state.trees["psi"], rate * (1 / p - 1))
        add(state.x, state.trees["j"], -rate)
        assign(state.trees["psi"], pull)


def pull_to_mean(x: Tree, functions: Functions, lam: float) -> Tree:
    """λ(x_i − x̄)."""
    mean = functions.mean(x)
    for name, leaf in mean.items():
        leaf.sub_(x[name]).mul_(-lam)
    return mean
