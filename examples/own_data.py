"""Your own table and your own nn.Module: FedAvg against FedSubAvg.

python examples/own_data.py
"""

import numpy as np
import polars as pl
import torch
from torch import nn

import fedsub as fs


class Scorer(nn.Module):
    """An ordinary module: it is called with a dict of columns and returns one logit per sample."""

    def __init__(self, items: int, dim: int = 8):
        super().__init__()
        self.items = nn.Embedding(items, dim)
        self.out = nn.Sequential(nn.Linear(2 * dim, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, batch):
        target = self.items(batch["item"])
        seen = (batch["history"] != 0).unsqueeze(-1)  # lists are padded with 0
        history = (self.items(batch["history"]) * seen).sum(1) / seen.sum(1).clamp(min=1)
        return self.out(torch.cat([target, history], -1)).squeeze(-1)


def make_table(rows: int = 20_000, seed: int = 0) -> pl.DataFrame:
    """Stands for a table of yours: who (any id), what (any id), what came before (lists), liked or not."""
    draw = np.random.default_rng(seed)
    item = np.minimum(draw.zipf(1.3, rows), 2_000)
    taste = draw.normal(size=2_001)
    history = [[f"sku-{i}" for i in np.minimum(draw.zipf(1.3, n), 2_000)] for n in draw.integers(0, 8, rows)]
    return pl.DataFrame(
        {
            "shop": [f"shop-{s}" for s in draw.integers(0, 300, rows)],
            "item": [f"sku-{i}" for i in item],
            "history": history,
            "liked": draw.random(rows) < 1 / (1 + np.exp(-taste[item])),
        }
    )


clients = fs.Clients.from_frame(make_table(), client="shop", ids={"item": ["item", "history"]}, label="liked")
train, test = clients.split(0.8, seed=0)


def objective(seed: int) -> fs.Objective:
    """For every seed initial values of its own: fedsub starts torch's random numbers from it."""
    return fs.Objective(
        Scorer(clients.size("item")), fs.losses.binary("liked"), tables={"items.weight": ["item", "history"]}
    )


comparison = fs.compare(
    {"FedAvg": fs.methods.fedavg(lr=0.3), "FedSubAvg": fs.methods.fedsubavg(lr=0.3, temper=0.5)},
    objective,
    train,
    test=test,
    rounds=100,
    seeds=2,
)
print(comparison.table())
