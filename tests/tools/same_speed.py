"""CPU time of a round in two trees of fedsub, taking turns: `python tests/tools/same_speed.py OLD NEW w1 batched`.

Two processes, one for each tree, play a few rounds in turn, so that what disturbs the machine disturbs both. Shown
are the median of the paired ratios new / old, with a bootstrap interval, and the ratio of the fastest turns. Both
processes are started again `--starts` times: where a process happens to lie in memory alone makes up to a tenth.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

WORKER = """
import sys, time, torch
torch.set_num_threads(1)
try:
    from fedsub.study.bench.contenders import Federated
    from fedsub.study.bench.workloads import WORKLOADS
except ImportError:
    from fedsub.bench.contenders import Federated
    from fedsub.bench.workloads import WORKLOADS
work = WORKLOADS[sys.argv[1]]
made = Federated(work, sys.argv[2])
number = 0
print("ready", flush=True)
for line in sys.stdin:
    begin = time.process_time()
    for _ in range(int(line)):
        number += 1
        made.round(number)
    print(time.process_time() - begin, flush=True)
"""


class Tree:
    """A process that plays rounds of one tree's fedsub when it is asked to."""

    def __init__(self, folder: Path, workload: str, engine: str):
        env = os.environ | {"PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, workload, engine], env=env, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def turn(self, rounds: int) -> float:
        """CPU seconds of so many rounds."""
        assert self.process.stdin is not None
        print(rounds, file=self.process.stdin, flush=True)
        return float(self._line())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def measure(old: Path, new: Path, workload: str, engine: str, *, turns: int, burst: int) -> np.ndarray:
    """CPU seconds a round [turns, 2], old and new."""
    trees = [Tree(old, workload, engine), Tree(new, workload, engine)]
    try:
        for tree in trees:
            tree.turn(2 * burst)  # warm up
        # Who begins changes from turn to turn.
        found = np.zeros((turns, 2))
        for turn in range(turns):
            for which in (0, 1) if turn % 2 else (1, 0):
                found[turn, which] = trees[which].turn(burst) / burst
        return found
    finally:
        for tree in trees:
            tree.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("workload")
    parser.add_argument("engine")
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--burst", type=int, default=5)
    parser.add_argument("--starts", type=int, default=3)
    asked = parser.parse_args()
    everything = []
    for start in range(asked.starts):
        found = measure(asked.old, asked.new, asked.workload, asked.engine, turns=asked.turns, burst=asked.burst)
        fastest = found.min(0) * 1e3
        ratio = np.median(found[:, 1] / found[:, 0])
        print(f"start {start}: median ratio {ratio:.3f}; fastest {fastest[0]:.3f} and {fastest[1]:.3f} ms", flush=True)
        everything.append(found)
    pairs = np.concatenate(everything)
    ratios = pairs[:, 1] / pairs[:, 0]
    drawn = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
    low, high = np.quantile(np.median(drawn, 1), [0.025, 0.975])
    best = np.min([f.min(0) for f in everything], 0)
    print(
        f"{asked.workload} {asked.engine}: new / old {np.median(ratios):.3f} [{low:.3f}, {high:.3f}], "
        f"fastest {best[1] / best[0]:.3f}, {len(ratios)} pairs"
    )


if __name__ == "__main__":
    main()
