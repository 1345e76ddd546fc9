"""The winners of a search keep their models, in memory and in a directory."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from shop import CLIENTS, FRAME

import fedsub as fs
from fedsub.errors import RunError

TRAIN, TEST = CLIENTS.split(0.8)


def objective(seed: int) -> fs.Objective:
    return fs.models.make_objective(TRAIN, "lr", seed=seed, own_bias=True)


def search(out: Path | None = None, **options) -> fs.Tuning:
    make = partial(fs.methods.fedsubavg, clients_per_round=4, personal=["own.*"])
    return fs.tune({"own": make}, objective, TRAIN, grid={"lr": [0.1, 0.5]}, rounds=2, test=TEST, out=out, **options)


@pytest.fixture(scope="module")
def in_memory() -> fs.Tuning:
    return search()


def test_the_winners_model_is_that_of_its_run(in_memory: fs.Tuning, tmp_path: Path):
    part, _ = TRAIN.split(0.9, seed=1)
    lr = in_memory.chosen["own"].values["lr"]
    method = fs.methods.fedsubavg(lr=lr, clients_per_round=4, personal=["own.*"])
    alone = fs.run(method, objective(0), part, rounds=2)
    expected = fs.predict(alone, FRAME).frame["score"].to_numpy()
    for tuning in (in_memory, search(tmp_path), search(tmp_path, resume=True)):  # the last one reads it back
        trial = tuning.tested["own"][0]
        assert torch.equal(trial.module().slope, alone.module().slope)  # type: ignore[attr-defined]
        assert trial.result is not None
        assert np.array_equal(fs.predict(trial.result, FRAME).frame["score"].to_numpy(), expected)
    assert np.array_equal(fs.predict(tmp_path, FRAME).frame["score"].to_numpy(), expected)  # its only winner


def test_other_trials_keep_none(in_memory: fs.Tuning):
    with pytest.raises(RunError, match=r"only those of the winners are kept, in tuning\.tested"):
        in_memory.settings[0].trials[0].module()
    with pytest.raises(RunError, match="it diverged"):
        replace(in_memory.tested["own"][0], result=None, failure="it diverged").module()


@pytest.mark.slow
def test_it_comes_from_a_worker_process(in_memory: fs.Tuning):
    there, here = (t.tested["own"][0].result for t in (search(workers=2, seeds=2), in_memory))
    assert there is not None
    assert here is not None
    scores = [fs.predict(result, FRAME).frame["score"].to_numpy() for result in (there, here)]
    assert np.array_equal(scores[0], scores[1])
