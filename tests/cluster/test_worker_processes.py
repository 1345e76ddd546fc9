"""Workers in processes of this machine: what goes wrong in them changes no bit, or says so here."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from worlds import bag, equal, item_data, trainer_for

import fedsub as fs
from fedsub.errors import RunError
from fedsub.round.crew import processes
from fedsub.round.crew.processes import Forked, Processes
from fedsub.round.prepare import Trainer
from fedsub.round.quiet import one_thread

DATA = item_data((3, 7, 4, 9, 2, 5, 8, 3, 6, 4, 5, 6))
METHOD = fs.methods.scaffold(lr=0.1, local_steps=3, batch_size=4, clients_per_round=8)
HERE = os.getpid()


@pytest.fixture(autouse=True)
def any_work_is_worth_a_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(processes, "SHORT", 0)
    with one_thread():  # as in every run
        yield


def trained(engine: str, workers: int, method: fs.Method = METHOD, rounds: int = 3) -> Trainer:
    chunk = 2 if engine == "batched" else None
    trainer = trainer_for(method, bag(DATA), DATA, engine, workers=workers, chunk=chunk)
    for number in range(1, rounds + 1):
        trainer.round(number)
    return trainer


def remembered(trainer: Trainer) -> dict[str, torch.Tensor]:
    return trainer.params | trainer.server.small() | trainer.memory.tensors


@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_three_processes_keep_what_one_keeps(engine: str) -> None:
    alone, together = trained(engine, 1), trained(engine, 3)
    crew = together.here.crew
    assert isinstance(crew, Processes)
    assert crew._pool is not None, "nobody was asked"
    assert equal(remembered(alone), remembered(together))
    processes = [worker.process for worker in crew._pool._workers]
    together.close()
    assert not any(process.is_alive() for process in processes)


@pytest.mark.parametrize("nth", [0, 1, 4])
def test_a_killed_worker_costs_its_groups_and_no_bit(nth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    send, sent = Forked.send, []

    def killing(self: Forked, worker: int, group: int) -> None:
        send(self, worker, group)
        sent.append(group)
        if len(sent) == nth + 1:
            os.kill(self._workers[worker].process.pid or 0, signal.SIGKILL)

    monkeypatch.setattr(Forked, "send", killing)
    trainer = trained("batched", 2)
    assert len(sent) > len(set(sent))
    assert equal(remembered(trained("batched", 1)), remembered(trainer))
    trainer.close()


def test_what_a_worker_raises_is_raised_here() -> None:
    def loss(output: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if os.getpid() != HERE:
            raise ValueError("not here")
        return (output - batch["label"]) ** 2

    goal = replace(bag(DATA), loss=loss)
    trainer = trainer_for(METHOD, goal, DATA, "serial", workers=2)
    with pytest.raises(ValueError, match="not here"):
        trainer.round(1)
    trainer.close()


def test_clients_that_end_every_worker_are_named() -> None:
    def loss(output: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if os.getpid() != HERE:
            os._exit(1)
        return (output - batch["label"]) ** 2

    goal = replace(bag(DATA), loss=loss)
    trainer = trainer_for(METHOD, goal, DATA, "serial", workers=2)
    with pytest.raises(RunError, match=r"The clients \d to \d of a cohort ended 5 workers"):
        trainer.round(1)
    trainer.close()
