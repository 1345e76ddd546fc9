"""Every built-in model: engines agree, nothing padded has an effect, options and columns are checked."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from worlds import SIZES, trainer_for

import fedsub as fs
from fedsub.methods import fedsubavg
from fedsub.models import make_objective

LABEL = "label"


def shop(sizes=SIZES, *, users: bool = True, categories: bool = False, longest: int = 6, seed: int = 0) -> fs.Clients:
    """Items with ragged histories (some empty), the user, and categories; clients of 1 to 9 samples."""
    draw, n = np.random.default_rng(seed), sum(sizes)
    lengths = [int(k) for k in draw.integers(0, longest, n - 1)] + [longest]
    arrays = {
        "item": draw.integers(1, 25, n),
        "history": [draw.integers(1, 25, k).tolist() for k in lengths],
        "label": draw.integers(0, 2, n),
    }
    ids: dict[str, list[str]] = {"item": ["item", "history"]}
    if users:
        arrays["user"], ids["user"] = np.repeat(np.arange(len(sizes)), sizes), ["user"]
    if categories:
        arrays["category"] = draw.integers(1, 7, n)
        arrays["category_history"] = [draw.integers(1, 7, k).tolist() for k in lengths]
        ids["category"] = ["category", "category_history"]
    return fs.Clients.from_arrays(
        arrays, offsets=np.concatenate([[0], np.cumsum(sizes)]), ids=ids, label="label", sizes={"item": 25}
    )


CASES = [
    ("lr", {}),
    ("lr", {"bias": True}),
    ("embedding", {"dim": 3}),
    ("lstm", {"dim": 4, "hidden": 5}),
    ("lstm", {"dim": 4, "hidden": 3, "layers": 1}),
    ("user-item", {}),
    ("user-item", {"bias": False}),
    ("din", {"dim": 4}),
    ("din", {"dim": 4, "faithful": True}),
    ("din", {"dim": 4, "activation": "prelu", "max_history": 3}),
    ("din", {"dim": 4, "activation": "relu"}),
]


def train(clients, kind, engine, options, dtype=torch.float32):
    """The parameters after a round with short batches."""
    method = fedsubavg(clients_per_round=7, local_steps=3, batch_size=4, lr=0.3)
    goal = make_objective(clients, kind, seed=1, **options)
    goal.module.to(dtype)
    trainer = trainer_for(method, goal, clients, engine)
    trainer.round(1)
    return trainer.model(1)


def assert_same(one, other, **tolerance):
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, **tolerance)


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_engines_agree_on_ragged_and_short_batches(kind, options):
    clients = shop()
    start = dict(make_objective(clients, kind, seed=1, **options).module.named_parameters())
    exact = [train(clients, kind, engine, options, torch.float64) for engine in ("serial", "batched")]
    assert_same(*exact, rtol=1e-9, atol=1e-9)
    for name, value in exact[0].items():
        assert not torch.equal(value, start[name].detach().double()), name
    # Dice divides by the spread of two or three samples, which may be tiny: rounding grows with it.
    close = 1e-3 if kind == "din" and options.get("activation", "dice") == "dice" else 1e-5
    assert_same(
        exact[0], {n: v.double() for n, v in train(clients, kind, "batched", options).items()}, rtol=close, atol=close
    )


@pytest.mark.parametrize("users", [True, False])
@pytest.mark.parametrize("categories", [True, False])
def test_din_takes_the_columns_that_are_there(users, categories):
    clients = shop(users=users, categories=categories)
    options = {"dim": 3, "faithful": categories}
    serial, batched = (train(clients, "din", e, options, torch.float64) for e in ("serial", "batched"))
    assert ("users.weight" in serial, "categories.weight" in serial) == (users, categories)
    assert_same(serial, batched, rtol=1e-9, atol=1e-9)


def test_items_alone_are_enough_for_user_item():
    assert set(train(shop(users=False), "user-item", "batched", {})) == {"items.weight", "bias"}
