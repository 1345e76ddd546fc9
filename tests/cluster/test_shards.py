"""Tables in shards: the bits of a run in which the driver holds them, also where shards are killed."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest
import torch
from worlds import click_data

import fedsub as fs
from fedsub.errors import ConfigError
from fedsub.round.shards import holders
from fedsub.round.shards.share import shares

SLOTS: dict[str, Any] = {
    "local": fs.SGD(lr=0.3, local_steps=2, batch_size=4), "average": fs.OverHolders(), "server": fs.Add(),
    "sampler": fs.Uniform(5),
}  # fmt: skip


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
        there = self.now._trainer.server.keeper.holders
        if record["round"] in self.rounds:
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


def test_a_killed_shard_comes_back_with_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Momentum that rows catch up on, a mean of iterates; killed with its log, and after that was written down."""
    clients = click_data()
    server = fs.servers.TailMean(last=4, server=fs.servers.Adam(lr=0.05))
    method = fs.Method(**SLOTS | {"server": server})
    whole = final(clients, method)
    killer = Killer((2, 4))
    same(whole, final(clients, method, shards=2, callbacks=[killer]))
    assert len(set(killer.killed)) == 2
    monkeypatch.setattr(holders, "LOGGED", 1)
    killer = Killer((3,))
    same(whole, final(clients, method, shards=1, callbacks=[killer]))
    assert len(killer.killed) == 1


def test_what_parts_keep_by_rows_lies_in_the_shards() -> None:
    clients = click_data()
    method = fs.Method(**SLOTS, parts=(fs.ControlVariates(),))
    same(final(clients, method, "din"), final(clients, method, "din", shards=3))


class Largest(fs.Part):
    """Divides by the largest value of all rows."""

    def combine(self, mean, total, state, round) -> None:
        largest = max(float(value.abs().max()) for value in mean["update"].values())
        for value in mean["update"].values():
            value.div_(largest)


@pytest.mark.parametrize(
    ("method", "shards", "said"),
    [
        (fs.Method(**SLOTS, parts=(Largest(),)), 2, "Largest changes means at the server"),
        (fs.Method(**SLOTS), 5, "shards=5 is more than the 4 rows of 'weights.t_slot"),
        (fs.Method(**SLOTS), 0, "shards must be"),
        (fs.methods.centralsgd(lr=0.1, batch_size=4), 2, "does not use"),
    ],
)
def test_what_shards_cannot_do_is_refused(method: Any, shards: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        final(click_data(), method, shards=shards)
