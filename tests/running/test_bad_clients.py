"""Clients that fail: bad updates are left out and reported, clients drop out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from worlds import bag, item_data

import fedsub as fs
from fedsub.disk.files import JsonLines
from fedsub.errors import NoUsableClient


class Scaled(nn.Module):
    """A logit that multiplies by the root of a value: a negative value makes NaN."""

    def __init__(self, rows: int):
        super().__init__()
        self.emb, self.w = nn.Embedding(rows, 2), nn.Parameter(torch.ones(2))

    def forward(self, batch):
        return (self.emb(batch["ids"]).sum(1) * self.w).sum(1) * batch["value"].sqrt()


def poisoned(bad=(2,)) -> tuple[fs.Objective, fs.Clients]:
    """Six clients of four samples; those in ``bad`` have values whose root is NaN. Client c alone holds row c."""
    draw = np.random.default_rng(0)
    owner = np.repeat(np.arange(6), 4)
    ids = np.stack([owner, draw.integers(6, 12, 24)], 1)
    value = np.where(np.isin(owner, bad), -1.0, 1.0)
    clients = fs.Clients.from_arrays(
        {"ids": ids, "value": value, "label": draw.integers(0, 2, 24)},
        client=np.array([f"user {c}" for c in owner]),
        ids=["ids"],
        label="label",
        values=["value"],
        sizes={"ids": 12},
    )
    torch.manual_seed(0)
    return fs.Objective(Scaled(12), fs.losses.binary("label"), {"emb.weight": "ids"}), clients


@pytest.mark.parametrize("engine", ["serial", "batched"])
@pytest.mark.parametrize("name", ["fedavg", "fedsubavg", "fedprox", "sampled_heat"])
def test_a_bad_update_is_left_out_and_reported(name: str, engine: str) -> None:
    goal, clients = poisoned()
    make = fs.methods.CATALOGUE[name].make
    method = make(lr=0.1, local_steps=3, batch_size=2, clients_per_round=None, weighting="clients")
    result = fs.run(method, goal, clients, rounds=3, engine=engine, evaluate=fs.Evaluate(every=99))
    assert result.engine == engine
    assert [r["rejected"] for r in result.history[1:]] == [1, 1, 1]
    assert all(np.isfinite(r["loss"]) for r in result.history[1:])
    assert all(torch.isfinite(p).all() for p in result.params.values())
    start = goal.module.get_parameter("emb.weight").detach()
    assert torch.equal(result.params["emb.weight"][2], start[2])  # the row that only client 2 holds
    assert not torch.equal(result.params["emb.weight"][1], start[1])
    assert sum("left out 1 update(s)" in e and "user 2" in e for e in result.events) == 3


@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_leaving_out_is_as_if_the_client_had_not_come(engine: str) -> None:
    goal, clients = poisoned()
    method = fs.methods.fedavg(lr=0.1, local_steps=3, batch_size=2, clients_per_round=None, batches="ordered")
    with_bad = fs.run(method, goal, clients, rounds=1, engine=engine).params
    from fedsub.data.split import select

    without = fs.run(method, goal, select(clients, [0, 1, 3, 4, 5]), rounds=1, engine=engine).params
    for name, p in without.items():
        torch.testing.assert_close(with_bad[name], p, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_bad_updates_may_stop_the_run(engine: str) -> None:
    goal, clients = poisoned()
    method = fs.methods.fedavg(lr=0.1, local_steps=2, batch_size=2, clients_per_round=None)
    with pytest.raises(NoUsableClient, match="user 2 found NaN or infinity"):
        fs.run(method, goal, clients, rounds=2, engine=engine, on_bad_update="raise")


@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_nobody_usable(engine: str) -> None:
    goal, clients = poisoned(bad=range(6))
    method = fs.methods.fedavg(lr=0.1, local_steps=2, batch_size=2, clients_per_round=3)
    with pytest.raises(NoUsableClient) as caught:
        fs.run(method, goal, clients, rounds=2, engine=engine)
    text = str(caught.value)
    assert "Round 1" in text
    assert "0 were lost, 3 found NaN or infinity" in text
    assert "lower lr" in text


def test_clients_that_drop_out(tmp_path: Path) -> None:
    clients = item_data((4,) * 40)
    method = fs.methods.fedsubavg(lr=0.1, local_steps=2, clients_per_round=30)
    result = fs.run(method, bag(clients), clients, rounds=20, lost=0.3, engine="serial", out=tmp_path / "r")
    lost = [r["lost"] for r in result.history[1:]]
    assert abs(sum(lost) - 0.3 * 600) < 4 * (600 * 0.21) ** 0.5
    assert len(set(lost)) > 1
    traffic = JsonLines.read(tmp_path / "r" / "traffic.jsonl")
    for record, row in zip(result.history[1:], traffic, strict=True):
        assert record["clients"] == len(row["clients"]) == 30
        assert len(row.get("lost", [])) == record["lost"]
        gone = [up for k, up in enumerate(row["up"]) if k in row.get("lost", [])]
        assert all(0 < up < min(set(row["up"]) - set(gone)) for up in gone)  # it asked for its rows, and no more
        assert all(down > 0 for down in row["down"])  # it was sent the submodel all the same
        assert (sum(row["down"]), sum(row["up"])) == (record["down"], record["up"])


def test_everybody_drops_out() -> None:
    clients = item_data()
    method = fs.methods.fedavg(clients_per_round=1)
    with pytest.raises(NoUsableClient, match="of 1 clients none delivered; 1 were lost"):
        fs.run(method, bag(clients), clients, rounds=50, lost=0.9, engine="serial")
