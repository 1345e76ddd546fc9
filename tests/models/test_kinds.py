"""Every built-in model: engines agree, nothing padded has an effect, options and columns are checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from worlds import SIZES, shared_model, trainer_for

import fedsub as fs
from fedsub.errors import ConfigError
from fedsub.methods import fedsubavg
from fedsub.objective.models import KINDS, make_objective, options_of
from fedsub.study.experiment.config import MODEL_OPTIONS, Model, parse

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
    return shared_model(trainer, 1)


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


# Options and columns -------------------------------------------------------------------------------


def test_settings_know_the_options_of_every_kind():
    assert {kind: options_of(kind) for kind in KINDS} == MODEL_OPTIONS
    for kind, options in MODEL_OPTIONS.items():
        values = {
            "columns": {},
            "bias": True,
            "own_bias": True,
            "faithful": True,
            "activation": "relu",
            "loss": "squared",
            "offset": "mean",
        }
        given: dict[str, Any] = {name: values.get(name, 2) for name in options}
        assert Model.model_validate({"kind": kind, **given}).options == given


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"kind": "lstm", "bias": True}, 'bias is no option of kind = "lstm"'),
        ({"kind": "din", "hidden": 3}, 'hidden is no option of kind = "din"'),
        ({"kind": "user-item", "dim": 3}, 'dim is no option of kind = "user-item"'),
        ({"kind": "dien"}, '"lr", "embedding", "lstm", "user-item", "din"'),
        ({"kind": "din", "activation": "gelu"}, '"dice", "prelu", "relu"'),
    ],
)
def test_settings_of_another_kind_are_refused(model, message):
    with pytest.raises(ConfigError, match=message):
        parse({"model": model})


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("dim", {}, "no built-in model 'dim'.*did you mean 'din'"),
        ("lstm", {"dims": 3}, "'dims' is no option of the model 'lstm'; did you mean 'dim'"),
        ("din", {"activation": "dise"}, "no activation 'dise'; did you mean 'dice'"),
        ("din", {"columns": {"items": "item"}}, "no column for 'items'; did you mean 'item'"),
        ("din", {"columns": {"item": "itm"}}, "column 'itm', which the data lacks; did you mean 'item'"),
        ("din", {"columns": {"item": "label"}}, "'label', which holds plain values"),
        ("din", {"columns": {"item": "history"}}, "expects one id a sample as item, and column 'history' has lists"),
        ("din", {"columns": {"history": "item"}}, "expects a list of ids a sample as history"),
        ("din", {"columns": {"category": "item"}}, "needs a column 'category_history'"),
    ],
)
def test_mistakes_are_named(kind, options, message):
    with pytest.raises(ConfigError, match=message):
        make_objective(shop(), kind, **options)


def test_columns_of_other_names():
    arrays = {"asin": [1, 2, 1, 2], "seen": [[1], [], [2, 1], [1]], "label": [0, 1, 1, 0]}
    clients = fs.Clients.from_arrays(
        arrays, offsets=[0, 2, 4], ids={"asin": ["asin", "seen"]}, label="label", sizes={"asin": 3}
    )
    with pytest.raises(ConfigError, match=r"needs a column 'item', and the data has asin, seen, label"):
        make_objective(clients, "din")
    objective = make_objective(clients, "din", dim=2, columns={"item": "asin", "history": "seen"})
    assert objective.tables == {"items.weight": ("asin", "seen")}
    result = fs.run(fedsubavg(clients_per_round=2), objective, clients, rounds=1, engine="serial")
    assert np.isfinite(result.history[-1]["train.ce"])


def test_columns_without_a_use_are_left_out():
    clients = shop(categories=True)
    assert make_objective(clients, "user-item").unused == ("history", "category", "category_history")
    train(clients, "user-item", "batched", {})
