"""The bytes of a run, by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from worlds import bag, envelope, item_data

import fedsub as fs
from fedsub.disk.files import JsonLines


@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_bytes_by_hand(tmp_path: Path, engine: str) -> None:
    """Ids travel up once, compactly; rows and dense parameters both ways, in messages with a head and names."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Embedding(9, 3), nn.Embedding(9, 1, dtype=torch.float64)  # one space
            self.c = nn.Embedding(5, 2)
            self.out = nn.Linear(5, 1)

        def forward(self, batch):
            x = torch.cat([self.a(batch["x"]), self.c(batch["y"])], -1)
            return self.out(x).squeeze(-1) + self.b(batch["x"]).squeeze(-1).float()

    clients = fs.Clients.from_arrays(
        {"x": [1, 2, 1, 8, 8], "y": [0, 0, 3, 4, 4], "label": [0, 1, 0, 1, 0]},
        offsets=[0, 3, 5],
        ids=["x", "y"],
        label="label",
        sizes={"x": 9, "y": 5},
    )
    goal = fs.Objective(Two(), fs.losses.binary("label"), {"a.weight": "x", "b.weight": "x", "c.weight": "y"})
    method = fs.methods.fedsubavg(clients_per_round=None, local_steps=2)
    result = fs.run(method, goal, clients, rounds=1, engine=engine, out=tmp_path / "r")
    dense = 4 * 6
    # client 0 holds x {1, 2} and y {0, 3}; client 1 holds x {8} and y {4}
    first = 2 * (3 * 4 + 8) + 2 * 2 * 4 + dense
    second = (3 * 4 + 8) + 2 * 4 + dense
    (row,) = JsonLines.read(tmp_path / "r" / "traffic.jsonl")

    def tree(name: str) -> dict[str, int]:
        shapes = {"a.weight": 2, "b.weight": 2, "c.weight": 2, "out.weight": 2, "out.bias": 1}
        return {f"{name}/{parameter}": ndim for parameter, ndim in shapes.items()}

    asked = envelope({"rows/x": 1, "rows/y": 1}) + 2  # and how the ids of each space are written
    back = envelope(tree("update") | {"sum/weight": 0, "sum/count": 0, "sum/loss": 0}) + 3 * 8
    assert row == {
        "round": 1,
        "clients": [0, 1],
        "down": [envelope({}) + envelope(tree("model")) + first, envelope({}) + envelope(tree("model")) + second],
        "up": [asked + 2 + 1 + back + first, asked + 1 + 1 + back + second],
    }
    assert result.history[1]["down"] == sum(row["down"])
    assert result.history[1]["up"] == sum(row["up"])
    assert result.bytes_per_client() == (sum(row["down"]) + sum(row["up"])) / 2
    summary = json.loads((tmp_path / "r" / "result.json").read_text())
    assert summary["down"] == sum(row["down"])


def test_central_training_sends_nothing_and_uses_large_batches() -> None:
    seen: list[int] = []
    clients = item_data((20, 30, 10))
    goal = bag(clients)

    def loss(z, batch):
        seen.append(len(z))
        return fs.losses.binary("label")(z, batch)

    method = fs.methods.centralsgd(batch_size=4, clients_per_round=3, local_steps=5, lr=0.5)
    goal = fs.Objective(goal.module, loss, goal.tables)
    result = fs.run(method, goal, clients, rounds=2, evaluate=fs.Evaluate(every=99))
    assert all(r["down"] == r["up"] == 0 for r in result.history)
    assert [r["clients"] for r in result.history[1:]] == [1, 1]
    # setup: the probe, twice on the submodel, once on the full tables; then evaluation 60, two rounds of 5 steps
    # of K·B = 12, evaluation 60 twice
    assert seen == [*[12] * 4, 60, *[12] * 10, 60, 60]
    assert result.history[-1]["train.loss"] < result.history[0]["train.loss"]
