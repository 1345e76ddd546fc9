"""AL2SGD+: accelerated, variance-reduced, with a coin.

F. Hanzely, S. Hanzely, S. Horváth, P. Richtárik, "Lower Bounds and Optimal Algorithms for Personalized Federated
Learning", 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsub import rng
from fedsub.errors import MethodError, nearest
from fedsub.families.mixture import constants as theory
from fedsub.families.mixture.constants import Constants
from fedsub.families.mixture.functions import Functions, add, assign
from fedsub.families.mixture.gd import pull_to_mean
from fedsub.families.mixture.solver import Solver, State, Step, check_coin, check_lam, draw_terms, new_state, toss
from fedsub.trees import Tree

REFRESHES = ("communication", "computation")


@dataclass(frozen=True, kw_only=True)
class AL2SGDPlus(Solver):
    """Loopless Katyusha over the sum of f and λψ, sampled by a coin. With the parameters of `constants.Katyusha`:

        u = θ1 z + θ2 w + (1−θ1−θ2) x
        ξ = 0   g_i = (1/n) [ (∇f_ij(u_i) − ∇f_ij(w_i))/(1−p) + ∇f_i(w_i) + λ(w_i − w̄) ],      j uniform
        ξ = 1   g_i = (1/n) [ λ(u_i − ū)/p − (1/p−1) λ(w_i − w̄) + ∇f_i(w_i) ]
        x⁺ = u − ηg,   z ← βz + (1−β)u − γg,   w ← x with probability ρ,   x ← x⁺

    p = λ/(λ+L̃) by default. ``rho`` "communication" is p(1−p), for O(√(min{L̃,λ}/μ) log 1/ε) communications;
    "computation" is 1/m, for O((m + √(m(L̃+λ)/μ)) log 1/ε) gradients of terms; a number is itself. Not both at once.

    Communications are counted as the theory does: one when an averaging iteration follows a local one (it carries
    the means of x and z) and one when w moves (it carries the means of w and ∇f(w)), p(1−p) + ρ in an iteration.
    """

    lam: float
    p: float | None = None
    rho: float | str = "communication"
    name: ClassVar[str] = "al2sgd+"
    has_lam: ClassVar[bool] = True

    def check(self) -> None:
        check_lam(self.lam)
        check_coin(self.p, self.lam)
        if isinstance(self.rho, str):
            if self.rho not in REFRESHES:
                raise MethodError(f"Unknown rho {self.rho!r}: {nearest(self.rho, REFRESHES)}")
        elif not 0 < self.rho <= 1:
            raise MethodError(f"rho must be above 0 and at most 1, got {self.rho!r}: how often w moves.")

    def begin(self, functions: Functions, constants: Constants, start: Tree | None = None) -> State:
        mu, L_terms, m = constants.strongly_convex("AL2SGD+"), constants.of_terms, int(functions.terms.max())
        p = theory.l2gd_coin(L_terms, self.lam) if self.p is None else self.p
        if isinstance(self.rho, str):
            # Without a coin nobody communicates, and only computation is left to be saved.
            by_coin = self.rho == "communication" and p > 0
            rho = theory.refresh_for_communication(p) if by_coin else theory.refresh_for_computation(m)
        else:
            rho = self.rho
        sizes = theory.katyusha(L_terms, mu, self.lam, p, rho, functions.clients)
        slots = {"z": "x", "w": "x", "pull": "zero", "drift": "zero"}
        state = new_state(functions, start, slots, p=p, rho=rho, **vars(sizes))
        self._refresh(state, functions)
        state.numbers["gradients"] += int(functions.terms.sum())
        return state

    def _refresh(self, state: State, functions: Functions) -> None:
        """pull = λ(w − w̄) and drift = ∇f(w) + pull, at the current w."""
        w, pull, drift = (state.trees[slot] for slot in ("w", "pull", "drift"))
        assign(drift, functions.gradient(w)[1])
        if self.lam:
            assign(pull, pull_to_mean(w, functions, self.lam))
            add(drift, pull, 1.0)

    def step(self, state: State, functions: Functions, number: int, seed: int) -> Step:
        p, after_training = state.number("p"), not int(state.numbers["averaged"])
        averaging = toss(p, number, seed)
        which = None if averaging else draw_terms(functions.terms, number, seed)
        moving = toss(state.number("rho"), number, seed, rng.REFRESH)
        losses = self.move(state, functions, which, moving)
        state.numbers["averaged"].fill_(averaging)
        communications = int(averaging and after_training) + int(moving and self.lam > 0)
        gradients = 2 * functions.clients * (not averaging) + int(functions.terms.sum()) * moving
        return state.count(Step(float(np.mean(losses)), averaging, communications, gradients, vectors=2))

    def move(self, state: State, functions: Functions, which: np.ndarray | None, moving: bool) -> np.ndarray:
        """One iteration: averaging (which None) or on a term of each client; then w moves or not."""
        x, z, w = (state.trees[slot] for slot in ("x", "z", "w"))
        theta1, theta2, eta, gamma, beta = (state.number(k) for k in ("theta1", "theta2", "eta", "gamma", "beta"))
        u = {name: (leaf * (1 - theta1 - theta2)).add_(z[name], alpha=theta1) for name, leaf in x.items()}
        add(u, w, theta2)
        losses, g = self.direction(state, functions, u, which)
        if moving:
            assign(w, x)
            self._refresh(state, functions)
        for name, leaf in u.items():
            z[name].lerp_(leaf, 1 - beta).sub_(g[name], alpha=gamma)
            x[name].copy_(leaf).sub_(g[name], alpha=eta)
        return losses

    def direction(
        self, state: State, functions: Functions, u: Tree, which: np.ndarray | None
    ) -> tuple[np.ndarray, Tree]:
        """The losses (nan when averaging) and g, whose mean over coin and terms is ∇F(u)."""
        p, n = state.number("p"), functions.clients
        if which is None:
            losses, g, old, scale = np.full(n, np.nan), pull_to_mean(u, functions, self.lam), state.trees["pull"], 1 / p
        else:
            losses, g = functions.gradient(u, which)
            old, scale = functions.gradient(state.trees["w"], which)[1], 1 / (1 - p)
        for name, leaf in g.items():
            leaf.sub_(old[name]).mul_(scale).add_(state.trees["drift"][name]).div_(n)
        return losses, g
