"""What every script of this folder shares: the data of a workload, which clients train in a round, the clock.

NumPy alone, so that it runs in the environment of any of the libraries. `run.py` writes the data.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import lru_cache
from pathlib import Path

import numpy as np


class Work:
    """K clients a round, each with I steps of batch B; one drawn sample after the other makes the batches."""

    def __init__(self, folder: Path, name: str):
        self.name, about = name, json.loads((folder / f"{name}.json").read_text())
        self.clients, self.cohort, self.batch, self.steps = (about[k] for k in ("clients", "cohort", "batch", "steps"))
        self.lr, self.rows, self.rounds = about["lr"], about["rows"], about["rounds"]
        self.ids = np.load(folder / f"{name}.ids.npy", mmap_mode="r")
        self.labels = np.load(folder / f"{name}.labels.npy", mmap_mode="r")
        self.offsets = np.load(folder / f"{name}.offsets.npy")

    def who(self, number: int) -> np.ndarray:
        return np.random.default_rng([1, number]).choice(self.clients, self.cohort, replace=False)

    def draw(self, client: int, number: int) -> tuple[np.ndarray, np.ndarray]:
        """The I · B samples of a client in a round."""
        begin, end = self.offsets[client], self.offsets[client + 1]
        need = self.steps * self.batch
        at = begin + np.random.default_rng([int(number), int(client)]).choice(
            end - begin, need, replace=end - begin < need
        )
        return self.ids[at].astype(np.int64), np.asarray(self.labels[at])

    def to_look_at(self, count: int = 4000) -> tuple[np.ndarray, np.ndarray]:
        at = np.sort(np.random.default_rng(3).choice(len(self.labels), count, replace=False))
        return self.ids[at].astype(np.int64), np.asarray(self.labels[at])

    def model(self):
        import torch
        from models import MODELS

        torch.manual_seed(0)
        return MODELS[self.name](self.rows)

    def loss_of(self, model) -> float:
        import torch

        ids, labels = map(torch.from_numpy, self.to_look_at())
        with torch.no_grad():
            return torch.nn.functional.binary_cross_entropy_with_logits(model(ids), labels).item()


@lru_cache
def work_of(folder: str, name: str) -> Work:
    """Once in a process, for libraries that start others."""
    return Work(Path(folder), name)


def asked() -> Work:
    """The workload that the command line names: FOLDER NAME."""
    return work_of(sys.argv[1], sys.argv[2])


class Clock:
    """Wall and CPU seconds, of this process and all that it started, from one `tick` to the next."""

    def __init__(self, what: str, warm_up: int = 2):
        self.what, self.warm_up = what, warm_up
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def tick(self, *_) -> None:
        self.wall.append(time.perf_counter())
        self.cpu.append(_spent(os.getppid() if "RANK" in os.environ else os.getpid()))

    def tell(self, loss: float) -> None:
        wall, cpu = np.diff(self.wall)[self.warm_up :], np.diff(self.cpu)[self.warm_up :]
        said = {"what": self.what, "wall": wall.tolist(), "cpu": float(cpu.mean()), "loss": loss}
        print("TOLD " + json.dumps(said), flush=True)


def _spent(root: int) -> float:
    children, spent = {}, {}
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(number))
        spent[int(number)] = sum(map(int, fields[11:15]))  # its own, and of children that ended
    total, left = 0, [root]
    while left:
        one = left.pop()
        total += spent.get(one, 0)
        left += children.get(one, [])
    return total / os.sysconf("SC_CLK_TCK")
