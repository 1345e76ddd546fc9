"""Real faults of a real cluster: workers, a node and the driver are killed; the model is that of a run in peace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from worlds import bag, click_data, equal, item_data

import fedsub as fs
from fedsub.data.shards import save_shards, some
from fedsub.errors import DataError
from fedsub.method.training import Options
from fedsub.objective.problem import Problem
from fedsub.round.crew.actors import DATA as HERE_IT_IS
from fedsub.round.crew.distributed import Cluster
from fedsub.round.prepare import Trainer, prepare
from fedsub.round.quiet import one_thread
from fedsub.study.bench.workloads import WORKLOADS, Workload

DATA = item_data(tuple(np.random.default_rng(3).integers(2, 12, 60).tolist()), items=40)
COMMON = {"lr": 0.1, "local_steps": 3, "batch_size": 4, "clients_per_round": 20}
ADAM = fs.methods.fedsubavg(**COMMON, server="adam")
SCAFFOLD = fs.methods.scaffold(**COMMON)
ROUNDS = 12


def trainer_on(
    engine: str | fs.Ray, method: fs.Method, data: fs.Clients = DATA, objective: fs.Objective | None = None
) -> Trainer:
    problem = Problem.bind(objective or bag(data), data)
    trainer = prepare(method, problem, problem.params(), Options(engine=engine, chunk=2)).trainer
    assert isinstance(trainer, Trainer)
    return trainer


def remembered(trainer: Trainer) -> dict[str, torch.Tensor]:
    return trainer.params | trainer.server.small() | trainer.memory.tensors


def played(engine: str | fs.Ray, method: fs.Method, rounds: int = ROUNDS) -> dict[str, torch.Tensor]:
    with one_thread():
        trainer = trainer_on(engine, method)
        for number in range(1, rounds + 1):
            trainer.round(number)
        trainer.close()
    return remembered(trainer)


def test_some_clients_are_the_same_clients() -> None:
    data = click_data()
    numbers = np.array([5, 2, 7])
    cut = some(data, numbers)
    for place, number in enumerate(numbers.tolist()):
        own = np.arange(data.samples)[data.offsets[number] : data.offsets[number + 1]]
        there = np.arange(cut.samples)[cut.offsets[place] : cut.offsets[place + 1]]
        before, after = data.gather(own, local=False), cut.gather(there, local=False)
        assert all(np.array_equal(before[name], after[name]) for name in before)
        assert all(np.array_equal(data.spaces[s].rows_of(number), cut.spaces[s].rows_of(place)) for s in data.spaces)


def test_parts_have_every_client_once(tmp_path: Path) -> None:
    parts = [fs.Clients.open(path) for path in save_shards(DATA, tmp_path, 7)]
    assert np.array_equal(np.concatenate([part.client_ids for part in parts]), DATA.client_ids)
    assert max(part.samples for part in parts) < DATA.samples / 7 + max(DATA.sizes)
    with pytest.raises(DataError, match="60 clients cannot be cut into 61 parts"):
        save_shards(DATA, tmp_path / "more", 61)


LR = WORKLOADS["w1"].scaled(80, 400, cohort=12, batch=4, steps=3)
DIN = WORKLOADS["w3"].scaled(40, 400, cohort=12, batch=4, steps=3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "method"),
    [(LR, replace(ADAM, sampler=fs.Uniform(12))), (DIN, replace(SCAFFOLD, sampler=fs.Uniform(12)))],
    ids=["logistic regression, FedSubAvg, Adam", "DIN, Scaffold"],
)
def test_any_number_of_workers_makes_the_same_model(cluster: Any, workload: Workload, method: fs.Method) -> None:
    found = []
    with one_thread():
        for engine in ("batched", *(fs.Ray(workers=count) for count in (1, 2, 4))):
            trainer = trainer_on(engine, method, workload.data.clients, workload.objective())
            for number in range(1, 51):
                trainer.round(number)
            trainer.close()
            found.append(remembered(trainer))
    for other in found[1:]:
        assert equal(found[0], other)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_worker_killed_at_any_moment(cluster: Any, seed: int) -> None:
    draw = np.random.default_rng(seed)
    with one_thread():
        trainer = trainer_on(fs.Ray(workers=2), SCAFFOLD)
        crew = trainer.here.crew
        assert isinstance(crew, Cluster)
        send, left = crew.send, [int(draw.integers(1, 10 * (ROUNDS - 2)))]

        def killing(worker: int, group: int) -> None:
            send(worker, group)
            left[0] -= 1
            if left[0] == 0:
                time.sleep(float(draw.uniform(0, 0.02)))
                os.kill(crew._about[int(draw.integers(2))]["pid"], signal.SIGKILL)  # type: ignore[index]

        crew.send = killing  # type: ignore[method-assign]
        notes = [note for number in range(1, ROUNDS + 1) for note in trainer.round(number).notes]
        trainer.close()
    assert any("what it did is done again" in note for note in notes)
    assert equal(played("batched", SCAFFOLD), remembered(trainer))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two nodes on this machine, each with a part of the data, started by hand as in docs/cluster.md."""
    ray = pytest.importorskip("ray", reason="ray is not installed")
    from ray.cluster_utils import Cluster as Nodes

    parts = save_shards(DATA, tmp_path_factory.mktemp("parts"), 2)
    before = os.environ.get(HERE_IT_IS)
    nodes = Nodes()
    for part in parts:
        os.environ[HERE_IT_IS] = str(part)
        nodes.add_node(num_cpus=2, include_dashboard=False, object_store_memory=200_000_000)
    os.environ.pop(HERE_IT_IS)
    nodes.wait_for_nodes()
    nodes.connect(namespace="fedsub")
    yield nodes
    ray.shutdown()
    nodes.shutdown()
    if before is not None:
        os.environ[HERE_IT_IS] = before


@pytest.mark.slow
def test_both_nodes_train_the_clients_that_they_have(cluster: Any) -> None:
    with one_thread():
        trainer = trainer_on(fs.Ray(workers=2), ADAM)
        for number in range(1, ROUNDS + 1):
            trainer.round(number)
        crew = trainer.here.crew
        assert isinstance(crew, Cluster)
        (first, middle), (again, last) = sorted(about["span"] for about in crew._about if about)
        counts = list(crew.trained.values())
        trainer.close()
    assert (first, middle, last) == (0, again, len(DATA))
    assert sum(counts) == 20 * ROUNDS
    assert min(counts) > 20 * ROUNDS / 4


@pytest.mark.slow
def test_a_node_killed_in_the_middle(cluster: Any) -> None:
    with one_thread():
        trainer = trainer_on(fs.Ray(workers=2), SCAFFOLD)
        notes = []
        for number in range(1, ROUNDS + 1):
            if number == 4:
                other = next(n for n in cluster.list_all_nodes() if n is not cluster.head_node)
                cluster.remove_node(other, allow_graceful=False)
            notes += trainer.round(number).notes
        trainer.close()
    assert any("what it did is done again" in note for note in notes)
    assert equal(played("batched", SCAFFOLD), remembered(trainer))


SCRIPT = """
import sys
sys.path[:0] = {path!r}
import fedsub as fs
from test_ray_faults import DATA, SCAFFOLD
from worlds import bag
if __name__ == "__main__":
    fs.run(SCAFFOLD, bag(DATA), DATA, rounds=40, engine=fs.Ray(workers=2), chunk=2, out={out!r}, resume=True,
           checkpoint_every=3, evaluate=fs.Evaluate(every=40))
"""


@pytest.mark.slow
def test_the_driver_killed_and_the_run_resumed(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(path=paths, out=str(tmp_path / "run")))
    first = subprocess.Popen([sys.executable, str(script)])
    saved = tmp_path / "run" / "checkpoints"
    begin = time.monotonic()
    while not (saved.is_dir() and len(list(saved.iterdir())) >= 2):
        assert first.poll() is None, "it ended before it was killed"
        assert time.monotonic() - begin < 120
        time.sleep(0.01)
    first.kill()
    first.wait()
    assert not (tmp_path / "run" / "result.json").exists()
    subprocess.run([sys.executable, str(script)], check=True, timeout=300)
    peace = fs.run(SCAFFOLD, bag(DATA), DATA, rounds=40, engine="batched", chunk=2, out=tmp_path / "peace",
                   checkpoint_every=3, evaluate=fs.Evaluate(every=40))  # fmt: skip
    assert peace.params is not None
    assert equal(fs.load(tmp_path / "run").params, peace.params)
    events = (tmp_path / "run" / "events.jsonl").read_text()
    assert "resumed after round" in events
