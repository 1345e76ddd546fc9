"""Measure `Constants` on this machine: a few small tasks, each heavy in something else, and a least-squares fit.

A round's CPU seconds are the fastest of several. The errors that are squared are relative, so that a task of a
millisecond counts as much as one of a second; no constant is below zero.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from fedsub.data.large.budget import resident
from fedsub.method.slots import Method
from fedsub.methods import fedsubavg
from fedsub.objective.losses import Binary
from fedsub.objective.objective import Objective
from fedsub.objective.problem import Problem
from fedsub.round.quiet import one_thread
from fedsub.study.bench.growth import Scorer, make_clients
from fedsub.study.bench.workloads import WORKLOADS
from fedsub.study.planning.constants import Constants
from fedsub.study.planning.counted import Counts, count

UNITS = ("start", "call", "serial_call", "byte", "flop", "row")
TURNS, LONGEST = 5, 3.0  # rounds of a task, and seconds after which no more are played
Task = tuple[Problem, Method, str]


def tasks() -> Iterator[Task]:
    """Logistic regression of some sizes, attention, an LSTM, and many rows of a table that no cache holds."""
    for name, engine, changes in (
        ("w1", "batched", {"local_steps": 1, "clients_per_round": 2}),
        ("w1", "batched", {}),
        ("w1", "batched", {"clients_per_round": 500}),
        ("w1", "serial", {}),
        ("w2", "serial", {"clients_per_round": 10}),
        ("w2", "batched", {"clients_per_round": 10}),
        ("w3", "serial", {"clients_per_round": 5}),
        ("w3", "batched", {}),
    ):
        work = WORKLOADS[name]
        settings: dict[str, Any] = {"local_steps": work.steps, "clients_per_round": work.cohort}
        settings |= changes
        method = fedsubavg(lr=work.lr, batch_size=work.batch, **settings)
        yield Problem.bind(work.objective(), work.data.clients), method, engine
    rows = 2_000_000
    wide = Objective(Scorer(rows), Binary("label"), tables={"table.weight": "ids"})
    held = fedsubavg(lr=0.01, local_steps=1, batch_size=32, clients_per_round=100)
    yield Problem.bind(wide, make_clients(5_000, rows)), held, "batched"


def measured(problem: Problem, method: Method, engine: str, turns: int = TURNS) -> tuple[Counts, float]:
    """(what a round does, CPU seconds of the fastest)."""
    counts, trainer = count(problem, method, engine)
    seconds: list[float] = []
    with one_thread():
        while len(seconds) < turns and sum(seconds) < LONGEST:
            begun = time.process_time()
            trainer.round(len(seconds) + 3)
            seconds.append(time.process_time() - begun)
    return counts, min(seconds)


def features(counts: Counts) -> list[float]:
    """What stands beside each of `UNITS`."""
    calls = [0, counts.calls] if counts.engine == "serial" else [counts.calls, 0]
    return [1, *calls, counts.bytes, counts.flops, counts.rows]


def fit(found: Sequence[tuple[Counts, float]]) -> dict[str, float]:
    """min Σ (predicted / measured − 1)² over constants of at least zero: the best of all sets that stay positive."""
    seconds = np.array([one for _, one in found])
    matrix = np.array([features(counts) for counts, _ in found], float) / seconds[:, None]
    scale = np.abs(matrix).max(0)
    scale[scale == 0] = 1
    best, error = np.zeros(len(UNITS)), np.inf
    for size in range(1, len(UNITS) + 1):
        for some in combinations(range(len(UNITS)), size):
            part = matrix[:, some] / scale[list(some)]
            values = np.linalg.lstsq(part, np.ones(len(seconds)), rcond=None)[0]
            missed = float(((part @ values - 1) ** 2).sum())
            if (values >= 0).all() and missed < error - 1e-12:
                best, error = np.zeros(len(UNITS)), missed
                best[list(some)] = values / scale[list(some)]
    return dict(zip(UNITS, best.tolist(), strict=True))


def calibrate(progress: Callable[[str], None] = lambda what: None) -> tuple[Constants, list[dict[str, Any]]]:
    """(the constants of this machine, predicted beside measured seconds of every task)."""
    found, base = [], 0
    for problem, method, engine in tasks():
        progress(f"{type(problem.objective.module).__name__}, {engine}")
        found.append(measured(problem, method, engine))
        base = base or resident()  # the first task is next to nothing
    made = replace(Constants(), **fit(found), base=float(base))
    lines = [
        {"engine": c.engine, "clients": c.clients, "calls": c.calls, "bytes": c.bytes, "flops": c.flops,
         "rows": c.rows, "measured": one, "predicted": sum(c.seconds(made))}
        for c, one in found
    ]  # fmt: skip
    return made, lines
