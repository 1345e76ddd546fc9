"""Rounds shared by two workers: processes of this machine, and those of a Ray cluster on it, beside one alone.

Whole rounds by the clock, not CPU time: that is what workers are for. They take turns, so what else the machine does
slows all alike; still, two workers need two cores that nobody else uses. All train the same clients, to the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.table import Table

from fedsub import methods
from fedsub.errors import MissingExtra
from fedsub.method.engine import Ray
from fedsub.method.training import Options
from fedsub.objective.problem import Problem
from fedsub.round.prepare import Trainer, prepare
from fedsub.round.quiet import one_thread
from fedsub.study.bench.contenders import auto_choice, federated_method
from fedsub.study.bench.workloads import WORKLOADS, Workload
from fedsub.trees import digest_of

NAMES = ("w2", "w3", "w3-100")
TURNS, WARM_UP, COUNT = 8, 2, 2


def run(
    names: list[str] | None = None, *, rounds: int | None = None, progress: Callable[[str], None] = lambda what: None
) -> dict[str, Any]:
    """Seconds a round by workload and crew, and whether all of them made the same model."""
    with one_thread():
        return {name: measure(WORKLOADS[name], rounds or TURNS, progress) for name in names or NAMES}


def measure(workload: Workload, turns: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """One workload, with the engine that ``auto`` chooses there."""
    progress(f"{workload.name}: engine")
    engine, _ = auto_choice(workload)
    crews: dict[str, Options] = {
        "one": Options(engine=engine),
        "processes": Options(engine=engine, workers=COUNT),
        "ray": Options(engine=Ray(workers=COUNT, engine=engine)),
    }
    trainers: dict[str, Trainer] = {}
    for name, options in crews.items():
        progress(f"{workload.name}: {name}")
        try:
            trainers[name] = _trainer(workload, options)
        except MissingExtra:
            continue
    seconds: dict[str, list[float]] = {name: [] for name in trainers}
    for number in range(1, WARM_UP + turns + 1):
        progress(f"{workload.name}: turn {number} of {WARM_UP + turns}")
        for name, trainer in trainers.items():
            begin = time.perf_counter()
            trainer.round(number)
            seconds[name].append(time.perf_counter() - begin)
    same = len({digest_of(trainer.params) for trainer in trainers.values()}) == 1
    for trainer in trainers.values():
        trainer.close()
    kept = {name: spent[WARM_UP:] for name, spent in seconds.items()}
    found = {name: {"best": min(one), "median": float(np.median(one))} for name, one in kept.items()}
    return {"title": workload.title, "engine": engine, "rounds": turns, "same_bits": same, "crews": found}


def _trainer(workload: Workload, options: Options) -> Trainer:
    problem = Problem.bind(workload.objective(), workload.data.clients)
    made = prepare(federated_method(workload, methods.fedsubavg), problem, problem.params(), options).trainer
    assert isinstance(made, Trainer)
    made.state.tracking = False  # as in a run without a directory
    return made


LABELS = {"one": "one worker", "processes": "two processes", "ray": "Ray, two workers"}


def table(found: dict[str, Any]) -> Table:
    out = Table(title="Two workers: seconds a round by the clock", title_justify="left", caption_justify="left")
    for head in ("", "crew", "best", "median", "one worker / it (medians)", "it / two processes (medians)"):
        out.add_column(head, justify="right" if head not in ("", "crew") else "left")
    for name, one in found.items():
        crews = one["crews"]
        for crew, spent in crews.items():
            out.add_row(
                f"{name} ({one['engine']})", LABELS[crew], f"{spent['best']:.3f}", f"{spent['median']:.3f}",
                f"{crews['one']['median'] / spent['median']:.2f}",
                f"{spent['median'] / crews['processes']['median']:.2f}",
            )  # fmt: skip
    bits = all(one["same_bits"] for one in found.values())
    out.caption = "All crews made the same model, bit for bit." if bits else "THE MODELS DIFFER."
    return out
