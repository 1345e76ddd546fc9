"""`compare`: several methods, several seeds, the same data; one table and one page."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsub.callbacks import Callback
from fedsub.core import Method
from fedsub.data.clients import Clients
from fedsub.errors import ConfigError
from fedsub.objective import Objective
from fedsub.result import Result, Target, mean_std
from fedsub.rundir import RunDir
from fedsub.running import Interrupted, deferred_interrupt, finished_result, run


@dataclass
class Comparison:
    """Results by method label, one per seed."""

    results: dict[str, list[Result]]
    target: Target | None = None
    metric: str = "train.ce"
    path: Path | None = None
    notes: list[str] = field(default_factory=list)

    def metrics(self) -> list[str]:
        return next(iter(self.results.values()))[0].metrics()

    def rows(self) -> list[dict[str, Any]]:
        """One row per method: rounds to the target, best metrics, bytes per client, seconds.

        ``first`` lists the first round at which each seed reached the target (None: never).
        """
        out = []
        for label, results in self.results.items():
            row: dict[str, Any] = {"method": label, "seeds": len(results)}
            if self.target is not None:
                row["first"] = [r.first_round(self.target) for r in results]
            for metric in self.metrics():
                row[metric] = mean_std([r.best(metric) for r in results])
            row["bytes"] = mean_std([r.bytes_per_client() for r in results])
            row["seconds"] = mean_std([r.seconds for r in results])
            row["rounds"] = max(r.history[-1]["round"] for r in results)
            out.append(row)
        return out

    def table(self) -> str:
        """The comparison as a text table."""
        from fedsub.report.table import text_table

        return text_table(self)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write table (CSV, Markdown), plots (PNG) and one self-contained HTML page; returns the page."""
        from fedsub.report import write_report

        return write_report(self, folder)


def compare(
    methods: Mapping[str, Method],
    objective: Objective | Callable[[int], Objective],
    clients: Clients,
    *,
    rounds: int,
    seeds: int | Iterable[int] = 1,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    target: str | Target | None = None,
    metric: str | None = None,
    callbacks: Sequence[Callback] = (),
    **options: Any,
) -> Comparison:
    """Train every method with every seed and compare; ``options`` go to `run`.

    ``objective`` may be a function of the seed, to start every seed from its own initialisation. With
    ``out`` each run has its directory there; ``resume=True`` skips finished ones and continues the rest.
    """
    if not methods:
        raise ConfigError("There is nothing to compare: give at least one method.")
    goal = Target.parse(target) if target is not None else None
    folders = {label: slug(label) for label in methods}
    if len(set(folders.values())) < len(folders):
        raise ConfigError(f"Two labels give the same directory name: {', '.join(methods)}; rename one.")
    results: dict[str, list[Result]] = {label: [] for label in methods}
    with deferred_interrupt() as interrupted:
        for seed in range(seeds) if isinstance(seeds, int) else seeds:
            own = objective if isinstance(objective, Objective) else objective(seed)
            for label, method in methods.items():
                if interrupted():  # in the last round of a run, or between two
                    raise Interrupted(f"Stopped between two runs. Go on with: fedsub resume {out}")
                folder = Path(out) / f"{folders[label]}-seed{seed}" if out is not None else None
                if folder is not None and resume and RunDir(folder).finished:
                    result = finished_result(folder)
                else:
                    result = run(
                        method, own, clients, rounds=rounds, seed=seed, out=folder, resume=resume, target=goal,
                        callbacks=callbacks, **options,
                    )  # fmt: skip
                    result.params = {}  # keep the curves, not a model per run
                result.method = label
                results[label].append(result)
    if metric is None:
        metric = goal.metric if goal else next(iter(results.values()))[0].metrics()[0]
    return Comparison(results, goal, metric, Path(out) if out is not None else None)


def slug(label: str) -> str:
    """A label as a directory name."""
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-") or "method"
