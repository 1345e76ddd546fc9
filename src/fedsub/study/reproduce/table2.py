"""Tables 2 and 3: rounds to the target and best metrics of every method, beside the paper's numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from fedsub.running.result import Result, Target, mean_std
from fedsub.study.comparing import Comparison
from fedsub.study.report import words as w
from fedsub.study.reproduce import hits
from fedsub.study.reproduce.baselines import Baseline
from fedsub.study.reproduce.published import rounds_text
from fedsub.study.reproduce.studies import Study, difference
from fedsub.study.reproduce.tables import Table

# What is shown after the rounds, if it was measured.
NAMES = {
    "test.auc": "best test AUC",
    "test_seen.auc": "best test AUC, items seen in training",
    "test.accuracy": "best test accuracy",
    "train.ce": "best train ce",
    "train.half_ce": "best train half_ce",
    "test.ce": "best test ce",
    "test.half_ce": "best test half_ce",
}


def table2(study: Study, task: str, protocol: str, found: Comparison, baselines: Sequence[Baseline] = ()) -> Table:
    """Methods by rounds to the target."""
    paper = study.published
    made = _table(
        f"Table 2, {study.name}, {protocol} settings: rounds to {paper.target}",
        study, task, found, "method", lambda label: rounds_text(paper, label),
    )  # fmt: skip
    if study.auc:
        made.head.insert(2, "published best AUC")
        for row in made.rows:
            auc = paper.best_auc.get(row[0])
            row.insert(2, w.DASH if auc is None else f"{auc:.3f}")
    for baseline in baselines:
        _add(made, baseline)
    if baselines:
        made.notes.append(
            "Below the methods: models that know the user and the item alone. A method that does not beat them has "
            "learned nothing from histories, whatever its AUC."
        )
    return made


def table3(study: Study, task: str, found: Comparison) -> Table:
    """FedSubAvg by clients per round; labels are like "K=50"."""
    paper = study.published
    published = {f"K={k}": str(n) for k, n in paper.by_cohort.items()}
    title = f"Table 3, {study.name}: rounds to {paper.target} by clients per round"
    return _table(title, study, task, found, "FedSubAvg", lambda label: published.get(label, ""))


def _table(
    title: str, study: Study, task: str, found: Comparison, first: str, published: Callable[[str], str]
) -> Table:
    target = found.target
    assert target is not None
    metrics = [m for m in NAMES if m in found.metrics()]
    head = [first, "published rounds", "rounds", "by seed", f"rounds, mean of {hits.WINDOW} evaluations"]
    made = Table(title, [*head, *(NAMES[m] for m in metrics), "seconds"], [])
    for label, results in found.results.items():
        row, exact = _row(label, results, target, metrics)
        row.insert(1, published(label) or w.DASH)
        made.rows.append(row)
        known = {"task": study.name, "data": task, "method": label, "target": str(target)}
        made.exact.append(known | {"published_rounds": published(label)} | exact)
    made.notes += _notes(study, task, found)
    return made


def _row(
    label: str, results: Sequence[Result], target: Target, metrics: Sequence[str]
) -> tuple[list[str], dict[str, Any]]:
    last = max((r.history[-1]["round"] for r in results), default=0)
    exact: dict[str, Any] = {"seeds": len(results), "rounds": last}
    row = [label]
    for name, hit in (("first", hits.first), ("smoothed", hits.smoothed)):
        at = [hit(r, target) for r in results]
        reached = [float(n) for n in at if n is not None]
        mean, std = mean_std(reached)
        exact |= {f"{name}_reached": len(reached), f"{name}_mean": mean, f"{name}_std": std}
        row.append(hits.text(at, last))
        if name == "first":
            by_seed = [f"{last}+" if n is None else str(n) for n in at]
            row.append(", ".join(by_seed))
            exact["first_by_seed"] = " ".join(by_seed)
    for metric in metrics:
        values = [v for r in results if math.isfinite(v := r.best(metric))]
        mean, std = mean_std(values)
        row.append(w.number(mean, std if len(values) > 1 else None))
        exact |= {f"best_{metric}_mean": mean, f"best_{metric}_std": std if len(values) > 1 else math.nan}
    seconds = mean_std([r.seconds for r in results])[0]
    row.append(w.seconds(seconds))
    return row, exact | {"seconds": seconds}


def _add(made: Table, baseline: Baseline) -> None:
    """A row for a model that is not among the methods."""
    places = {name: i for i, name in enumerate(made.head)}
    row = [w.DASH] * len(made.head)
    row[0] = baseline.title
    exact: dict[str, Any] = {k: made.exact[0][k] for k in ("task", "data")} | {"method": baseline.title}
    for metric, (mean, std) in baseline.values.items():
        if NAMES.get(metric) in places:
            row[places[NAMES[metric]]] = w.number(mean, std)
        exact |= {f"best_{metric}_mean": mean, f"best_{metric}_std": math.nan if std is None else std}
    made.rows.append(row)
    made.exact.append(exact)


def _notes(study: Study, task: str, found: Comparison) -> list[str]:
    target, paper = found.target, study.published
    assert target is not None
    out = [f"Data: {task}: {difference(study, task)}."]
    out.append(
        f"Target here: {target}. Rounds: the first evaluation at which it holds, as mean ± standard deviation over the "
        "seeds; “200+” is not within 200 rounds. The paper has one run of each."
    )
    if paper.loss:
        out.append(f"The paper's loss is a {paper.loss}.")
    out.append("ce is the cross-entropy in nats, half_ce its half. Best values are of all evaluated rounds.")
    return [*out, *(w.one_line(note) for note in found.notes)]
