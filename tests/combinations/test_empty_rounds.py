"""Rounds in which nobody takes part."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from slot_choices import DATA, ENGINES, LOCAL, SERVERS, Halt, goal_of
from worlds import equal, shared_model, trainer_for

import fedsub as fs
from fedsub.method import sampling


@ENGINES
@pytest.mark.parametrize("server", ["Add", "momentum", "Adam", "history", "torch"])
def test_empty_rounds_leave_the_model_as_it_is(engine: str, server: str, tmp_path: Path) -> None:
    """Also where a server's momentum would carry tables, and not dense parameters, on."""
    method = fs.Method(
        local=LOCAL, average=fs.OverClients(), server=SERVERS[server], sampler=sampling.Poisson(1)
    )  # fmt: skip
    trainer = trainer_for(method, goal_of(), DATA, engine)
    before = {n: v.clone() for n, v in shared_model(trainer, 0).items()}
    empty = []
    for number in range(1, 11):
        report = trainer.round(number)
        after = {n: v.clone() for n, v in shared_model(trainer, number).items()}
        assert equal(before, after) == (len(report.clients) == 0)
        if not len(report.clients):
            empty.append(number)
            assert math.isnan(report.loss)
            assert report.total_down == report.total_up == 0
        before = after
    assert 2 <= len(empty) <= 8
    # They are in the history, and a run goes on after them as if it had not stopped.
    options = {"rounds": 10, "engine": engine, "checkpoint_every": 2}
    result = fs.run(method, goal_of(), DATA, out=tmp_path / "a", **options)
    assert [r["round"] for r in result.history[1:] if not r["clients"]] == empty
    assert equal(result.params, before)
    with pytest.raises(InterruptedError):
        fs.run(method, goal_of(), DATA, out=tmp_path / "b", callbacks=[Halt()], **options)
    again = fs.run(method, goal_of(), DATA, out=tmp_path / "b", resume=True, **options)
    assert equal(again.params, result.params)
    assert (tmp_path / "a" / "metrics.jsonl").read_bytes() == (tmp_path / "b" / "metrics.jsonl").read_bytes()
