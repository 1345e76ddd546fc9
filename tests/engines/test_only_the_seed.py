"""Nothing but the seed changes a bit: neither workers nor chunks nor the global generator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from engine_checks import methods
from engine_modules import DATA, Noisy, objective
from worlds import bag, equal, item_data, trainer_for

import fedsub as fs
from fedsub.round.crew import processes
from fedsub.round.quiet import one_thread


@pytest.fixture(autouse=True)
def any_work_is_worth_a_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(processes, "SHORT", 0)
    with one_thread():  # as in every run
        yield


SETTINGS = pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("lr", "short batches"),
        ("lr", "epochs"),
        ("din", "short batches"),
        ("dropout_layernorm", "epochs"),
        ("narrow", "epochs"),
        ("lr", "adam"),
        ("din", "adam"),
        ("lr", "few clipped"),
        ("lr", "most clipped"),
    ],
)


def three_rounds(kind: str, how: str, chunk: int | None, workers: int):
    """(losses, parameters) after three rounds of eight clients."""
    clients = item_data() if kind == "lr" else DATA
    goal = bag(clients) if kind == "lr" else objective(kind)
    method = replace(methods()[how], sampler=fs.Uniform(8))
    trainer = trainer_for(method, goal, clients, "batched", chunk=chunk, workers=workers, seed=1)
    return [trainer.round(r).loss for r in (1, 2, 3)], trainer.params


@SETTINGS
def test_workers_change_no_bit(kind: str, how: str) -> None:
    losses, params = three_rounds(kind, how, 2, 1)
    again, same = three_rounds(kind, how, 2, 2)
    assert losses == again
    assert equal(params, same)


@SETTINGS
def test_chunks_change_no_bit(kind: str, how: str) -> None:
    losses, params = three_rounds(kind, how, 2, 1)
    for chunk in (3, 7, 8, *[1, None] * (kind == "lr")):
        again, same = three_rounds(kind, how, chunk, 1)
        assert losses == again, chunk
        assert equal(params, same), chunk


@SETTINGS
def test_chunks_change_no_more_than_rounding(kind: str, how: str) -> None:
    losses, params = three_rounds(kind, how, 3, 1)
    again, others = three_rounds(kind, how, 8, 1)
    assert losses == pytest.approx(again, rel=1e-6)
    for name, p in params.items():
        torch.testing.assert_close(p, others[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["din", "dropout_layernorm", "lstm_dropout"])
def test_workers_change_no_bit_in_the_serial_engine(kind: str) -> None:
    found = []
    for workers in (1, 2):
        trainer = trainer_for(methods()["epochs"], objective(kind), DATA, "serial", workers=workers)
        for number in (1, 2, 3):
            trainer.round(number)
        found.append(trainer.params)
    assert equal(*found)


@pytest.mark.parametrize(
    ("engine", "kind"),
    [("serial", "lstm_dropout"), ("serial", "dropout_layernorm"), ("batched", "dropout_layernorm")],
)
def test_the_seed_decides_everything(engine: str, kind: str) -> None:
    def params(seed: int):
        torch.rand(seed + 3)  # the global generator plays no role
        return fs.run(methods()["short batches"], objective(kind), DATA, rounds=3, engine=engine, seed=seed).params

    again = params(5)
    assert equal(params(5), again)
    assert not equal(params(6), again)


def test_other_random_numbers_are_seeded_too_whatever_the_workers() -> None:
    found = []
    for workers in (1, 1, 2):
        torch.rand(3)
        found.append(fs.run(methods()["short batches"], objective(Noisy), DATA, rounds=3, workers=workers).params)
    assert equal(found[0], found[1])
    assert equal(found[0], found[2])
