"""The best setting of each method, on the validation split. Nothing here sees the test split."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fedsub.errors import ConfigError, nearest
from fedsub.objective.losses import Loss
from fedsub.round.evaluate import Evaluate
from fedsub.running.result import Target, better, mean_std
from fedsub.study.tuning.space import Axis, Values
from fedsub.study.tuning.trials import Trial

Select = Literal["final", "best", "rounds"]
SELECT = ("final", "best", "rounds")


@dataclass
class Setting:
    """The values of one setting and its trials, one per seed; or why the method refuses them."""

    label: str
    number: int
    values: Values
    trials: list[Trial] = field(default_factory=list)
    refused: str | None = None

    @property
    def words(self) -> str:
        return ", ".join(f"{name}={show(value)}" for name, value in self.values.items())


@dataclass(frozen=True)
class Criterion:
    """What settings are chosen by, on average over the seeds.

    ``final``   the validation loss after the last round
    ``best``    the smallest validation loss of the evaluated rounds: the round is chosen too
    ``rounds``  the rounds until a target holds; otherwise these rounds are only reported

    ``metric`` takes the place of the loss ("final:auc", "best:accuracy").
    """

    select: Select = "final"
    target: Target | None = None
    metric: str | None = None  # None: the loss
    directions: Mapping[str, str] = field(default_factory=dict)  # of metrics of the user's own, and of rankings

    @classmethod
    def make(cls, select: Any, target: str | Target | None, directions: Mapping[str, str] | None = None) -> Criterion:
        select, _, metric = str(select).partition(":")
        if select not in SELECT:
            raise ConfigError(f"select is {select!r}; {nearest(select, SELECT)}")
        if metric and select == "rounds":
            raise ConfigError(
                f'select="rounds" counts rounds to the target; leave {metric!r} out, or use "best:{metric}".'
            )
        goal = Target.parse(target) if target is not None else None
        if goal is None and select == "rounds":
            raise ConfigError('select="rounds" needs a target to reach, such as train.ce<=0.65.')
        if goal is not None and goal.metric.partition(".")[0] not in ("train", "validation"):
            if select == "rounds":
                raise ConfigError(
                    f"The target {goal} is not on the data that settings are chosen by; use train.… or validation.…, "
                    "such as train.ce<=0.65. The test split is looked at once, at the end."
                )
            goal = None  # the task's own target may be on the test split, which nothing here may watch
        return cls(select, goal, metric or None, directions or {})

    def check(self, loss: Loss, plan: Evaluate) -> None:
        """Refuse a metric or target that is never measured."""
        kinds = plan.measured(loss, "validation")
        if self.metric is not None and self.metric not in kinds:
            raise ConfigError(
                f"Settings cannot be chosen by {self.metric!r}, which is not measured; {nearest(self.metric, kinds)}"
            )
        known = [f"{split}.{kind}" for split in ("train", "validation") for kind in plan.measured(loss, split)]
        if self.target is not None and self.target.metric not in known:
            raise ConfigError(
                f"The target {self.target} is on a metric that is not measured; {nearest(self.target.metric, known)}"
            )

    def value(self, trial: Trial) -> float:
        """Infinity for a trial that failed, diverged or never got there."""
        if trial.status != "finished":
            return math.inf
        if self.select == "rounds" and self.target is not None:
            return trial.first(self.target)
        if self.select == "best":
            found = trial.best("validation", self.metric, self.directions)[1]
        else:
            found = trial.metric("validation", self.metric or trial.kind)
        return found if math.isfinite(found) else math.inf

    def cost(self, trial: Trial) -> float:
        """`value`, such that less is better."""
        value = self.value(trial)
        upwards = self.metric is not None and better(self.metric, self.directions) == "higher"
        return -value if upwards and math.isfinite(value) else value

    def rounds(self, trial: Trial) -> int:
        """How long the winner is trained again for this seed: to the round that validation chose."""
        return trial.best("validation", self.metric, self.directions)[0] if self.select == "best" else trial.rounds

    @property
    def title(self) -> str:
        if self.select == "rounds":
            return f"rounds to {self.target}"
        name = f"validation {self.metric or 'loss'}"
        return name if self.select == "final" else f"best {name}"

    def mean(self, setting: Setting) -> float:
        """The cost over the seeds; infinity if one of them has none."""
        values = [self.cost(t) for t in setting.trials]
        return sum(values) / len(values) if values else math.inf

    def rank(self, setting: Setting) -> tuple[float, float, float, int]:
        """Fewest seeds without a value, then the mean over the others, the final loss, the order of the grid."""
        values = [self.cost(t) for t in setting.trials]
        lacking = sum(map(math.isinf, values)) if values else math.inf
        mean, _ = mean_std([v for v in values if math.isfinite(v)])
        losses = [t.loss("validation") for t in setting.trials]
        loss = sum(losses) / len(losses) if losses and all(map(math.isfinite, losses)) else math.inf
        return lacking, mean if math.isfinite(mean) else math.inf, loss, setting.number


def choose(settings: Sequence[Setting], criterion: Criterion) -> Setting | None:
    """The best one; None if no trial of any setting came to a finite loss."""
    able = [s for s in settings if any(t.status == "finished" for t in s.trials)]
    return min(able, key=criterion.rank) if able else None


def warnings(winner: Setting, axes: Sequence[Axis], *, drawn: bool) -> list[str]:
    """A best value at an end of an axis (in its outer tenth, if settings were drawn) may not be the best there is."""
    out = []
    margin = 0.1 if drawn else 1e-9
    for axis in axes:
        if axis.low == axis.high:
            continue
        value = winner.values[axis.name]
        share = axis.share(value)
        if not margin < share < 1 - margin:
            end, further = ("lower", "smaller") if share <= margin else ("upper", "larger")
            out.append(
                f"{winner.label}: the best {axis.name}, {show(value)}, is at the {end} end of what was searched "
                f"({axis.low:g} to {axis.high:g}); search {further} values too before you compare."
            )
    bad = [t for t in winner.trials if t.status != "finished"]
    if bad:
        out.append(f"{winner.label}: {len(bad)} of {len(winner.trials)} seeds of its best setting diverged or failed.")
    return out


def show(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
