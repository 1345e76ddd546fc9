"""Plans beside runs (docs/planning.md): what `fs.plan` says of a population from a sample of it, and what then happens.

python experiments/planning.py --constants constants.json

The constants are this machine's: fedsub plan --calibrate constants.json. Every run is a process of its own. The sample
is a population of the same law with a fifth of the clients, or the clients themselves, whose bytes must then be exact.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fedsub as fs
from fedsub.data.large.budget import most_resident
from fedsub.objective.models import make_objective

ROUNDS = 30


@dataclass(frozen=True)
class Task:
    """``make(share)`` gives a population of this share of the whole."""

    make: Callable[[float], fs.Clients]
    model: str
    method: Callable[..., Any]
    settings: dict[str, Any]
    cohort: int = 50

    def algorithm(self, cohort: int) -> Any:
        return self.method(lr=0.1, clients_per_round=cohort, **self.settings)


def zipf(share: float, scale: int = 1) -> fs.Clients:
    """A thousandth of a million clients and of 100 million rows, or ``scale`` times as much."""
    many = scale * share
    return fs.twins.Zipf(round(1000 * many), round(100_000 * many), round(50_000 * many)).make()


TEN = {"local_steps": 10, "batch_size": 5}
TASKS = {
    "LR, a thousandth": Task(zipf, "lr", fs.methods.fedsubavg, TEN),
    "embedding, a thousandth": Task(zipf, "embedding", fs.methods.fedsubavg, TEN),
    "embedding, a hundredth, server Adam": Task(lambda s: zipf(s, 10), "embedding", fs.methods.fedadam, TEN),
    "embedding, a thousandth, Scaffold": Task(zipf, "embedding", fs.methods.scaffold, TEN),
    "DIN, amazon-like": Task(
        lambda s: fs.twins.TWINS["amazon-like"].make(scale=s), "din", fs.methods.fedsubavg,
        {"local_steps": 5, "batch_size": 16}, 20,
    ),
}  # fmt: skip


def run(name: str, everyone: bool) -> dict[str, Any]:
    """What happens: bytes of all rounds, CPU seconds of a round, peak memory. In a process of its own."""
    task = TASKS[name]
    clients = task.make(1)
    objective = make_objective(clients, task.model, seed=0)
    method = task.algorithm(len(clients) if everyone else task.cohort)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        rounds = 2 if everyone else ROUNDS
        fs.run(method, objective, clients, rounds=rounds, out=out, evaluate=fs.Evaluate(every=ROUNDS, samples=1000))
        traffic, timing = (
            [json.loads(line) for line in (out / f"{log}.jsonl").read_text().splitlines()]
            for log in ("traffic", "timing")
        )
        about = json.loads((out / "result.json").read_text())
    return {
        "down": sum(sum(line["down"]) for line in traffic), "up": sum(sum(line["up"]) for line in traffic),
        "cpu": float(np.median([line["cpu"] for line in timing][-len(timing) // 2 :])), "peak": most_resident(),
        "engine": about["engine"],
    }  # fmt: skip


def child(name: str, everyone: bool) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, "--run", name, *(["--everyone"] if everyone else [])], capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def compare(name: str, constants: fs.Constants, share: float) -> dict[str, float]:
    """Planned over measured, of a plan made on a share of the population. At 1 everyone takes part."""
    task, whole = TASKS[name], share == 1
    sample, population = task.make(share), task.make(1)
    rows = {space: one.size for space, one in population.spaces.items()}
    cohort = len(population) if whole else task.cohort
    plan = fs.plan(
        task.algorithm(cohort), make_objective(sample, task.model, seed=0), sample, rounds=2 if whole else ROUNDS,
        population=len(population), rows=rows, samples=population.samples, constants=constants,
    )  # fmt: skip
    seen = child(name, everyone=whole)
    return {
        "down": plan.rounds * plan.down / seen["down"], "up": plan.rounds * plan.up / seen["up"],
        "time": plan.seconds / seen["cpu"], "memory": plan.peak("the driver") / seen["peak"],
        "measured ms": 1e3 * seen["cpu"], "measured GB": seen["peak"] / 1e9,
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> dict[str, dict[str, dict[str, float]]]:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--constants", type=Path)
    parse.add_argument("--run", help=argparse.SUPPRESS)
    parse.add_argument("--everyone", action="store_true", help=argparse.SUPPRESS)
    parse.add_argument("tasks", nargs="*", help="some of the tasks; default: all")
    options = parse.parse_args(arguments)
    if options.run:
        print(json.dumps(run(options.run, options.everyone)))
        return {}
    constants = fs.Constants.open(options.constants) if options.constants else fs.Constants()
    out: dict[str, dict[str, dict[str, float]]] = {}
    print("| planned / measured | bytes, all clients | bytes, from a fifth | time of a round | memory |")
    print("| --- | --- | --- | --- | --- |")
    for name in options.tasks or TASKS:
        out[name] = {"all": compare(name, constants, 1), "fifth": compare(name, constants, 0.2)}
        whole, part = out[name].values()
        cells = [
            name, f"{whole['down']:.4f} down, {whole['up']:.4f} up", f"{part['down']:.2f} down, {part['up']:.2f} up",
            f"{part['time']:.2f} ({part['measured ms']:.3g} ms)",
            f"{part['memory']:.2f} ({part['measured GB']:.2f} GB)",
        ]  # fmt: skip
        print(f"| {' | '.join(cells)} |", flush=True)
    return out


if __name__ == "__main__":
    main()
