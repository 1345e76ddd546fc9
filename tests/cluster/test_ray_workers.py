"""Workers of a Ray cluster: the same bits as in one process, whoever trains, dies or is late."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from worlds import bag, choice_for, equal, item_data

import fedsub as fs
from fedsub.errors import ConfigError, MethodError
from fedsub.method.training import Options
from fedsub.objective.problem import Problem
from fedsub.round.cluster import connect
from fedsub.round.crew.distributed import Cluster
from fedsub.round.prepare import Trainer, prepare
from fedsub.round.quiet import one_thread

DATA = item_data((3, 7, 4, 9, 2, 5, 8, 3, 6, 4, 5, 6))
METHOD = fs.methods.scaffold(lr=0.1, local_steps=3, batch_size=4, clients_per_round=8, server="adam")
HERE = os.getpid()
TWO = fs.Ray(workers=2)


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    pytest.importorskip("ray", reason="ray is not installed")
    with one_thread():
        ray = connect("local", cpus=4)
        yield ray
        ray.shutdown()


def trainer_on(engine: str | fs.Ray, objective: fs.Objective | None = None, method: fs.Method = METHOD) -> Trainer:
    problem = Problem.bind(objective or bag(DATA), DATA)
    options = Options(engine=engine, chunk=None if "serial" in (engine, getattr(engine, "engine", "")) else 2)
    trainer = prepare(method, problem, problem.params(), options).trainer
    assert isinstance(trainer, Trainer)
    return trainer


def remembered(trainer: Trainer, rounds: int = 3) -> dict[str, torch.Tensor]:
    for number in range(1, rounds + 1):
        trainer.round(number)
    trainer.close()
    return trainer.params | trainer.server.small() | trainer.memory.tensors


def test_a_killed_worker_changes_no_bit(ray: Any) -> None:
    alone = remembered(trainer_on("batched"), 4)
    trainer = trainer_on(TWO)
    cluster = trainer.here.crew
    assert isinstance(cluster, Cluster)
    send, sent = cluster.send, []

    def killing(worker: int, group: int) -> None:
        send(worker, group)
        sent.append(group)
        if len(sent) == 6:  # in the second round
            os.kill(cluster._about[worker]["pid"], 9)  # type: ignore[index]

    cluster.send = killing  # type: ignore[method-assign]
    notes = [note for number in (1, 2, 3) for note in trainer.round(number).notes]
    assert any("ended (ActorDiedError); what it did is done again" in note for note in notes), notes
    begin = time.monotonic()
    while cluster._coming and time.monotonic() - begin < 60:  # the other one goes on alone until then
        time.sleep(0.2)
        ready = ray.wait(list(cluster._coming), timeout=0)[0]
        [cluster._welcome(ref) for ref in ready]
    trainer.round(4)
    assert equal(alone, remembered(trainer, 0))
    (said,) = trainer.helped()
    assert said.startswith("clients trained: ")
    assert said.endswith(" 32"), said


@pytest.mark.slow
def test_serial_workers_and_what_goes_wrong_in_them(ray: Any) -> None:
    def loss(output: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if os.getpid() != HERE and float(batch["label"].sum()) < 0:
            raise ValueError("not there")
        return (output - batch["label"]) ** 2

    good = replace(bag(DATA), loss=loss)
    assert equal(remembered(trainer_on("serial", good)), remembered(trainer_on(replace(TWO, engine="serial"), good)))

    def bad(output: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if os.getpid() != HERE:
            raise ValueError("not there")
        return output

    trainer = trainer_on(fs.Ray(workers=1, engine="serial"), replace(bag(DATA), loss=bad))
    with pytest.raises(ValueError, match="not there"):
        trainer.round(1)
    trainer.close()


def test_who_is_late_counts_as_lost(ray: Any) -> None:
    def slow(output: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if os.getpid() != HERE and len(batch["label"]) == 2:  # only the client with two samples
            time.sleep(8)
        return (output - batch["label"]) ** 2

    method = replace(METHOD, sampler=fs.sampling.Everyone())
    trainer = trainer_on(fs.Ray(workers=2, engine="serial", deadline=3), replace(bag(DATA), loss=slow), method)
    report = trainer.round(1)
    late = report.clients[report.lost]
    assert 4 in late
    assert len(late) < len(DATA)
    assert any("left out" in note for note in report.notes)
    # What came is the round of those clients alone.
    problem, params, choice = choice_for(method, replace(bag(DATA), loss=slow), DATA, "serial")
    other = Trainer(problem, method, params, choice.engine, choice.plan)
    kept = other.here.reached

    def in_time(opened: Any) -> Any:
        opened, stays = kept(opened)
        stays = stays[~torch.isin(torch.from_numpy(stays), torch.from_numpy(late)).numpy()]
        return opened.server.narrow(opened, stays), stays

    other.here.reached = in_time  # type: ignore[method-assign]
    other.round(1)
    assert equal(remembered(other, 0), remembered(trainer, 0))


def test_refused_before_training(ray: Any) -> None:
    with pytest.raises(ConfigError, match=r"9 workers take a CPU each, and the cluster has 4"):
        trainer_on(fs.Ray(workers=9))
    secure = fs.methods.fedsubavg(lr=0.1, local_steps=1, secure="union:0.5", clients_per_round=6)
    with pytest.raises(MethodError, match="leave out deadline"):
        trainer_on(fs.Ray(deadline=1.0), method=secure)
