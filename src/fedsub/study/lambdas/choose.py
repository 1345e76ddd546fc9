"""λ chosen on held-out data: x(λ) from local to global for any module, measured on validation samples.

With a directory every point is kept as soon as it is there, so that a killed process goes on where it stopped:

config.json      what all numbers depend on, besides which λ are looked at
metrics.jsonl    one line for each λ, in the order of computing
checkpoints/     after every point: x(0), x(∞), the last x(λ), from which the next starts, and the best one
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fedsub.data.clients import Clients
from fedsub.errors import ConfigError, MethodError, nearest
from fedsub.families.mixture.constants import Constants
from fedsub.families.mixture.curvature import curvature
from fedsub.families.mixture.functions import assign, minus, root_mean_square
from fedsub.families.mixture.method import Mixture
from fedsub.families.mixture.modules import ModuleFunctions
from fedsub.families.mixture.path import check_tolerance, gradient_size, lambda_grid, spread_of, value_of
from fedsub.families.mixture.proximal import APGD1
from fedsub.families.mixture.reach import Closely, Iterations, Reach
from fedsub.families.mixture.solver import check_lam
from fedsub.method.training import Options
from fedsub.objective.losses import measured as measured_by
from fedsub.objective.objective import Objective
from fedsub.objective.problem import Problem
from fedsub.round.evaluate import Evaluate, Evaluator
from fedsub.round.memory import ClientState
from fedsub.round.predict import PersonalModel
from fedsub.round.quiet import one_thread
from fedsub.running.result import better
from fedsub.running.run import run_config
from fedsub.study.lambdas.store import Store
from fedsub.trees import Tree


class Watcher:
    """Follows a path; every hook does nothing."""

    def on_start(self, lams: Sequence[float], known: Sequence[float], sentence: str) -> None: ...

    def on_iteration(self, lam: float, iteration: int, residual: float) -> None: ...

    def on_point(self, point: dict[str, Any]) -> None: ...


@dataclass
class LambdaPath:
    """The path and the λ that was chosen on it.

    ``points`` have, by λ: ``f``, ``psi``, ``to_local`` and ``to_global`` (distances to x(0) and x(∞)), ``residual``
    (of the optimality condition, over its size at the start), ``iterations``, ``communications``, ``method`` and
    the metrics of the validation samples, ``validation.ce`` …. ``test`` has those of the test samples, looked at
    after the choice, for the chosen λ and for both ends.
    """

    points: list[dict[str, Any]]
    metric: str  # by which λ was chosen
    chosen: float
    constants: Constants
    reason: str  # how gradients are computed and where the constants come from
    tolerance: float | None = None  # None: a number of iterations
    test: dict[str, dict[str, float]] = field(default_factory=dict)
    path: Path | None = None

    @property
    def best(self) -> dict[str, Any]:
        """The point of the chosen λ."""
        return next(p for p in self.points if p["lam"] == self.chosen)

    @property
    def unfinished(self) -> list[float]:
        """λ at which the tolerance was not reached."""
        return [p["lam"] for p in self.points if self.tolerance is not None and p["residual"] > self.tolerance]

    def summary(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {
            "chosen": self.chosen,
            "metric": self.metric,
            "test": self.test,
            "L": self.constants.L,
            "mu": self.constants.mu,
            "L_terms": self.constants.of_terms,
            "reason": self.reason,
            "tolerance": self.tolerance,
            "points": self.points,
        }

    def save(self, folder: str | os.PathLike[str]) -> None:
        """path.csv, path.json and path.png."""
        from fedsub.study.lambdas.plot import write

        write(self, Path(folder))


def choose_lambda(
    objective: Objective,
    train: Clients,
    validation: Clients,
    *,
    test: Clients | None = None,
    lams: int | Sequence[float] = 13,
    metric: str | None = None,
    method: Mixture | None = None,
    rounds: int | None = None,
    tolerance: float | None = None,
    most: int = 10_000,
    L: float | None = None,
    mu: float | None = None,
    engine: str = "auto",
    seed: int = 0,
    samples: int | None = 200_000,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    watch: Watcher | None = None,
) -> LambdaPath:
    """Trace x(λ) on ``train``, from purely local to purely global models, and choose λ on ``validation``.

    ``lams`` are the values, or how many there shall be between L/1000 and 10 L; 0 and inf are always among them.
    Without ``method`` each starts from the one before and is computed until its optimality residual, over its size
    at the start, is at most ``tolerance`` (default 1e-4, in float64 1e-6) or ``most`` iterations are done, which
    needs convex functions. With a method, such as `fedsub.methods.l2sgd_plus()`, every λ has ``rounds`` iterations
    of it from the beginning, and any module will do.

    ``metric`` is a loss or another metric of evaluations, such as "auc"; by default the loss. Test samples are looked
    at once, when λ is chosen. With ``out`` points are kept, and ``resume=True`` computes only those that are missing.
    """
    if (method is None) != (rounds is None):
        raise ConfigError("method and rounds belong together: so many iterations of that method for each λ.")
    if method is not None and (not isinstance(method, Mixture) or not method.solver.has_lam):
        raise ConfigError(
            f"method must be one of the mixture's with a lam, such as methods.l2sgd_plus(); got {method!r}."
        )
    known = measured_by(objective.loss)
    metric = known[0] if metric is None else metric
    if metric not in known:
        raise ConfigError(f"λ cannot be chosen by {metric!r}; {nearest(metric, known)}")
    plan = Evaluate(samples=samples)
    with one_thread():
        tracer = _Tracer(objective, train, method, rounds, tolerance, most, L, mu, engine, seed)
        grid = tracer.grid(lams)
        found = tracer.trace(grid, {"validation": validation}, plan, metric, out, resume, watch or Watcher())
        if test is not None:
            found.test = tracer.tested(found, test, plan)
    if out is not None:
        found.path = Path(out)
        tracer.finish(found)
    return found


class _Tracer:
    def __init__(
        self,
        objective: Objective,
        train: Clients,
        method: Mixture | None,
        rounds: int | None,
        tolerance: float | None,
        most: int,
        L: float | None,
        mu: float | None,
        engine: str,
        seed: int,
    ):
        self.train, self.rounds, self.seed, self.engine, self.most = train, rounds, seed, engine, most
        self.method = Mixture(solver=APGD1(lam=0.0), name="path") if method is None else method
        given = {k: v for k, v in (("L", L), ("mu", mu)) if v is not None}
        self.method = replace(self.method, **given)
        self.method.check_population(train.sizes)
        self.problem = Problem.bind(objective, train)
        self.params = self.problem.params(torch.device("cpu"))
        options = Options(engine, None, 1, False, seed, 0.0, "skip", None)
        self.functions, why, _ = self.method.functions(self.problem, self.params, options)
        self.constants, source = self.method.constants(self.functions)
        self.reason = (
            f"{why}; L = {self.constants.L:.4g}, mu = {self.constants.mu:.4g}"
            + (f", of a term {self.constants.of_terms:.4g}" if self.functions.terms.max() > 1 else "")
            + f" ({source})"
        )
        self.tolerance: float | None = None
        if rounds is None:
            precise = next(iter(self.params.values())).dtype == torch.float64
            self.tolerance = (1e-6 if precise else 1e-4) if tolerance is None else tolerance
            check_tolerance(self.tolerance)
            _check_convex(self.functions, self.constants, mu, estimated="estimated" in source)
        self.start = self.functions.start()
        self.scale = gradient_size(self.functions, self.start)
        self.reach: Reach = (
            Iterations(self.method.solver, rounds, seed)
            if rounds is not None
            else Closely((self.tolerance or 1.0) * self.scale, most)
        )
        self.kept: dict[float, Tree] = {}

    def grid(self, lams: int | Sequence[float]) -> list[float]:
        if isinstance(lams, int):
            if not 1 <= lams <= 1000:
                raise ConfigError(f"lams is {lams}, expected how many values of λ, 1 to 1000, or the values.")
            return list(lambda_grid(self.constants, lams))
        for lam in lams:
            check_lam(lam, infinite=True)
        return sorted({0.0, math.inf, *map(float, lams)})

    def config(self, splits: dict[str, Clients], plan: Evaluate) -> dict[str, Any]:
        """All that a point depends on."""
        made = run_config(
            self.method, self.problem.objective, self.train, rounds=self.rounds or self.most, splits=splits,
            seed=self.seed, engine=self.engine, evaluate=plan,
        )  # fmt: skip
        return {"lambda_path": {"tolerance": self.tolerance}, **made}

    def trace(
        self,
        grid: list[float],
        splits: dict[str, Clients],
        plan: Evaluate,
        metric: str,
        out: str | os.PathLike[str] | None,
        resume: bool,
        watch: Watcher,
    ) -> LambdaPath:
        evaluator = Evaluator(self.problem, splits, plan, self.functions.plan.columns, self.train)
        self.state = ClientState(self.problem, self.params, ["x"])
        self.shared = {name: leaf.clone() for name, leaf in self.params.items()}
        self.store = None if out is None else Store(out, self.config(splits, plan), resume)
        key, points = f"validation.{metric}", {}
        if self.store is not None:
            points, self.kept = self.store.points, self.store.kept
        try:
            watch.on_start(grid, sorted(points), self.reason)
            # Both ends first: distances are to them. Then upwards, each from its neighbour below.
            for lam in [0.0, math.inf, *grid]:
                if lam not in points or (lam in (0.0, math.inf) and lam not in self.kept):
                    self._add(lam, points, key, evaluator, watch)
            while (best := _best(points, key)) not in self.kept:  # chosen by another metric before, or lost
                self._add(best, points, key, evaluator, watch)
        except BaseException:
            self.close()
            raise
        points[0.0]["to_global"] = points[math.inf]["to_local"]
        return LambdaPath(
            [points[lam] for lam in sorted(points)], metric, best, self.constants, self.reason, self.tolerance
        )

    def _add(self, lam: float, points: dict, key: str, evaluator: Evaluator, watch: Watcher) -> None:
        points[lam] = self._point(lam, evaluator, watch)
        needed = _needed(points, key)
        self.kept = {k: v for k, v in self.kept.items() if k in needed}
        if self.store is not None:
            self.store.add(points[lam], self.kept)
        watch.on_point(points[lam])

    def _point(self, lam: float, evaluator: Evaluator, watch: Watcher) -> dict[str, Any]:
        below = [known for known in self.kept if known < lam]
        start = self.kept[max(below)] if below and not math.isinf(lam) else self.start
        found = self.reach(self.functions, lam, self.constants, start, watch.on_iteration)
        self.kept[lam] = found.x
        ends = self.kept.get(0.0), self.kept.get(math.inf)
        return {
            "lam": lam,
            "f": value_of(self.functions, found.x),
            "psi": spread_of(self.functions, found.x),
            "to_local": root_mean_square(self.functions, minus(found.x, ends[0])) if ends[0] else math.nan,
            "to_global": root_mean_square(self.functions, minus(found.x, ends[1])) if ends[1] else math.nan,
            "residual": found.residual / self.scale,
            "iterations": found.iterations,
            "communications": found.communications,
            "method": found.method,
            **evaluator(self._model(found.x)),
        }

    def _model(self, x: Tree) -> PersonalModel:
        self.functions.shared(x, self.shared)
        assign({name: self.state.tensors[f"x/{name}"] for name in x}, x)
        return PersonalModel(self.shared, self.state, "x", self.problem.names)

    def tested(self, found: LambdaPath, test: Clients, plan: Evaluate) -> dict[str, dict[str, float]]:
        evaluator = Evaluator(self.problem, {"test": test}, plan, self.functions.plan.columns, self.train)
        out = {}
        for name, lam in (("chosen", found.chosen), ("local", 0.0), ("global", math.inf)):
            measures = evaluator(self._model(self.kept[lam]))
            out[name] = {"lam": lam} | {k.removeprefix("test."): v for k, v in measures.items()}
        return out

    def finish(self, found: LambdaPath) -> None:
        assert self.store is not None
        assert found.path is not None
        try:
            found.save(found.path)
            self.store.folder.finish(found.summary())
        finally:
            self.close()

    def close(self) -> None:
        if self.store is not None:
            self.store.folder.close()


def _check_convex(functions: ModuleFunctions, constants: Constants, mu: float | None, *, estimated: bool) -> None:
    todo = (
        "Make it strongly convex with l2 (--l2 0.001), or set mu to a small positive number (--mu 0.001), or take a "
        "fixed number of iterations of a method (--method l2sgd+ --rounds 2000), which works for any module."
    )
    if constants.mu == 0:
        raise MethodError(f"x(λ) to a tolerance needs strongly convex functions, and mu is 0. {todo}")
    if estimated and mu is None:
        lowest = float(curvature(functions).smallest.min()) - functions.l2
        if lowest < -0.01 * constants.L:
            raise MethodError(
                f"The loss is not convex: at the start a client's has the curvature {lowest:.3g} (L = "
                f"{constants.L:.3g}). Take a fixed number of iterations of a method for each λ: method=…, rounds=… "
                "(--method l2sgd+ --rounds 2000)."
            )


def _best(points: dict[float, dict[str, Any]], key: str) -> float:
    """The best λ; of equal ones the smallest, NaN never."""
    sign = -1 if better(key) == "higher" else 1
    return min(
        sorted(points), key=lambda lam: sign * points[lam][key] if points[lam][key] == points[lam][key] else math.inf
    )


def _needed(points: dict[float, dict[str, Any]], key: str) -> set[float]:
    """λ whose x is still of use: both ends, the last one, the best one."""
    last = [lam for lam in points if math.isfinite(lam)][-1:]
    return {0.0, math.inf, *last, _best(points, key)} & points.keys() if points else set()
