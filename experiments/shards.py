"""Rounds of which the tables lie in shards, beside rounds whose tables the driver holds; both take turns.

    python experiments/shards.py w3 --shards 2 --turns 10

Whole rounds by the clock: FedSubAvg on a workload of `fedsub bench`, one process that trains.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

from fedsub.method.training import Options
from fedsub.objective.problem import Problem
from fedsub.round.prepare import prepare
from fedsub.round.quiet import one_thread
from fedsub.study.bench.contenders import federated_method
from fedsub.study.bench.workloads import WORKLOADS
from fedsub.trees import digest_of

WARM_UP = 2


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("workload", choices=list(WORKLOADS))
    asked.add_argument("--shards", type=int, default=2)
    asked.add_argument("--turns", type=int, default=10)
    given = asked.parse_args()
    workload = WORKLOADS[given.workload]
    trainers = {}
    for name, shards in (("driver", None), (f"{given.shards} shards", given.shards)):
        problem = Problem.bind(workload.objective(), workload.data.clients)
        options = Options(engine="batched", shards=shards)
        trainers[name] = prepare(federated_method(workload), problem, problem.params(), options).trainer
        trainers[name].state.tracking = False
    seconds: dict[str, list[float]] = {name: [] for name in trainers}
    for number in range(1, WARM_UP + given.turns + 1):
        for name, trainer in trainers.items():
            begin = time.perf_counter()
            trainer.round(number)
            seconds[name].append(time.perf_counter() - begin)
    digests = set()
    for trainer in trainers.values():
        trainer.settle(WARM_UP + given.turns)
        digests.add(digest_of(trainer.model(WARM_UP + given.turns)))
        trainer.close()
    driver, shards = (median(spent[WARM_UP:]) for spent in seconds.values())
    for name, spent in seconds.items():
        print(f"{name}: best {min(spent[WARM_UP:]):.4f} s, median {median(spent[WARM_UP:]):.4f} s a round")
    print(f"shards / driver: {shards / driver:.2f}; {'the same bits' if len(digests) == 1 else 'other bits'}")


if __name__ == "__main__":
    with one_thread():
        main()
