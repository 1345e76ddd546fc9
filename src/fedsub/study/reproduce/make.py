"""`reproduce`: from a request to runs, tables, pictures and one page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedsub.data import Clients
from fedsub.errors import ConfigError, nearest
from fedsub.study.comparing import Comparison
from fedsub.study.experiment.selecting import select
from fedsub.study.reproduce import baselines, output, studies, table1, table2
from fedsub.study.reproduce.runs import Loaded, Workshop
from fedsub.study.reproduce.studies import Study
from fedsub.study.reproduce.tables import Table
from fedsub.study.tuning.workers import Watch

WHAT = ("table1", "table2", "table3", "figure3", "figure4")
PROTOCOLS = ("stated", "tuned")


@dataclass(frozen=True)
class Request:
    """What to reproduce and on what. ``data``: a folder with one or several data sets; None: the cache."""

    what: str
    task: str = "all"
    protocol: Literal["stated", "tuned"] = "stated"
    seeds: int | list[int] = 3
    data: Path | None = None
    twin: bool = False
    scale: float | None = None
    rounds: int | None = None
    methods: tuple[str, ...] = ()
    workers: int = 2
    out: Path = Path("runs/reproduce")

    def __post_init__(self) -> None:
        if self.what not in WHAT:
            raise ConfigError(f"There is no {self.what!r} to reproduce; {nearest(self.what, WHAT)}")
        if self.protocol not in PROTOCOLS:
            raise ConfigError(f"There is no protocol {self.protocol!r}; {nearest(self.protocol, PROTOCOLS)}")
        if self.scale is not None and not self.twin and self.what != "table1":
            raise ConfigError("--scale is for synthetic data; give --twin too.")
        if self.twin and self.data is not None:
            raise ConfigError("--twin makes its own data; leave --data out, or --twin.")
        studies.get(self.task)

    @property
    def compares_methods(self) -> bool:
        return self.what in ("table2", "figure3")

    @property
    def name(self) -> str:
        """The directory of what is drawn."""
        parts = [self.what, *([self.protocol] if self.compares_methods else [])]
        parts += [] if self.task == "all" else [self.task.replace(",", "-")]
        parts += ["twin"] if self.twin else []
        return "-".join(parts)


@dataclass
class Outcome:
    """What came of it. ``panels`` are the comparisons by title; ``folder`` holds table.md, table.csv and so on."""

    tables: list[Table]
    panels: dict[str, Comparison] = field(default_factory=dict)
    folder: Path | None = None
    notes: list[str] = field(default_factory=list)


def reproduce(request: Request, watch: Watch | None = None, note: Callable[[str], object] = lambda _: None) -> Outcome:
    """Train what is missing, draw and write everything. ``note`` is told what is going on, in sentences."""
    outcome = _table1(request, note) if request.what == "table1" else _runs(request, watch or Watch(), note)
    outcome.folder = output.write(request, outcome)
    return outcome


def _table1(request: Request, note: Callable[[str], object]) -> Outcome:
    found: list[tuple[Study, str, Clients]] = []
    absent, scaled = [], []
    for study in studies.get(request.task):
        task = studies.choose(study, request.data, request.twin)
        if task is None and request.data is None:
            task = study.twin  # without data: what is generated
        if task is None:
            absent.append(f"{study.name}: no {' or '.join(study.data)} in {request.data}; left out.")
            continue
        note(f"Reading {task}")
        scale = studies.twin_scale(study, task, request.scale)
        loaded = studies.experiment(f"table2_{study.name}_stated", task, request.data, scale, {})
        found.append((study, task, loaded.clients()))
        if scale is not None:
            scaled.append(f"{task} is made at {scale:g} of the published size.")
    if not found:
        raise studies.missing(studies.get(request.task)[0], request.data)
    made = table1.table(found)
    made.notes += scaled + absent
    return Outcome([made])


def _runs(request: Request, watch: Watch, note: Callable[[str], object]) -> Outcome:
    chosen: list[tuple[Study, str]] = []
    absent: list[ConfigError] = []
    for study in studies.get(request.task):
        task = studies.choose(study, request.data, request.twin)
        if task is None:
            absent.append(studies.missing(study, request.data))
        else:
            chosen.append((study, task))
    if absent and (not chosen or request.task != "all"):
        raise absent[0]
    outcome = Outcome([], notes=[f"Left out: {error}" for error in absent])
    for sentence in outcome.notes:
        note(sentence)
    shop = Workshop(request.out, request.workers, watch)
    for study, task in chosen:
        table, found = _study(request, study, task, shop, note)
        outcome.tables.append(table)
        outcome.panels[study.titled(task)] = found
    return outcome


def _study(
    request: Request, study: Study, task: str, shop: Workshop, note: Callable[[str], object]
) -> tuple[Table, Comparison]:
    name = f"table2_{study.name}_{request.protocol}" if request.compares_methods else f"table3_{study.name}"
    changes: dict[str, Any] = {"train": {"rounds": request.rounds}} if request.rounds is not None else {}
    scale = studies.twin_scale(study, task, request.scale)
    experiment = studies.experiment(name, task, request.data, scale, changes)
    if request.methods:
        methods = select(experiment.config.methods, list(request.methods))
        experiment = studies.changed(experiment, methods)
    note(f"{study.name}: reading {task}")
    loaded = Loaded.read(experiment)
    if scale is not None:
        loaded.notes.append(f"{task} is made at {scale:g} of the published size.")
    note(f"{study.name}: {len(loaded.train):,} clients, {loaded.train.samples:,} training samples")
    seeds = list(range(request.seeds)) if isinstance(request.seeds, int) else request.seeds
    if request.compares_methods and request.protocol == "tuned":
        loaded = shop.winners(loaded, f"{study.name}, search")
    found = shop.compare(loaded, study.name, seeds)
    if not request.compares_methods:
        return table2.table3(study, task, found), found
    beside: list[baselines.Baseline] = []
    if study.auc:
        runs = shop.compare(baselines.federated(loaded), f"{study.name}, user + item LR", seeds)
        beside = [baselines.of_runs(runs), *baselines.central(loaded)]
    return table2.table2(study, task, request.protocol, found, beside), found
