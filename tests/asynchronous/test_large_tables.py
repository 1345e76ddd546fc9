"""Asynchronous runs whose tables are lazy or in shards, and whose clients train in workers: the same bits."""

from __future__ import annotations

import pytest
import torch
from fleets import MIXED, played, same
from torch import nn

import fedsub as fs
from fedsub import Asynchronous
from fedsub.objective.lazy import Touched

METHOD = Asynchronous(
    fs.methods.fedsubavg(lr=0.3, local_steps=3, batch_size=3, clients_per_round=6, server="adam"), buffer=3
)


class Net(nn.Module):
    def __init__(self, items: nn.Module):
        super().__init__()
        torch.manual_seed(0)
        self.items, self.out = items, nn.Linear(3, 1)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.out(self.items(batch["item"])).squeeze(-1)


def test_a_lazy_table_is_as_good_as_a_dense_one() -> None:
    clients = fs.twins.Zipf(40, 3000, 500, seed=1).make()
    table = fs.Lazy(3000, 3, init=fs.inits.Normal(0.1, seed=5))
    dense, lazy = (
        fs.run(
            METHOD, fs.Objective(Net(items), fs.losses.binary("label"), {"items.weight": "item"}), clients, rounds=8,
            devices=MIXED,
        )
        for items in (table.dense(), table)
    )  # fmt: skip
    touched = lazy.params["items.weight"]
    assert isinstance(touched, Touched)
    assert torch.equal(touched.dense(), dense.params["items.weight"])
    assert lazy.history == dense.history


@pytest.mark.slow
def test_shards_and_workers_of_a_cluster_change_nothing() -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    plain = played(METHOD, engine="batched")
    found = played(METHOD, engine=fs.Ray(workers=1), shards=2)
    assert same(plain, found)
    assert plain.history == found.history
