"""A small search that the tests of `tune` vary, and what it leaves on disk."""

from __future__ import annotations

import csv
import multiprocessing
import os
import signal
from pathlib import Path

from worlds import bag, item_data

import fedsub as fs
from fedsub.study.tuning.workers import Watch

SIZES = (6, 7, 4, 9, 5, 8)

WHOLE = item_data(SIZES, items=12)

TEST = item_data((5, 5, 5), items=12, seed=1)

FIXED = {"clients_per_round": 3, "local_steps": 2, "batch_size": 2}

METHODS = {"FedAvg": {"method": "fedavg", **FIXED}, "FedSubAvg": {"method": "fedsubavg", **FIXED}}


def objective(seed: int) -> fs.Objective:
    return bag(WHOLE, seed=seed)


def deadly(seed: int) -> fs.Objective:
    """Kills the worker process that asks for seed 1."""
    if seed == 1 and multiprocessing.parent_process() is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    return objective(seed)


def tune(methods=METHODS, make=objective, **options) -> fs.Tuning:
    chosen = {"grid": {"lr": [0.1, 1.0]}, "rounds": 4, "validation": 0.3, "evaluate": fs.Evaluate(every=1)}
    return fs.tune(methods, make, options.pop("clients", WHOLE), **{**chosen, **options})


def files(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in ("trials.csv", "winners.csv", "deciles.csv", "winners.txt")}


def rows(folder: Path, name: str = "trials.csv") -> list[dict[str, str]]:
    with open(folder / name, newline="") as file:
        return list(csv.DictReader(file))


class Count(Watch):
    """Counts what is trained; after ``stop`` trials the user presses Ctrl-C."""

    def __init__(self, stop: int = 0):
        self.stop, self.trained = stop, []

    def on_trial(self, job, trial) -> None:
        self.trained.append(job.name)
        if len(self.trained) == self.stop:
            raise KeyboardInterrupt
