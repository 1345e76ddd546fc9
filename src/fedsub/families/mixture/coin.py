"""What the methods with a coin share: with probability p an iteration averages, else every client trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedsub.checks import check_positive
from fedsub.errors import MethodError
from fedsub.families.mixture import constants as theory
from fedsub.families.mixture.constants import Constants
from fedsub.families.mixture.functions import Functions
from fedsub.families.mixture.solver import (
    Solver,
    State,
    Step,
    check_coin,
    check_lam,
    draw_terms,
    new_state,
    toss,
)
from fedsub.trees import Tree


@dataclass(frozen=True, kw_only=True)
class Coin(Solver):
    """Iterations that are local (`train`) with probability 1−p and averaging (`average`) with probability p.

    ``p`` and ``alpha`` None come from theory. A communication happens only when an averaging iteration follows a
    local one: during a run of averaging iterations everybody can follow the mean.
    """

    lam: float
    p: float | None = None
    alpha: float | None = None
    has_lam: ClassVar[bool] = True
    stochastic: ClassVar[bool] = False  # a local iteration looks at one term, not at all of them
    slots: ClassVar[tuple[str, ...]] = ()  # what clients keep besides x, zero at first
    moving_mean: ClassVar[bool] = False  # averaging moves the mean too, by the mean of the stored gradients

    def check(self) -> None:
        check_lam(self.lam)
        check_coin(self.p, self.lam)
        if self.alpha is not None:  # None: from theory
            check_positive("alpha", self.alpha)

    def best_coin(self, functions: Functions, constants: Constants) -> float:
        raise NotImplementedError

    def best_step(self, p: float, functions: Functions, constants: Constants) -> float:
        raise NotImplementedError

    def begin(self, functions: Functions, constants: Constants, start: Tree | None = None) -> State:
        n = functions.clients
        p = self.best_coin(functions, constants) if self.p is None else self.p
        alpha = self.best_step(p, functions, constants) if self.alpha is None else self.alpha
        gamma = theory.pull_rate(alpha, self.lam, p, n)
        if gamma > 1:
            raise MethodError(
                f"An averaging step would go {gamma:.3g} times the way to the mean (gamma = alpha lam/(n p), n = {n}), "
                f"past it. Use alpha of at most n p/lam = {n * p / self.lam:.3g}, a larger p, or None for both."
            )
        return new_state(functions, start, dict.fromkeys(self.slots, "zero"), p=p, alpha=alpha)

    def step(self, state: State, functions: Functions, number: int, seed: int) -> Step:
        p, after_training = state.number("p"), not int(state.numbers["averaged"])
        if averaging := toss(p, number, seed):
            self.average(state, functions)
            # The mean moves along in a run of averaging iterations: clients then need its direction as well.
            vectors = 2 if self.moving_mean and toss(p, number + 1, seed) else 1
            done = Step(averaged=True, communications=int(after_training), vectors=vectors)
        else:
            which = draw_terms(functions.terms, number, seed) if self.stochastic else None
            losses = self.train(state, functions, which)
            done = Step(
                float(np.mean(losses)), gradients=int((functions.terms if which is None else which * 0 + 1).sum())
            )
        state.numbers["averaged"].fill_(averaging)
        return state.count(done)

    def train(self, state: State, functions: Functions, which: np.ndarray | None) -> np.ndarray:
        """A local iteration: on all terms (None) or on one of each client. Returns the losses, [n]."""
        raise NotImplementedError

    def average(self, state: State, functions: Functions) -> None:
        """An averaging iteration."""
        raise NotImplementedError
