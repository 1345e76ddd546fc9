"""One of every server, by kind, and a small world of updates for them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedsub.method.servers import Adagrad, Adam, Add, FrequencyAware, ScaffoldHistory, TorchOptimiser, Yogi
from fedsub.trees import Tree

DOUBLE = torch.float64

OPTIMISERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "sgd": lambda t: torch.optim.SGD(t, lr=0.1),
    "momentum": lambda t: torch.optim.SGD(t, lr=0.1, momentum=0.9, weight_decay=0.01),
    "dampened": lambda t: torch.optim.SGD(t, lr=0.1, momentum=0.9, dampening=0.5),
    "adam": lambda t: torch.optim.Adam(t, lr=0.01, weight_decay=0.01),
    "amsgrad": lambda t: torch.optim.Adam(t, lr=0.01, amsgrad=True),
    "adamw": lambda t: torch.optim.AdamW(t, lr=0.01),
    "adagrad": lambda t: torch.optim.Adagrad(t, lr=0.1, initial_accumulator_value=0.1, lr_decay=0.01),
    "rmsprop": lambda t: torch.optim.RMSprop(t, lr=0.01, momentum=0.5, centered=True),
    "nadam": lambda t: torch.optim.NAdam(t, lr=0.01),
}

LAZY = {
    "momentum": Add(0.5, momentum=0.9),
    "slow momentum": Add(0.5, momentum=0.999),
    "adam": Adam(),
    "adam slow": Adam(beta1=0.5, beta2=0.999, tau=0.1),
    "adam growing terms": Adam(beta1=0.9, beta2=0.5),
    "adam without beta1": Adam(beta1=0.0),
    "adam without beta2": Adam(beta2=0.0),
    "yogi": Yogi(),
    "adagrad": Adagrad(beta1=0.9),
    "history": ScaffoldHistory(0.7, rho=0.05),
    "history of the last round": ScaffoldHistory(rho=1.0),
    "groups": Adam(groups={"tab*": {"lr": 0.5}}),
}

STILL = {
    "add": Add(0.5),
    "yogi": Yogi(beta1=0.0),
    "adagrad": Adagrad(),
    "history": ScaffoldHistory(beta=0.0, rho=0.1),
    "frequency": FrequencyAware(),
}

SPARSE = {
    "momentum": Add(momentum=0.9, sparse_server=True),
    "adam": Adam(sparse_server=True),
    "yogi": Yogi(sparse_server=True),
    "adagrad": Adagrad(beta1=0.9, sparse_server=True),
    "history": ScaffoldHistory(rho=0.1, sparse_server=True),
    **{name: TorchOptimiser(make, sparse_server=True) for name, make in OPTIMISERS.items()},
}

DENSE = {name: TorchOptimiser(make) for name, make in OPTIMISERS.items()}

EVERY = [*LAZY.values(), *STILL.values(), *SPARSE.values(), *DENSE.values()]


def named(servers: dict):
    return pytest.mark.parametrize("server", servers.values(), ids=servers.keys())


def steps(server, updates: Tensor) -> Tensor:
    """The steps that a dense parameter takes, one per update."""
    params = {"w": torch.zeros_like(updates[0])}
    state = server.init(params, ())
    taken = []
    for r, update in enumerate(updates, 1):
        before = params["w"].clone()
        server.step(params, {"w": update}, {}, state, r)
        taken.append(params["w"] - before)
    return torch.stack(taken)


class World:
    """A table and a dense parameter under random updates; rows 0–3 are rare, the last one is never sent."""

    def __init__(self, dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0):
        self.rng = torch.Generator().manual_seed(seed)
        self.dtype, self.shape = dtype, shape
        self.params = {"table": self.normal(*shape), "head": self.normal(3)}

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, dtype=DOUBLE, generator=self.rng).to(self.dtype)

    def rows(self, r: int) -> Tensor:
        rare = {0: 1, 1: 20, 2: 40, 3: 300}
        chosen = torch.randperm(self.shape[0] - 5, generator=self.rng)[:4] + 4
        rows = torch.tensor([*chosen.tolist(), *[row for row, when in rare.items() if when == r]])
        return rows if r % 2 else rows.int()

    def mean(self, rows: Tensor, r: int) -> Tree:
        scale = 0.1 * 10 ** (-2 * math.sin(r))  # updates of very different sizes
        return {"table": self.normal(len(rows), *self.shape[1:]) * scale, "head": self.normal(3) * scale}
