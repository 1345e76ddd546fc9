"""Rates over rounds."""

from __future__ import annotations

import math

import pytest
from known_answers import (
    ENGINES,
    EVERYONE,
    slopes,
    variates,
    x_of,
)
from worlds import there, trainer_for

import fedsub as fs
from fedsub.errors import MethodError
from fedsub.method.spelling import schedule as parse


def test_schedules_by_hand() -> None:
    exponential, diminishing, cosine, longer = (
        there(parse(text)) for text in ("exponential:0.9", "diminishing:10", "cosine:4", "cosine:5")
    )
    assert [exponential.factor(r) for r in (1, 2, 3)] == pytest.approx([1, 0.9, 0.81])
    assert [diminishing.factor(r) for r in (1, 2, 11)] == pytest.approx([1, 10 / 11, 0.5])
    assert [cosine.factor(r) for r in (1, 2, 3, 4, 9)] == pytest.approx([1, 0.75, 0.25, 0, 0])
    fifth = [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2, 0, 0]
    assert [longer.factor(r) for r in range(1, 7)] == pytest.approx(fifth)
    floored = fs.schedules.Cosine(3, floor=0.2)
    assert [floored.factor(r) for r in (1, 2, 3, 4)] == pytest.approx([1, 0.6, 0.2, 0.2])
    assert fs.schedules.Cosine(1, floor=0.2).factor(1) == 1  # a single round, at the full rate
    assert parse(None) is None
    assert parse("constant") is None
    for text in ("cosine:x", "linear:3", "exponential:1.5", "diminishing:-1"):
        with pytest.raises(MethodError):
            parse(text)


@ENGINES
@pytest.mark.parametrize("schedule", ["exponential:0.5", "diminishing:2", "cosine:5"])
def test_the_schedule_sets_a_rounds_rate(engine: str, schedule: str) -> None:
    goal, clients = slopes([[1.0], [1.0]])
    method = fs.methods.fedavg(lr=0.1, local_steps=3, batch_size=1, schedule=schedule, **EVERYONE)
    total = sum(there(parse(schedule)).factor(r) for r in range(1, 5))
    assert x_of(method, goal, clients, 4, engine=engine) == pytest.approx(0.25 - 0.3 * total, rel=1e-12)
    # Scaffold reads gradients off the path with the round's own rate.
    trainer = trainer_for(fs.methods.scaffold(lr=0.1, local_steps=3, batch_size=1, schedule=schedule, **EVERYONE),
                          goal, clients, engine)  # fmt: skip
    for number in (1, 2, 3):
        trainer.round(number)
        assert float(variates(trainer)[0]["x"]) == pytest.approx(1.0, rel=1e-12)
