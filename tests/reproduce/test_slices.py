"""Slices of a split: measured from the same predictions, under their own names."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedsub as fs
from fedsub.data import Clients
from fedsub.data.split import take
from fedsub.errors import ConfigError
from fedsub.objective.models import make_objective
from fedsub.objective.problem import Problem
from fedsub.round.evaluate import Evaluator, Seen

ITEM = np.array([1, 2, 3, 1, 2, 4, 1, 5, 2, 3, 6, 2])
HELD = np.array([0, 0, 0, 1, 0, 1, 0, 1, 1, 0, 1, 1])
DATA = Clients.from_arrays(
    {"item": ITEM, "label": np.tile([0, 1], 6), "held": HELD}, np.repeat([0, 1, 2], 4), ids=["item"], label="label",
    values=["held"],
)  # fmt: skip
TRAIN, TEST = DATA.split(by="column", column="held")
PLAN = fs.Evaluate(every=1, samples={"train": 3}, slices={
    "test_seen": Seen("test", ("item",)), "test_new": Seen("test", ("item",), unseen=True),
})  # fmt: skip


def evaluator(plan: fs.Evaluate = PLAN) -> tuple[Evaluator, dict]:
    problem = Problem.bind(make_objective(TRAIN, "embedding", seed=1), TRAIN)
    params = problem.params(torch.device("cpu"))
    return Evaluator(problem, {"train": TRAIN, "test": TEST}, plan, ("item", "held", "label")), params


def test_a_slice_is_the_split_of_its_samples():
    held = np.flatnonzero(HELD)
    seen = np.isin(ITEM[held], ITEM[HELD == 0])
    assert seen.any()
    assert not seen.all()
    made, params = evaluator()
    found = made(params)
    other = Evaluator(made.problem, {"x": take(TEST, np.flatnonzero(seen))}, fs.Evaluate(), made.columns)(params)
    assert found["test_seen.ce"] == pytest.approx(other["x.ce"])
    assert found["test_new.ce"] * (~seen).sum() + found["test_seen.ce"] * seen.sum() == pytest.approx(
        found["test.ce"] * len(held)
    )
    assert made.final(params)["test_seen"]["samples"] == seen.sum()


def test_samples_by_split():
    made, params = evaluator()
    assert [PLAN.count(name) for name in ("train", "test")] == [3, None]
    assert made(params)["train.ce"] != made.final(params)["train"]["ce"]  # three samples, and all of them
    assert made(params)["test.ce"] == pytest.approx(made.final(params)["test"]["ce"])


def test_a_slice_is_part_of_a_runs_identity():
    from fedsub.running.run import run_config

    objective, method = make_objective(TRAIN), fs.methods.fedavg()
    one = run_config(method, objective, TRAIN, rounds=1, evaluate=PLAN)
    other = run_config(method, objective, TRAIN, rounds=1, evaluate=fs.Evaluate(every=1, samples={"train": 3}))
    assert one["evaluate"]["slices"]["test_new"] == {"split": "test", "columns": ["item"], "unseen": True}
    assert "slices" not in other["evaluate"]


def test_slices_that_cannot_be():
    with pytest.raises(ConfigError, match="of the split 'tset'; did you mean 'test'"):
        evaluator(fs.Evaluate(slices={"a": Seen("tset", ("item",))}))
    with pytest.raises(ConfigError, match="called like a split"):
        evaluator(fs.Evaluate(slices={"test": Seen("test", ("item",))}))
    made, params = evaluator(fs.Evaluate(slices={"a": Seen("test", ("held",))}))
    with pytest.raises(ConfigError, match="is a plain column"):
        made(params)
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        fs.Evaluate(samples={"train": 0})
