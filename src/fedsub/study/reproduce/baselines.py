"""Models that know the user and the item alone: what DIN has to beat.

An AUC of 0.60 looks like learning, but smoothed means of each user's past labels reach more on the same data.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from fedsub.objective.metrics import auc
from fedsub.objective.models.baselines import baseline_scores
from fedsub.running.result import mean_std
from fedsub.study.comparing import Comparison
from fedsub.study.experiment.config import parse
from fedsub.study.reproduce.runs import Loaded

FEDERATED = "User + item LR, FedSubAvg"
LR = 0.03  # the best of 0.001 to 0.1 on Amazon's validation samples; 0.1 diverges on users, whom one client each holds
TITLES = {
    "user means": "Smoothed user means",
    "item means": "Smoothed item means",
    "ridge": "User + item ridge, central",
}


@dataclass
class Baseline:
    """(mean, standard deviation over seeds or None) by metric."""

    title: str
    values: dict[str, tuple[float, float | None]] = field(default_factory=dict)


def federated(loaded: Loaded) -> Loaded:
    """The same data and training settings with the user + item model, by FedSubAvg at its own rate."""
    raw = loaded.experiment.config.plain()
    raw["model"], raw["methods"] = {"kind": "user-item"}, {FEDERATED: {"method": "fedsubavg", "lr": LR}}
    config = parse(raw, "The baseline")
    return loaded.with_(replace(loaded.experiment, config=config))


def of_runs(found: Comparison) -> Baseline:
    """The federated baseline from its runs."""
    results = [r for each in found.results.values() for r in each]
    values: dict[str, tuple[float, float | None]] = {}
    for metric in found.metrics():
        mean, std = mean_std([r.best(metric) for r in results])
        values[metric] = mean, std if len(results) > 1 else None
    return Baseline(FEDERATED, values)


def central(loaded: Loaded) -> list[Baseline]:
    """Smoothed user means and a central user + item fit, which have no seeds."""
    train, test = loaded.train, loaded.test
    if test is None or test.label is None:
        return []
    every = np.arange(test.samples)
    labels = np.asarray(test.columns[test.label].values)
    parts = loaded.experiment.evaluation().slices.items()
    slices = {name: part.mask(test, every, train) for name, part in parts if part.split == "test"}
    out = []
    for title, scores in baseline_scores(train, test).items():
        values: dict[str, tuple[float, float | None]] = {"test.auc": (auc(scores, labels), None)}
        values |= {f"{n}.auc": (auc(scores[m], labels[m]), None) for n, m in slices.items() if m.any()}
        out.append(Baseline(TITLES.get(title, title), values))
    return out
