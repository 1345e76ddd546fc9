"""The same model with a lazy table and with a dense one of the same initialiser."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import fedsub as fs
from fedsub.objective.lazy import Touched

ROWS, DIM = 5000, 4
INIT = fs.inits.Normal(0.1, seed=5)


class Net(nn.Module):
    def __init__(self, items: nn.Module):
        super().__init__()
        torch.manual_seed(0)
        self.items, self.out = items, nn.Linear(DIM, 1)

    def forward(self, batch):
        return self.out(self.items(batch["item"])).squeeze(-1)


def objective(lazy: bool, rows: int = ROWS, init: fs.inits.Init = INIT) -> fs.Objective:
    table = fs.Lazy(rows, DIM, init=init)
    items = table if lazy else table.dense()
    return fs.Objective(Net(items), fs.losses.binary("label"), {"items.weight": "item"})


def clicks(rows: int = ROWS) -> tuple[fs.Clients, fs.Clients]:
    return fs.twins.Zipf(60, rows, 900, seed=1).make().split(0.8)


def table_of(result: fs.Result) -> Tensor:
    table = result.params["items.weight"]
    return table.dense() if isinstance(table, Touched) else table


def everything(result: fs.Result) -> str:
    """Weights, history and final evaluation, to the last bit."""
    return repr((table_of(result).tolist(), result.params["out.weight"].tolist(), result.history, result.final))
