"""Tables in shards: the bits of a run in which the driver holds them, also where shards are killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from worlds import click_data

import fedsub as fs
from fedsub.errors import ConfigError
from fedsub.round.shards import holders
from fedsub.round.shards.share import shares


def method_with(server: Any, *parts: fs.Part) -> fs.Method:
    local = fs.SGD(lr=0.3, local_steps=2, batch_size=4)
    return fs.Method(local=local, parts=parts, average=fs.OverHolders(), server=server, sampler=fs.Uniform(5))


@pytest.mark.parametrize(("rows", "count"), [(1, 1), (7, 3), (9, 3), (2, 4)])
def test_shares_cover_a_table_once(rows: int, count: int) -> None:
    every = np.arange(rows)
    found = [every[share.rows] for share in shares(count)]
    assert sorted(np.concatenate(found)) == list(range(rows))
    for share, mine in zip(shares(count), found, strict=True):
        assert share.size(rows) == len(mine)
        assert (share.places(every) == mine).all()
        assert (share.outer(share.inner(mine)) == mine).all()
        assert (share.inner(mine) == np.arange(len(mine))).all()


class Killer(fs.Callback):
    """Kills a shard after some rounds, without a word to anybody."""

    def __init__(self, rounds: tuple[int, ...]):
        self.rounds, self.killed = rounds, list[int]()

    def on_round(self, record: dict[str, Any]) -> None:
        if record["round"] in self.rounds:
            trainer: Any = self.now._trainer
            there = trainer.server.keeper.holders
            number = len(self.killed) % len(there)
            self.killed.append(there.processes[number])
            os.kill(self.killed[-1], signal.SIGKILL)


def final(clients: fs.Clients, method: Any, kind: str = "lr", **how: Any) -> fs.Result:
    torch.manual_seed(0)
    objective = getattr(fs.models, kind)(clients, "label")
    return fs.run(
        method, objective, clients, rounds=6, seed=5, engine="batched", evaluate=fs.Evaluate(every=2), **how
    )  # fmt: skip


def same(one: fs.Result, other: fs.Result) -> None:
    assert one.history == other.history
    assert repr(one.final) == repr(other.final)  # NaN is as it was
    for name, value in one.params.items():
        assert torch.equal(value, other.params[name]), name


@pytest.mark.parametrize(
    ("shards", "kills", "logged"),
    [
        (2, (3,), None),
        pytest.param(2, (2, 4), None, marks=pytest.mark.slow),
        pytest.param(1, (3,), 1, marks=pytest.mark.slow),
    ],
)
def test_a_killed_shard_comes_back_with_the_same_bits(
    shards: int, kills: tuple[int, ...], logged: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Momentum that rows catch up on, a mean of iterates; killed with its log, or after that was written down."""
    clients = click_data()
    method = method_with(fs.servers.TailMean(last=4, server=fs.servers.Adam(lr=0.05)))
    if logged is not None:
        monkeypatch.setattr(holders, "LOGGED", logged)
    killer = Killer(kills)
    same(final(clients, method), final(clients, method, shards=shards, callbacks=[killer]))
    assert len(set(killer.killed)) == len(kills)


@pytest.mark.slow
def test_what_parts_keep_by_rows_lies_in_the_shards() -> None:
    clients = click_data()
    method = method_with(fs.Add(), fs.ControlVariates())
    same(final(clients, method, "din"), final(clients, method, "din", shards=3))


class Stop(Exception):
    pass


class StopAfter(fs.Callback):
    def on_round(self, record: dict[str, Any]) -> None:
        if record["round"] == 3:
            raise Stop


@pytest.mark.parametrize(
    ("before", "after"),
    [(2, 3), *(pytest.param(*both, marks=pytest.mark.slow) for both in ((2, None), (None, 2), (3, 3)))],
)
def test_a_run_goes_on_with_another_number_of_shards(tmp_path: Path, before: int | None, after: int | None) -> None:
    """The checkpoint of round 2 is read; after that of round 4 a shard is killed, and begins with its part of that."""
    clients, out = click_data(), tmp_path / "run"
    method = method_with(fs.servers.Adam(lr=0.05), fs.ControlVariates())
    whole = final(clients, method)
    with pytest.raises(Stop):
        final(clients, method, shards=before, out=out, checkpoint_every=2, callbacks=[StopAfter()])
    assert (out / "shards").is_dir() == (before is not None)
    there = fs.load(out)
    assert there.round == 2
    assert {name: value.shape for name, value in there.params.items()} == {n: v.shape for n, v in whole.params.items()}
    killer = Killer((5,) if after is not None else ())
    same(
        whole, final(clients, method, shards=after, out=out, checkpoint_every=2, resume=True, callbacks=[killer])
    )  # fmt: skip
    assert len(killer.killed) == (after is not None)
    for name, value in fs.load(out).params.items():
        assert torch.equal(value, whole.params[name])


class Largest(fs.Part):
    """Divides by the largest value of all rows."""

    def combine(self, mean, total, state, round) -> None:
        largest = max(float(value.abs().max()) for value in mean["update"].values())
        for value in mean["update"].values():
            value.div_(largest)


@pytest.mark.parametrize(
    ("method", "shards", "said"),
    [
        (method_with(fs.Add(), Largest()), 2, "Largest changes means at the server"),
        (method_with(fs.Add()), 5, "shards=5 is more than the 4 rows of 'weights.t_slot"),
        (method_with(fs.Add()), 0, "shards must be"),
        (fs.methods.centralsgd(lr=0.1, batch_size=4), 2, "does not use"),
    ],
)
def test_what_shards_cannot_do_is_refused(method: Any, shards: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        final(click_data(), method, shards=shards)
