"""Large runs (docs/scale.md): a log is made and read in, a model is trained on it, killed, and goes on.

python experiments/scale.py DIR
python experiments/scale.py DIR --clients 10000000 --rows 1000000000 --beside 10000 1000000

The first has a million clients, a table of 100 million rows × 16 and 50 million samples. Every step is a process of
its own, whose memory is measured. The model scores a row of the table, which is lazy, and is trained by FedSubAvg with
the server's Adam, or by --method; a round's CPU seconds are those of timing.jsonl, evaluation left out. With --beside
a small population trains before and after the large one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fedsub as fs

DIM = 16
GB = 1e9


class Scorer(nn.Module):
    """A linear score of a row."""

    def __init__(self, rows: int, lazy: bool):
        super().__init__()
        table = fs.Lazy(rows, DIM, init=fs.inits.Normal(0.01, seed=0))
        self.table = table if lazy else table.dense()
        self.out = nn.Linear(DIM, 1)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.out(self.table(batch["item"])).squeeze(-1)


def train(data: Path, out: Path, rounds: int, cohort: int, method: str, lazy: bool) -> None:
    """What the process does that trains: it goes on with what is there."""
    clients = fs.Clients.open(data)
    torch.manual_seed(0)
    objective = fs.Objective(Scorer(clients.size("item"), lazy), fs.losses.binary("label"), {"table.weight": "item"})
    server: dict[str, Any] = {"server": "adam", "server_lr": 0.01} if method == "fedsubavg" else {}
    made = getattr(fs.methods, method)(
        lr=0.1, local_steps=5, batch_size=5, clients_per_round=cohort, **server
    )  # fmt: skip
    fs.run(
        made, objective, clients, rounds=rounds, out=out, resume=True, copy=False, engine="batched",
        evaluate=fs.Evaluate(every=rounds // 2, samples=10_000, final_samples=10_000),
    )  # fmt: skip


class Step:
    """A process, its wall seconds and its peak memory."""

    def __init__(self, what: str, *arguments: object, kill: Callable[[float], bool] | None = None):
        """``kill``: end it without a warning once this is true; it is told the seconds since the start."""
        print(f"{what} …", flush=True)
        begun = time.perf_counter()
        self.process = subprocess.Popen([sys.executable, *map(str, arguments)], stdout=subprocess.DEVNULL)
        self.killed = False
        while kill is not None and self.process.poll() is None and not self.killed:
            time.sleep(0.05)
            if kill(time.perf_counter() - begun):
                os.kill(self.process.pid, signal.SIGKILL)
                self.killed = True
        _, status, used = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        self.seconds, self.peak = time.perf_counter() - begun, used.ru_maxrss * 1024
        print(f"  {self.seconds:,.1f} s, {self.peak / GB:.2f} GB" + (", killed" if self.killed else ""), flush=True)
        if self.process.returncode and not self.killed:
            raise SystemExit(f"{what} failed.")


def lines(run: Path) -> list[dict[str, Any]]:
    """The log of a run's rounds, as far as it is written."""
    path = run / "timing.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []


def prepare(folder: Path, clients: int, rows: int, samples: int, memory: str, kill: float = 0) -> list[Step]:
    """A log, and the same read in; killed after so many seconds and gone on with. What is there already is left."""
    command = "-m", "fedsub.cli", "data"
    log, data = folder / "log", folder / "data.fedsub"
    steps = []
    if not data.exists():
        sizes = "--clients", clients, "--rows", rows, "--samples", samples
        steps.append(Step(f"{samples:,} samples", *command, "generate", "zipf", *sizes, "--parquet", "--to", log))
        columns = "--client", "client", "--label", "label", "--table", "item", "--rows", f"item={rows}"
        reading = (*command, "import", log, *columns, "--to", data, "--memory", memory)
        if kill:
            steps.append(Step("read in", *reading, kill=lambda seconds: seconds >= kill))
            assert steps[-1].killed
        steps.append(Step("read in", *reading))
        shutil.rmtree(log)
    return steps


def trained(folder: Path, name: str, options: argparse.Namespace, kill: int = 0) -> dict[str, Any]:
    """Train to the end, killed once on the way; CPU seconds of a round and the peak memory."""
    out = folder / name
    shutil.rmtree(out, ignore_errors=True)
    arguments = (__file__, folder, "--train", out, "--rounds", options.rounds, "--cohort", options.cohort,
                 "--method", options.method, *(["--dense"] if options.dense else []))  # fmt: skip
    steps = []
    if kill:
        steps.append(Step(f"{folder.name}: to round {kill}", *arguments, kill=lambda _: len(lines(out)) >= kill))
    steps.append(Step(f"{folder.name}: to the end", *arguments))
    cpu = [line["cpu"] for line in lines(out)]
    assert len(cpu) == options.rounds
    assert not kill or steps[0].killed
    tenth = max(options.rounds // 10, 1)
    return {
        "early": float(np.median(cpu[tenth : 2 * tenth])), "late": float(np.median(cpu[-tenth:])),
        "median": float(np.median(cpu)), "peak": max(step.peak for step in steps),
        "seconds": [step.seconds for step in steps], "resumed": bool(kill),
        "final": json.loads((out / "metrics.jsonl").read_text().splitlines()[-1]),
    }  # fmt: skip


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All of it; the result is also written to DIR/scale.json."""
    large, small = options.folder / "large", options.folder / "small"
    for folder in (large, small):
        folder.mkdir(parents=True, exist_ok=True)
    made = prepare(large, options.clients, options.rows, options.samples, options.memory, options.kill_reading)
    out: dict[str, Any] = {"clients": options.clients, "rows": options.rows, "samples": options.samples}
    out["made"] = [{"seconds": step.seconds, "peak": step.peak} for step in made]
    if not options.rounds:
        return out
    beside = []
    if options.beside:
        clients, rows = options.beside
        prepare(small, clients, rows, max(options.samples * clients // options.clients, clients), options.memory)
        beside.append(trained(small, "before", options))
    out["large"] = trained(large, "run", options, kill=options.kill)
    if options.beside:
        beside.append(trained(small, "after", options))
        out["small"] = beside
        out["ratio"] = out["large"]["median"] / min(one["median"] for one in beside)
    out["growth"] = out["large"]["late"] / out["large"]["early"]
    (options.folder / "scale.json").write_text(json.dumps(out, indent=1) + "\n")
    return out


def shown(found: dict[str, Any]) -> str:
    """The result in lines."""
    said = [f"{found['clients']:,} clients, {found['rows']:,} rows × {DIM}, {found['samples']:,} samples"]
    for number, step in enumerate(found["made"]):
        said.append(f"{'read in' if number else 'made':<12}{step['seconds']:8.1f} s{step['peak'] / GB:8.2f} GB")
    if "large" not in found:
        return "\n".join(said)
    one = found["large"]
    said.append(f"{'trained':<12}{sum(one['seconds']):8.1f} s{one['peak'] / GB:8.2f} GB")
    said.append(f"a round: {1e3 * one['median']:.1f} ms of CPU; late / early {found['growth']:.2f}")
    if "ratio" in found:
        said.append(f"beside the small population: {found['ratio']:.2f} ×")
    return "\n".join(said)


def main(arguments: list[str] | None = None) -> dict[str, Any] | None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("folder", type=Path, metavar="DIR")
    for name, value in (("clients", 10**6), ("rows", 10**8), ("samples", 5 * 10**7), ("rounds", 100), ("cohort", 100)):
        parse.add_argument(f"--{name}", type=int, default=value)
    parse.add_argument("--kill", type=int, default=55, help="the round after which the run is killed; 0: never")
    parse.add_argument(
        "--kill-reading", type=float, default=0, metavar="SECONDS", help="after which reading in is killed"
    )
    parse.add_argument("--beside", type=int, nargs=2, metavar=("CLIENTS", "ROWS"), help="of a small population")
    parse.add_argument("--memory", default="4GB", help="of reading in")
    parse.add_argument("--method", default="fedsubavg")
    parse.add_argument("--dense", action="store_true", help="keep the table in memory as a whole; else it is lazy")
    parse.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    options = parse.parse_args(arguments)
    if options.train is not None:
        train(
            options.folder / "data.fedsub",
            options.train,
            options.rounds,
            options.cohort,
            options.method,
            not options.dense,
        )
        return None
    found = measure(options)
    print(shown(found))
    return found


if __name__ == "__main__":
    main()
