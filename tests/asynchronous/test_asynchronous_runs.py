"""Asynchronous runs beside synchronous ones, interrupted ones, and other engines: bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fleets import EQUAL, MIXED, interrupted, played, same

import fedsub as fs
from fedsub import Asynchronous
from fedsub.errors import CheckpointError, ConfigError, MethodError, NoUsableClient

COMMON: dict[str, Any] = dict(lr=0.3, local_steps=3, batch_size=3, clients_per_round=5)
METHODS = {
    "heat": lambda: fs.methods.fedsubavg(**COMMON),
    "adam, pulled": lambda: fs.methods.fedsubavg(**COMMON, server="adam", mu=0.1, clip_norm=1.0),
    "momentum": lambda: fs.methods.fedavgm(**COMMON),
    "signs with feedback": lambda: fs.methods.fedavg(**COMMON, codec="ef-sign"),
    "few values": lambda: fs.methods.fedsubavg(**COMMON, codec="topk:0.3"),
    "own layer": lambda: fs.methods.fedper(**COMMON, personal=["out.*"]),
    "normalised": lambda: fs.methods.fednova(**COMMON),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_full_buffer_of_all_who_train_is_a_round(name: str) -> None:
    method = METHODS[name]()
    rounds = played(method)
    for how in (
        Asynchronous(method, buffer=5, at_once=False),
        Asynchronous(method, buffer=5, at_once=False, staleness="constant", most_stale=0),
    ):
        assert same(rounds, played(how))
    equal = played(Asynchronous(method, buffer=5), devices=EQUAL)
    assert same(rounds, equal)
    assert [r["loss"] for r in equal.history] == [r["loss"] for r in rounds.history]
    assert [(r["down"], r["up"]) for r in equal.history] == [(r["down"], r["up"]) for r in rounds.history]
    assert not same(rounds, played(Asynchronous(method, buffer=2)))


def test_lost_clients_are_those_of_rounds() -> None:
    method = METHODS["heat"]()
    rounds = played(method, lost=0.3)
    found = played(Asynchronous(method, buffer=5, at_once=False), lost=0.3)
    assert sum(r["lost"] for r in rounds.history[1:]) > 2
    assert same(rounds, found)
    assert [(r["lost"], r["up"]) for r in found.history[1:]] == [(r["lost"], r["up"]) for r in rounds.history[1:]]


def test_whoever_is_too_late_is_told_to_stop() -> None:
    """Over-selection: seven are asked, the first five count."""
    method = METHODS["heat"]()
    found = played(Asynchronous(method, concurrency=7, buffer=5, at_once=False, most_stale=0))
    assert {(r["clients"], r["lost"], r["stalest"]) for r in found.history[1:]} == {(7, 2, 0.0)}
    waiting = played(Asynchronous(method, concurrency=7, buffer=7, at_once=False))
    assert found.clock()[6] < waiting.clock()[6]
    limited = played(Asynchronous(method, buffer=2, most_stale=1), rounds=20)
    assert max(r["stalest"] for r in limited.history[1:]) == 1
    assert sum(r["lost"] for r in limited.history[1:]) > 0


def test_a_deadline_ends_a_step() -> None:
    method = METHODS["heat"]()
    whole = played(Asynchronous(method, buffer=5, at_once=False))
    median = sorted(whole.clock()[n + 1] - whole.clock()[n] for n in range(6))[3] * 0.6
    found = played(Asynchronous(method, buffer=5, at_once=False, most_stale=0, deadline=median))
    assert any(0 < r["clients"] - r["lost"] < 5 for r in found.history[1:])
    assert found.clock()[6] < whole.clock()[6]


@pytest.mark.parametrize("name", ["adam, pulled", "signs with feedback", "own layer"])
def test_engines_workers_and_chunks_change_nothing(name: str) -> None:
    method = Asynchronous(METHODS[name](), buffer=2, concurrency=6)
    plain = played(method, engine="batched")
    assert same(plain, played(method, engine="batched", workers=2, chunk=1))
    serial = played(method, engine="serial")
    for key, value in serial.params.items():
        assert (value - plain.params[key]).abs().max() < 1e-5
    assert serial.clock() == plain.clock()


@pytest.mark.parametrize("name", ["adam, pulled", "signs with feedback", "own layer"])
@pytest.mark.parametrize("number", [1, 4, 7])
def test_resume_is_bit_identical(tmp_path: Path, name: str, number: int) -> None:
    method = Asynchronous(METHODS[name](), buffer=2, concurrency=6, most_stale=3)
    whole = played(method, rounds=9, lost=0.1)
    interrupted(tmp_path / "a", number, method, rounds=9, lost=0.1, checkpoint_every=3)
    again = played(method, rounds=9, lost=0.1, checkpoint_every=3, out=tmp_path / "a", resume=True)
    assert same(whole, again)
    assert again.history == whole.history


def test_devices_belong_to_the_run(tmp_path: Path) -> None:
    method = Asynchronous(METHODS["heat"](), buffer=2)
    played(method, out=tmp_path / "a")
    with pytest.raises(CheckpointError, match="devices"):
        played(method, out=tmp_path / "a", resume=True, devices=EQUAL)


REFUSED = {
    "draws cohorts": lambda: fs.methods.fedavg(**COMMON, sampler="by-size"),
    "began from the same model": lambda: fs.methods.scaffold(**COMMON),
    "cohorts that are drawn": lambda: fs.methods.fedavg(**COMMON, dp="local:clip=0.5,noise=4"),
    "secure sum": lambda: fs.methods.fedavg(**COMMON, secure="union:0.5"),
    "around a Method of clients": lambda: fs.methods.centralsgd(),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_needs_a_round_is_refused(why: str) -> None:
    with pytest.raises(MethodError, match=why):
        Asynchronous(REFUSED[why](), buffer=2)


def test_numbers_that_make_no_sense_are_refused() -> None:
    method = METHODS["heat"]()
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"buffer": 6, "at_once": False}, "never full"), ({"buffer": 0}, "buffer"), ({"most_stale": -1}, "most_stale"),
        ({"staleness": "sqrt"}, "staleness"), ({"deadline": 0.0}, "deadline"), ({"concurrency": 0}, "concurrency"),
    )  # fmt: skip
    for settings, why in wrong:
        with pytest.raises(MethodError, match=why):
            Asynchronous(method, **settings)
    with pytest.raises(ConfigError, match="clock of clients' devices"):
        played(Asynchronous(method, buffer=2), engine=fs.Ray(deadline=1.0))
    with pytest.raises(MethodError, match="only 12 clients"):
        played(Asynchronous(method, buffer=13))
    with pytest.raises(NoUsableClient, match="none answered"):
        played(Asynchronous(method, buffer=1), lost=0.999999)


def test_one_clock_for_rounds_and_for_what_equals_them(tmp_path: Path) -> None:
    """Live, from what was kept, and in the queue; a run without devices has none."""
    for name, lost in (("heat", 0.2), ("few values", 0.0)):
        method, out = METHODS[name](), tmp_path / name
        rounds = played(method, lost=lost, out=out)
        assert rounds.clock() == pytest.approx(fs.costs.estimated_seconds(out, MIXED), rel=1e-12)
        steps = played(Asynchronous(method, buffer=5, at_once=False), lost=lost)
        assert steps.clock() == pytest.approx(rounds.clock())
    interrupted(tmp_path / "again", 4, method, checkpoint_every=3)
    assert played(method, out=tmp_path / "again", resume=True).clock() == rounds.clock()
    assert played(method, devices=None).clock() == {}
    with pytest.raises(ConfigError, match="not a number of batches"):
        played(fs.methods.l2gd())
    with pytest.raises(ConfigError, match="in one place"):
        played(fs.methods.centralsgd())
