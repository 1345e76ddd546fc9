"""The mixture objective as a method that `fedsub.run` can train with.

    F(x) = (1/n) Σ f_i(x_i) + (λ/2n) Σ ‖x_i − x̄‖²

F. Hanzely and P. Richtárik, "Federated Learning of a Mixture of Global and Local Models", 2020.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedsub.checks import check_whole
from fedsub.errors import ConfigError, MethodError
from fedsub.families.mixture import SOLVERS
from fedsub.families.mixture.constants import Constants
from fedsub.families.mixture.curvature import estimate_constants
from fedsub.families.mixture.linear import objective_constants
from fedsub.families.mixture.modules import ModuleFunctions
from fedsub.families.mixture.solver import Solver
from fedsub.families.mixture.trainer import MixtureTrainer
from fedsub.method.engine import Ray
from fedsub.method.named.averaging import fedavg
from fedsub.method.training import Algorithm, Options, Prepared
from fedsub.objective.problem import Problem
from fedsub.round.engines.setup import choose
from fedsub.trees import Tree


@dataclass(frozen=True, kw_only=True)
class Mixture(Algorithm):
    """Personal models x_i, pulled to their mean by λ (``lam`` of the solver), for any module.

    A term f_ij of client i is a batch of ``batch_size`` samples (None: all its data are one term). L, μ and L̃ are
    those given here, else exact bounds for the built-in linear models, else estimated at the start.
    """

    solver: Solver
    batch_size: int | None = None
    L: float | None = None
    mu: float | None = None
    L_terms: float | None = None
    name: str = "mixture"
    pooled: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.solver, Solver):
            raise MethodError(
                f"solver must be one of {', '.join(SOLVERS)}, such as L2SGDPlus(lam=1); got {self.solver!r}."
            )
        if self.batch_size is not None:  # None: all local data
            check_whole("batch_size", self.batch_size, 1)

    def prepare(self, problem: Problem, params: Tree, options: Options) -> Prepared:
        functions, reason, fallback = self.functions(problem, params, options)
        constants, source = self.constants(functions)
        trainer = MixtureTrainer(functions, self.solver, constants, params, options.seed, options.scratch)
        found = f"L = {constants.L:.4g}, mu = {constants.mu:.4g}, of a term {constants.of_terms:.4g} ({source})"
        return Prepared(trainer, f"{reason}; {found}", functions.plan.columns, fallback)

    def functions(self, problem: Problem, params: Tree, options: Options) -> tuple[ModuleFunctions, str, bool]:
        """The clients' functions, how they are computed, and whether clients could not be batched."""
        if options.lost:
            raise ConfigError("lost= loses clients of a round, and the mixture's methods need all; leave it out.")
        options.refuse(self.name, "chunk", "workers", "compile", "on_bad_update", "shards")
        probe = fedavg(batch_size=self.batch_size, local_steps=1, clients_per_round=None)
        if Ray.of(options.engine) is not None:
            options.refuse(self.name, "engine")
        engine = "serial" if options.engine == "serial" else "batched"
        choice = choose(problem, probe, params, engine=engine, seed=options.seed)
        plan = choice.plan
        if plan.dropout or plan.random:
            raise MethodError("The mixture's methods need functions that do not change by chance; remove the dropout.")
        batched = engine == "batched" and not choice.fallback
        return (
            ModuleFunctions(problem, params, plan, batch_size=self.batch_size, batched=batched),
            choice.reason,
            choice.fallback,
        )

    def constants(self, functions: ModuleFunctions) -> tuple[Constants, str]:
        """L, μ and L̃, and where they come from."""
        objective = functions.problem.objective
        known = objective_constants(objective, functions.problem.clients, functions.batch)
        if self.L is not None and self.mu is not None and (self.L_terms is not None or functions.terms.max() == 1):
            return Constants(self.L, self.mu, self.L_terms), "as given"
        if known is not None:
            found, source = known.together, "bounds of a linear model"
        else:
            found, source = estimate_constants(functions, mu=functions.l2 or None), "estimated at the start"
        given = {k: v for k in ("L", "mu", "L_terms") if (v := getattr(self, k)) is not None}
        if "L" in given and "L_terms" not in given and found.L_terms is not None:
            given["L_terms"] = max(given["L"], found.L_terms)
        return replace(found, **given), source + (f", {', '.join(given)} as given" if given else "")

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"kind": self.solver.name}

    def check_population(self, sizes: np.ndarray) -> None:
        if len(sizes) < 2:
            raise MethodError("A mixture of global and local models needs at least two clients.")
