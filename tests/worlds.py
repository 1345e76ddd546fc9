"""Small data sets, modules and shortcuts shared by the tests."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch
from torch import nn

import fedsub as fs
from fedsub.method.training import Algorithm
from fedsub.objective.problem import Problem
from fedsub.round.engines.setup import choose
from fedsub.round.predict import PersonalModel
from fedsub.round.prepare import Trainer
from fedsub.trees import whole

T = TypeVar("T")
SIZES = (1, 7, 4, 9, 2, 5, 8, 3, 6)


def click_data(sizes=SIZES, *, items: int = 25, length: int = 5, seed: int = 0) -> fs.Clients:
    """Columns item and history (lists, one vocabulary), place (two ids), slot (one id), value, label."""
    draw = np.random.default_rng(seed)
    n = sum(sizes)
    arrays = {
        "item": draw.integers(1, items, n),
        "history": [draw.integers(1, items, draw.integers(0, length + 1)).tolist() for _ in range(n - 1)]
        + [[1] * length],
        "place": draw.integers(0, 12, (n, 2)),
        "slot": draw.integers(0, 4, n),
        "value": draw.normal(size=n).astype(np.float32),
        "label": draw.integers(0, 2, n),
    }
    return fs.Clients.from_arrays(
        arrays,
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        ids={"item": ["item", "history"], "place": ["place"], "slot": ["slot"]},
        label="label",
        values=["value"],
        sizes={"item": items, "place": 12, "slot": 4},
    )


def item_data(sizes=SIZES, *, items: int = 20, width: int = 4, seed: int = 0, padding: bool = False):
    """One column ``ids`` of fixed width, and a label."""
    draw = np.random.default_rng(seed)
    n = sum(sizes)
    return fs.Clients.from_arrays(
        {"ids": draw.integers(0, items, (n, width)), "label": draw.integers(0, 2, n)},
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        ids=["ids"],
        label="label",
        sizes={"ids": items},
        padding=("ids",) if padding else (),
    )


class Bag(nn.Module):
    """Logistic regression over a bag of ids."""

    def __init__(self, items: int, dim: int = 1, mode: str = "sum", dtype=torch.float32, **options):
        super().__init__()
        self.emb = nn.EmbeddingBag(items, dim, mode=mode, dtype=dtype, **options)
        self.out = nn.Linear(dim, 1, dtype=dtype)

    def forward(self, batch):
        return self.out(self.emb(batch["ids"])).squeeze(-1)


def bag(clients: fs.Clients, *, seed: int = 0, **options) -> fs.Objective:
    torch.manual_seed(seed)
    return fs.Objective(Bag(clients.size("ids"), **options), fs.losses.binary("label"), {"emb.weight": "ids"})


def choice_for(method: fs.Method, objective: fs.Objective, clients: fs.Clients, engine: str, **options):
    problem = Problem.bind(objective, clients)
    params = problem.params(torch.device("cpu"), lazy=True)
    return problem, params, choose(problem, method, params, engine=engine, **options)


def trainer_for(method, objective, clients, engine: str, *, seed: int = 0, chunk=None, workers: int = 1, **o):
    """A Trainer on its own copy of the parameters; fails if another engine than asked for was chosen."""
    problem, params, choice = choice_for(method, objective, clients, engine, chunk=chunk, seed=seed)
    assert choice.engine.name == engine, choice.reason
    return Trainer(problem, method, params, choice.engine, choice.plan, seed=seed, workers=workers, **o)


def envelope(tensors: dict[str, int]) -> int:
    """Bytes of a message besides its values, by hand: head and digest, and per tensor its name, type and shape."""
    return 48 + 16 + sum(4 + 8 * ndim + len(name) for name, ndim in tensors.items())


def shared_model(trainer: Trainer, number: int) -> fs.Tree:
    """The model after a round of a method without personal parameters."""
    model = trainer.model(number)
    assert not isinstance(model, PersonalModel)
    return whole(model, "A test")


def composed(method: Algorithm) -> fs.Method:
    """A method that is a composition of slots, which those found by name need not be."""
    assert isinstance(method, fs.Method)
    return method


def there(value: T | None) -> T:
    """What may be missing elsewhere, and is there in the test."""
    assert value is not None
    return value


def equal(a: dict, b: dict) -> bool:
    """Bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
