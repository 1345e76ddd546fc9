"""Numbers that a part keeps at the server and sends to all who train: `Part.sent_numbers`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest
from worlds import bag, item_data, trainer_for

import fedsub as fs
from fedsub.errors import MethodError
from fedsub.round.schema import Length, Schema
from fedsub.testing import check_part


@dataclass(frozen=True)
class Fade(fs.Part):
    """Updates times a factor of the server's, which follows the mean number of local steps."""

    sent_numbers = ("factor",)
    numbers = ("steps",)

    def first_number(self, name: str) -> float:
        return 0.75

    def finish(self, message: fs.Message, params: fs.Tree, work: fs.Work) -> None:
        factor = work.numbers[self.key]["factor"]
        message.trees["update"] = {name: value * factor for name, value in message.trees["update"].items()}
        assert work.steps is not None
        message.numbers[f"{self.key}.steps"] = work.steps

    def next_numbers(self, numbers: Mapping[str, float], total: fs.Total, round: int) -> dict[str, float]:
        return {"factor": 0.5 * numbers["factor"] + 0.1 * total.numbers["fade.steps"]}


@dataclass(frozen=True)
class Odd(Fade):
    name: str = "factor"
    value: float = math.nan

    def next_numbers(self, numbers: Mapping[str, float], total: fs.Total, round: int) -> dict[str, float]:
        return {self.name: self.value}


def method(part: fs.Part) -> fs.Method:
    return fs.Method(
        local=fs.SGD(lr=0.2, local_steps=3, batch_size=4), parts=(part,), average=fs.OverClients("samples"),
        server=fs.Add(), sampler=fs.Everyone(),
    )  # fmt: skip


def test_they_are_the_same_in_every_engine_and_process() -> None:
    check_part(Fade())
    check_part(Fade(), fs.Prox(0.1))


def test_they_are_sent_in_rounds_over_a_secure_sum() -> None:
    check_part(Fade(), fs.SecureSum(2.0))


def test_they_follow_what_clients_tell() -> None:
    clients = item_data()
    result = fs.run(method(Fade()), bag(clients, dim=2), clients, rounds=3)
    told = [record["fade_factor"] for record in result.history[1:]]
    assert told == [0.75, 0.5 * 0.75 + 0.1 * 3, 0.5 * (0.5 * 0.75 + 0.1 * 3) + 0.1 * 3]


def test_bytes() -> None:
    """A float64 and the name of a number down; a question of the loss has none."""
    trainer = trainer_for(method(Fade()), bag(item_data(), dim=2), item_data(), "serial")
    plain = Schema((), trainer.server.params, trainer.server.population.tables)
    own = trainer.server.schema
    counts = {space: np.zeros(1, np.int64) for space in own.spaces}
    names = {field.name for field in own.down()} - {field.name for field in plain.down()}
    assert names == {"number/fade.factor"}
    assert own.down(probe=True) == plain.down(probe=True)
    more = Length(own.down()).of(counts, 1) - Length(plain.down()).of(counts, 1)
    assert more[0] >= 8 + len("number/fade.factor")


@pytest.mark.parametrize(("part", "why"), [(Odd(), "no finite number"), (Odd("other", 1.0), "does not name")])
def test_a_number_that_makes_no_sense_is_refused(part: fs.Part, why: str) -> None:
    clients = item_data()
    with pytest.raises(MethodError, match=why):
        fs.run(method(part), bag(clients, dim=2), clients, rounds=1)
