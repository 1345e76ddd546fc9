"""fedsub beside other libraries: the same rounds of FedAvg, one process after the other, in one run.

    python experiments/peers/run.py --fedjax PYTHON --pfl PYTHON --blazefl PYTHON --flower PYTHON

PYTHON is the interpreter of an environment that has the library (README.md of this folder says how to make one); a
library that is not named is left out. CentralSGD and fedsub run in this one. In every workload all contenders take
turns; a round is all that the library does between two rounds' ends, set-up and the first two rounds left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fedsub.study.bench.workloads import WORKLOADS

HERE = Path(__file__).parent
ROUNDS = {"w1": 14, "w2": 5, "w3": 6}
TWO = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
CONTENDERS = (  # (of which environment, script, what goes before it and behind)
    ("", "central_sgd.py", (), ()),
    ("", "fedsub_rounds.py", (), ()),
    ("", "fedsub_rounds.py", (), ("workers",)),
    ("", "fedsub_rounds.py", (), ("compiled",)),
    ("fedjax", "fedjax_rounds.py", (), ()),
    ("pfl", "pfl_rounds.py", (), ()),
    ("pfl", "pfl_rounds.py", TWO, ()),
    ("blazefl", "blazefl_rounds.py", (), ()),
    ("flower", "flower_rounds.py", (), ()),
)


def write(folder: Path, name: str, rounds: int) -> None:
    load = WORKLOADS[name]
    np.save(folder / f"{name}.ids.npy", load.data.ids)
    np.save(folder / f"{name}.labels.npy", load.data.labels)
    np.save(folder / f"{name}.offsets.npy", load.data.offsets)
    about = {key: getattr(load, key) for key in ("clients", "cohort", "batch", "steps", "lr", "rows")}
    (folder / f"{name}.json").write_text(json.dumps({**about, "rounds": rounds}))


def play(python: str, script: str, before: tuple[str, ...], behind: tuple[str, ...], folder: Path, name: str) -> dict:
    command = [python, *before, str(HERE / script), str(folder), name, *behind]
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=600, check=False)
    told = [line for line in done.stdout.splitlines() if line.startswith("TOLD ")]
    if done.returncode or not told:
        last = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        return {"what": script, "failed": last[:200]}
    return json.loads(told[-1][5:])


def shown(name: str, found: list[dict]) -> list[str]:
    lines = [f"| {name} | wall ms a round, minimum (median) | CPU ms a round | × CentralSGD, wall | loss |",
             "| --- | --- | --- | --- | --- |"]  # fmt: skip
    told = {one["what"]: [o for o in found if o["what"] == one["what"]] for one in found}
    limit = min((min(one["wall"]) for one in told.get("CentralSGD", []) if "wall" in one), default=float("nan"))
    for what, turns in told.items():
        good = [one for one in turns if "wall" in one]
        if not good:
            lines.append(f"| {what} | failed: {turns[0]['failed']} | | | |")
            continue
        wall = [seconds for one in good for seconds in one["wall"]]
        cpu = min(one["cpu"] for one in good)
        times = f"{1e3 * min(wall):,.1f} ({1e3 * statistics.median(wall):,.1f})"
        lines.append(f"| {what} | {times} | {1e3 * cpu:,.1f} | {min(wall) / limit:.2f} | {good[0]['loss']:.4f} |")
    return lines


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for library in ("fedjax", "pfl", "blazefl", "flower"):
        ask.add_argument(f"--{library}", help=f"the Python of an environment with {library}")
    ask.add_argument("--workloads", default="w1,w2,w3")
    ask.add_argument("--turns", type=int, default=1)
    ask.add_argument("--rounds", type=int, help=f"default: {ROUNDS}, of which two are warm-up")
    ask.add_argument("--compiled", action="store_true", help="fedsub with torch.compile, too, which takes its time")
    ask.add_argument("--only", help="scripts to run, such as central_sgd,fedsub_rounds")
    given = ask.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name in given.workloads.split(","):
            write(folder, name, given.rounds or ROUNDS[name])
            found = []
            for _ in range(given.turns):
                for library, script, before, behind in CONTENDERS:
                    python = getattr(given, library) if library else sys.executable
                    left_out = given.only and Path(script).stem not in given.only.split(",")
                    if (
                        python is None
                        or left_out
                        or ("compiled" in behind and not (given.compiled and WORKLOADS[name].compiles))
                    ):
                        continue
                    found.append(play(python, script, before, behind, folder, name))
                    print(
                        f"{time.monotonic() - begin:5.0f} s  {name}  {found[-1]['what']}", file=sys.stderr, flush=True
                    )
            print("\n".join(shown(name, found)), flush=True)
            print(flush=True)


if __name__ == "__main__":
    main()
