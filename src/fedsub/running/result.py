"""What a run gives back, and what it means to reach a target."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from fedsub.errors import ConfigError, RunError
from fedsub.objective.numbering import stamped
from fedsub.objective.objective import Objective
from fedsub.objective.problem import Problem
from fedsub.round.engines.base import template
from fedsub.round.predict import PersonalModel
from fedsub.trees import Tree

_OPS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
HIGHER_IS_BETTER = ("accuracy", "auc", "hr", "ndcg", "mrr", "recall", "precision")


@dataclass(frozen=True)
class Target:
    """A condition on a metric, written like "train.ce<=0.65" or "test.auc>=0.7"."""

    metric: str
    op: str
    value: float

    @classmethod
    def parse(cls, text: str | Target) -> Target:
        if isinstance(text, Target):
            return text
        if not isinstance(text, str):
            raise ConfigError(f"A target is text like train.ce<=0.65, or a Target; got {text!r}.")
        match = re.fullmatch(r"\s*([\w.@]+)\s*(<=|>=|<|>)\s*([-+.\deE]+)\s*", text)
        try:
            if match:
                return cls(match[1], match[2], float(match[3]))
        except ValueError:
            pass
        raise ConfigError(f"Cannot read the target {text!r}; write it like train.ce<=0.65 or test.auc>=0.7.")

    def reached(self, record: dict[str, Any]) -> bool:
        """Whether it holds in a record; what holds before training (round 0) was not reached by it."""
        value = record.get(self.metric)
        if record.get("round") == 0:
            return False
        return isinstance(value, int | float) and not math.isnan(value) and _OPS[self.op](value, self.value)

    def __str__(self) -> str:
        return f"{self.metric}{self.op}{self.value:g}"


def better(metric: str, declared: Mapping[str, str] | None = None) -> str:
    """Whether "higher" or "lower" values of a metric are better; metrics of your own say so (`Result.directions`)."""
    kind = metric.rsplit(".", 1)[-1]
    return (declared or {}).get(kind) or ("higher" if kind.partition("@")[0] in HIGHER_IS_BETTER else "lower")


WORSE = 0.01  # how far above its start, as a share, the training loss may end: a round of a few clients is noisy


def divergence(history: Sequence[Mapping[str, Any]]) -> str:
    """Why a run counts as diverged, in a sentence; "" if it does not.

    It did if a loss ended at no finite number, or the training loss more than 1 % above that of the untrained model
    (round 0): then its best round is one of a model that went wrong.
    """
    for metric in (name for name in _names(history) if name.endswith((".ce", ".loss"))):
        measured = [r[metric] for r in history if isinstance(r.get(metric), int | float)]
        first, last = measured[0], measured[-1]
        risen = metric.startswith("train.") and last > first + WORSE * abs(first)
        if len(measured) < 2 or (math.isfinite(last) and not risen):
            continue
        end = f"{last:.4g}" if math.isfinite(last) else "infinity" if last > 0 else "a value that is no number"
        above = f", above {first:.4g} before training" if math.isfinite(first) else ""
        return f"diverged: {metric} ended at {end}{above}; lower lr, or scale plain value columns"
    return ""


def _names(history: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every name in some record, in order. Most records have the same names: each set of them is looked at once."""
    return list(dict.fromkeys(name for names in dict.fromkeys(map(tuple, history)) for name in names))


@dataclass
class Result:
    """The history of a run, its final evaluation and the trained parameters.

    ``history`` has one record a round: ``round``, ``loss`` (mean local training loss), ``down`` and ``up``
    (bytes), ``clients``, ``lost``, ``rejected``, and the metrics (``train.ce`` …) where it was evaluated.
    """

    method: str
    seed: int
    history: list[dict[str, Any]] = field(repr=False)
    final: dict[str, Any] = field(repr=False)
    seconds: float
    engine: str
    events: list[str] = field(default_factory=list, repr=False)
    path: Path | None = None
    peak_bytes: int = 0
    params: Tree = field(default_factory=dict, repr=False)  # of lazy tables what gives rows: take(rows)
    problem: Problem | None = field(default=None, repr=False)
    directions: Mapping[str, str] = field(default_factory=dict, repr=False)  # of the user's own metrics and rankings
    privacy: dict[str, Any] = field(default_factory=dict, repr=False)  # what was spent: epsilon, delta, on what
    objective: Callable[[], Objective] | None = field(default=None, repr=False)  # makes it, where it is known
    personal: PersonalModel | None = field(default=None, repr=False)  # what each client has of its own, if it has

    def series(self, metric: str) -> tuple[list[int], list[float]]:
        """(rounds, values) of a metric, where it was measured."""
        pairs = [(r["round"], r[metric]) for r in self.history if isinstance(r.get(metric), int | float)]
        return [p[0] for p in pairs], [p[1] for p in pairs]

    def metrics(self) -> list[str]:
        """The names of the evaluated metrics, in order."""
        return [name for name in _names(self.history) if "." in name]

    def first_round(self, target: str | Target) -> int | None:
        """The first evaluated round at which the target holds, or None."""
        goal = Target.parse(target)
        return next((r["round"] for r in self.history if goal.reached(r)), None)

    def best(self, metric: str) -> float:
        """The best value of a metric over the evaluated rounds; the untrained model (round 0) does not count.

        nan if there is none.
        """
        values = [v for number, v in zip(*self.series(metric), strict=True) if number > 0 and not math.isnan(v)]
        if not values:
            return float("nan")
        return max(values) if self.better(metric) == "higher" else min(values)

    def last(self, metric: str) -> float:
        """The value of a metric in its last evaluation; nan if it was never measured after training began."""
        rounds, values = self.series(metric)
        return float(values[-1]) if rounds and rounds[-1] > 0 else float("nan")

    def best_round(self, metric: str) -> int | None:
        """The first round with the `best` value of a metric, or None."""
        best = self.best(metric)
        return next((n for n, v in zip(*self.series(metric), strict=True) if n > 0 and v == best), None)

    def chosen(self, metric: str, by: str) -> float:
        """The value of a metric in the best round by another one, such as "test.auc" by "validation.auc"; or nan.

        One model of the run, chosen without a look at what it is judged by; `best` is the best of many.
        """
        number = self.best_round(by)
        return next((float(v) for n, v in zip(*self.series(metric), strict=True) if n == number), float("nan"))

    def better(self, metric: str) -> str:
        """Whether "higher" or "lower" values of a metric are better."""
        return better(metric, self.directions)

    @property
    def diverged(self) -> str:
        """Why the run counts as diverged, in a sentence (`divergence`); "" if it does not."""
        return divergence(self.history)

    def bytes_per_client(self) -> float:
        """Mean bytes, down and up together, that one participation of a client costs."""
        takers = sum(r["clients"] for r in self.history)
        return sum(r["down"] + r["up"] for r in self.history) / max(takers, 1)

    def clock(self) -> dict[int, float]:
        """Simulated seconds up to the end of each round, of a run with devices; {} of another."""
        if not any("clock" in record for record in self.history):
            return {}
        return {0: 0.0} | {record["round"]: record["clock"] for record in self.history if "clock" in record}

    def module(self, module: nn.Module | Objective | None = None) -> nn.Module:
        """The trained module: an ordinary nn.Module with the full tables.

        A run without its parameters here (of a comparison, or read back) is loaded from its directory; ``module`` is
        for those that fedsub cannot make again (`fedsub.load`).
        """
        if self.params and self.problem is not None:
            made = template(self.problem, next(iter(self.params.values())).device)
            own = dict(made.named_parameters())
            for name, value in self.params.items():
                own[name].data = value
            return stamped(made.eval(), {name: space.vocabulary for name, space in self.problem.tables.items()})
        if self.path is None:
            raise RunError(
                f"The trained parameters of {self.method}, seed {self.seed}, were not kept: those of all runs together "
                "are too large for memory. Give the comparison a directory (out=…)."
            )
        from fedsub.running.load import load

        known = self.problem.objective if self.problem is not None else self.objective() if self.objective else None
        return load(self.path).module(module if module is not None else known)

    def summary(self) -> dict[str, Any]:
        """Plain values, as written to result.json."""
        return {
            "method": self.method,
            "seed": self.seed,
            "rounds": self.history[-1]["round"] if self.history else 0,
            "engine": self.engine,
            "seconds": self.seconds,
            "peak_bytes": self.peak_bytes,
            "down": sum(r["down"] for r in self.history),
            "up": sum(r["up"] for r in self.history),
            "diverged": self.diverged,
            "directions": dict(self.directions),
            "final": self.final,
            **({"privacy": self.privacy} if self.privacy else {}),
        }


def mean_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (0 for one value), ignoring nan."""
    kept = [v for v in values if v == v]
    if not kept:
        return float("nan"), float("nan")
    mean = sum(kept) / len(kept)
    if len(kept) == 1:
        return mean, 0.0
    return mean, math.sqrt(sum((v - mean) ** 2 for v in kept) / (len(kept) - 1))
