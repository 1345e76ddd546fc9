"""What surrounds the rounds of a run on a small model: set-up, evaluation, files.

    python experiments/whole_run.py                       # this fedsub
    python experiments/whole_run.py --beside OTHER/src    # and that of another checkout, in turn

Workload w1 of `fedsub bench`, 100 rounds of FedSubAvg with the default evaluation and checkpoints, test data and a run
directory, in a process of its own each. CPU seconds of one thread: of all of `fs.run`, of the rounds within it, and of
starting Python with what the command line imports. The minimum and the median over turns, which are taken in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

CHILD = """
import os, sys, time
import fedsub as fs, fedsub.running.run
from fedsub.round.prepare import Trainer
imported = time.process_time()
folder, rounds, turns = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
from fedsub.study.bench.workloads import WORKLOADS
w = WORKLOADS["w1"] if isinstance(WORKLOADS, dict) else next(w for w in WORKLOADS if w.name == "w1")
data = folder + "/w1.fedsub"
if not os.path.exists(data):
    w.data.clients.save(data)
train, test = fs.Clients.open(data).split(0.8)
method = fs.methods.fedsubavg(clients_per_round=w.cohort, batch_size=w.batch, local_steps=w.steps, lr=w.lr)
spent, one = [], Trainer.round
def timed(self, number):
    begin = time.process_time()
    try:
        return one(self, number)
    finally:
        spent.append(time.process_time() - begin)
Trainer.round = timed
found = []
for turn in range(turns + 1):
    spent.clear()
    wall, begin = time.perf_counter(), time.process_time()
    out = f"{folder}/{os.getpid()}-{turn}"
    done = fs.run(method, w.objective(), train, test=test, rounds=rounds, engine="batched", out=out)
    whole, wall = time.process_time() - begin, time.perf_counter() - wall
    if turn:  # the first one also imports
        found.append({"whole": whole, "rounds": sum(spent), "around": whole - sum(spent), "wall": wall})
import json
print(json.dumps({"import": imported, "runs": found, "auc": done.final["test"]["auc"]}))
"""


def child(source: str, folder: str, rounds: int, runs: int) -> dict:
    settings = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CHILD, folder, str(rounds), str(runs)]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("--beside", help="the folder src of another checkout")
    ask.add_argument("--rounds", type=int, default=100)
    ask.add_argument("--turns", type=int, default=3)
    ask.add_argument("--runs", type=int, default=3, help="runs of a turn")
    given = ask.parse_args()
    sources = {"this": str(Path(__file__).parents[1] / "src")}
    if given.beside:
        sources = {"before": given.beside, **sources}
    found: dict[str, list[dict]] = {name: [] for name in sources}
    started: dict[str, list[float]] = {name: [] for name in sources}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(given.turns):
            for name, source in sources.items():
                said = child(source, folder, given.rounds, given.runs)
                found[name] += said["runs"]
                started[name].append(said["import"])
    print(f"| CPU s, minimum (median) of {given.turns * given.runs} runs | whole | rounds | around | wall | start |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, runs in found.items():
        cells = [f"{min(v):.3f} ({statistics.median(v):.3f})"
                 for v in ([one[key] for one in runs] for key in ("whole", "rounds", "around", "wall"))]  # fmt: skip
        print(f"| {name} | {' | '.join(cells)} | {min(started[name]):.2f} |")


if __name__ == "__main__":
    main()
