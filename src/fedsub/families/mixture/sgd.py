"""Methods that take the gradient of one term of each client: L2SGD, L2SGD2, L2SGD+.

F. Hanzely and P. Richtárik, "Federated Learning of a Mixture of Global and Local Models", 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsub.families.mixture import constants as theory
from fedsub.families.mixture.coin import Coin
from fedsub.families.mixture.constants import Constants
from fedsub.families.mixture.functions import Functions, add, add_scaled, assign
from fedsub.families.mixture.gd import L2GD, L2GDPlus, pull_to_mean
from fedsub.families.mixture.solver import State
from fedsub.trees import Tree


@dataclass(frozen=True, kw_only=True)
class L2SGD(L2GD):
    """L2GD with ∇f_ij(x_i) for a term j drawn uniformly by every client, and L̃ for L in p and α. No variates."""

    name: ClassVar[str] = "l2sgd"
    stochastic: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class L2SGD2(L2GDPlus):
    """L2GD+ with ∇f_ij(x_i) for a drawn term j: variates for f and ψ but none for the local sum.

    Its noise at x(λ) is that of the terms of a client alone.
    """

    name: ClassVar[str] = "l2sgd2"
    stochastic: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class L2SGDPlus(Coin):
    """L2SGD with variates for everything: J_i[:, l] the last gradient of every term, Ψ_i the last λ(x_i − x̄).

        ξ = 0   j uniform, g = ∇f_ij(x_i);
                x_i ← x_i − (α/n) [ (g − J_i[:,j])/(1−p) + (1/m_i) Σ_l J_i[:,l] + Ψ_i ];    J_i[:,j] ← g
        ξ = 1   h = λ(x_i − x̄);
                x_i ← x_i − (α/n) [ h/p − (1/p−1) Ψ_i + (1/m_i) Σ_l J_i[:,l] ];             Ψ_i ← h

    The bracket is ∇f_i(x_i) + λ(x_i − x̄) on average. Rate 1 − αμ/n with α = min{n(1−p)/(4L̃+μm), np/(4λ+μ)} and
    p = (4λ+μ)/(4λ+4L̃+(m+1)μ), m the largest m_i; O(min{L̃+mμ, λ}/μ log 1/ε) communications.

    The sum of both variates, (1/m_i) Σ_l J_i[:,l] + Ψ_i, is kept as ``drift`` and follows their changes.
    """

    name: ClassVar[str] = "l2sgd+"
    stochastic: ClassVar[bool] = True
    slots: ClassVar[tuple[str, ...]] = ("psi", "drift")
    moving_mean: ClassVar[bool] = True

    def best_coin(self, functions: Functions, constants: Constants) -> float:
        return theory.variance_reduced_coin(constants.of_terms, constants.mu, self.lam, int(functions.terms.max()))

    def best_step(self, p: float, functions: Functions, constants: Constants) -> float:
        m, n = int(functions.terms.max()), functions.clients
        return theory.variance_reduced_step(constants.of_terms, constants.mu, self.lam, p, m, n)

    def begin(self, functions: Functions, constants: Constants, start: Tree | None = None) -> State:
        state = super().begin(functions, constants, start)
        state.memory = functions.memory()
        return state

    def train(self, state: State, functions: Functions, which: np.ndarray | None) -> np.ndarray:
        assert which is not None
        assert state.memory is not None
        p, rate = state.number("p"), state.number("alpha") / functions.clients
        losses, gradient = functions.gradient(state.x, which)
        change, drift = state.memory.swap(which, gradient), state.trees["drift"]
        add(state.x, change, -rate / (1 - p))
        add(state.x, drift, -rate)
        if (functions.terms == functions.terms[0]).all():
            add(drift, change, 1 / int(functions.terms[0]))
        else:
            if "shares" not in state.cache:
                state.cache["shares"] = functions.spread(1 / functions.terms)
            add_scaled(drift, change, state.cache["shares"])
        return losses

    def average(self, state: State, functions: Functions) -> None:
        p, rate = state.number("p"), state.number("alpha") / functions.clients
        pull, psi, drift = pull_to_mean(state.x, functions, self.lam), state.trees["psi"], state.trees["drift"]
        add(psi, pull, -1.0)  # Ψ − h, all that x and drift need
        add(state.x, psi, rate / p)
        add(state.x, drift, -rate)
        add(drift, psi, -1.0)
        assign(psi, pull)
