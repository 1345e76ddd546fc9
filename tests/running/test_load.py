"""A model comes back from its run directory: the same outputs, bit for bit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from loading import CLIENTS, METHODS, ROUNDS, batch, says, scorer, train
from torch import nn

import fedsub as fs
from fedsub.errors import CheckpointError, ObjectiveError, RunError
from fedsub.running.run import finished_result
from fedsub.study import comparing


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_module_of_ones_own(tmp_path: Path, name: str, dtype: torch.dtype):
    result = train(tmp_path / "run", METHODS[name], scorer(dtype=dtype))
    expected = says(result.module())
    fresh = scorer(seed=5, dtype=dtype, shift=0.0)
    before = {n: v.clone() for n, v in fresh.module.state_dict().items()}
    trained = fs.load(tmp_path / "run")
    for given in (fresh, fresh.module):
        made = trained.module(given)
        assert torch.equal(says(made), expected)
        assert says(made).dtype == dtype
    assert all(torch.equal(v, before[n]) for n, v in fresh.module.state_dict().items())  # it was copied
    assert not torch.equal(says(fresh.module.eval()), expected)
    assert (trained.finished, trained.round, trained.notes, trained.personal) == (True, ROUNDS, (), None)
    assert set(trained.params) == {"items.weight", "shops.weight", "out.weight", "out.bias"}
    assert all(torch.equal(trained.params[n], p) for n, p in result.params.items())
    assert trained.config == json.loads((tmp_path / "run" / "config.json").read_bytes())


def test_vocabularies(tmp_path: Path):
    train(tmp_path / "run")
    found = fs.load(tmp_path / "run").vocabulary
    assert set(found) == {"item", "shop"}
    for name, ids in found.items():
        expected = CLIENTS.spaces[name].vocabulary
        assert ids is not None
        assert expected is not None
        assert ids.tolist() == expected.tolist()
        assert ids.dtype.kind == expected.dtype.kind


def test_ids_that_are_rows_have_no_vocabulary(tmp_path: Path):
    arrays = {"item": np.array([3, 1, 2, 0]), "label": np.array([0, 1, 1, 0])}
    clients = fs.Clients.from_arrays(arrays, offsets=[0, 2, 4], ids=["item"], label="label", sizes={"item": 5})
    method = fs.methods.fedsubavg(clients_per_round=2)
    fs.run(method, fs.models.make_objective(clients), clients, rounds=1, out=tmp_path / "run")
    assert fs.load(tmp_path / "run").vocabulary == {"item": None}


def test_the_file_is_a_plain_state_dict(tmp_path: Path):
    from safetensors.torch import load_file

    result = train(tmp_path / "run")
    module = scorer(seed=7, shift=0.0).module
    module.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    assert torch.equal(says(module.eval()), says(result.module()))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Embedding(CLIENTS.size("item"), 2)
        self.second = nn.Embedding(CLIENTS.size("item"), 2)
        self.second.weight = self.first.weight

    def forward(self, batch):
        return (self.first(batch["item"]) * self.second(batch["item"])).sum(-1)


def test_tied_parameters_stay_tied(tmp_path: Path):
    objective = fs.Objective(Tied(), fs.losses.binary("label"), {"first.weight": "item"}, unused=("shop",))
    result = train(tmp_path / "run", objective=objective)
    made = fs.load(tmp_path / "run").module(Tied())
    assert made.get_parameter("second.weight") is made.get_parameter("first.weight")
    assert torch.equal(says(made), says(result.module()))


@pytest.mark.parametrize("kind", ["lr", "embedding", "user-item", "linear", "factorisation"])
def test_a_built_in_model_is_made_again(tmp_path: Path, kind: str):
    options = {"user-item": {"columns": {"item": "shop"}}, "linear": {"bias": True, "loss": "squared"}}.get(kind, {})
    if kind == "factorisation":
        options = {"rank": 3, "offset": "mean"}  # a buffer that is computed from the ratings
    objective = fs.models.make_objective(CLIENTS, kind, seed=3, **options)
    result = train(tmp_path / "run", objective=objective)
    made = fs.load(tmp_path / "run").module()
    assert type(made) is type(objective.module)
    assert torch.equal(says(made), says(result.module()))
    assert torch.equal(says(finished_result(tmp_path / "run").module()), says(result.module()))


@pytest.mark.parametrize("kind", ["lstm", "din"])
def test_models_of_lists_are_made_again(tmp_path: Path, kind: str):
    from worlds import click_data

    clients = click_data()
    options = {"columns": {"tokens": "history"}, "dim": 3, "hidden": 4} if kind == "lstm" else {"dim": 3}
    objective = fs.models.make_objective(clients, kind, **options)
    method = fs.methods.fedsubavg(lr=0.5, clients_per_round=3)
    result = fs.run(method, objective, clients, rounds=2, out=tmp_path / "run")
    inputs = batch(clients)
    with torch.no_grad():
        assert torch.equal(fs.load(tmp_path / "run").module()(inputs), result.module()(inputs))


def test_classes_are_as_many_as_before(tmp_path: Path):
    draw = np.random.default_rng(0)
    arrays = {"x": draw.normal(size=(12, 2)).astype(np.float32), "y": np.arange(12) % 4}
    clients = fs.Clients.from_arrays(
        arrays, offsets=[0, 6, 12], ids=[], label="y", values=["x"], binary_label=False
    )  # fmt: skip
    objective = fs.models.make_objective(clients, "linear", loss="cross_entropy", bias=True)
    result = fs.run(fs.methods.fedavg(clients_per_round=2), objective, clients, rounds=2, out=tmp_path / "run")
    with torch.no_grad():
        assert torch.equal(fs.load(tmp_path / "run").module()(batch(clients)), result.module()(batch(clients)))


def test_another_module_in_a_made_objective_is_not_taken_for_the_built_in_one(tmp_path: Path):
    class Louder(fs.models.LogisticRegression):
        def forward(self, batch):
            return 2 * super().forward(batch)

    objective = replace(fs.models.make_objective(CLIENTS), module=Louder(CLIENTS, values=("value",)))
    result = train(tmp_path / "run", objective=objective)
    with pytest.raises(ObjectiveError, match="pass it"):
        fs.load(tmp_path / "run").module()
    assert torch.equal(says(fs.load(tmp_path / "run").module(objective)), says(result.module()))


def test_a_comparison(tmp_path: Path):
    methods = {"FedSubAvg": METHODS["fedsubavg"], "Adam": METHODS["fedsubadam"]}
    single = {
        (label, seed): says(fs.run(method, scorer(seed), CLIENTS, rounds=3, seed=seed).module())
        for label, method in methods.items()
        for seed in (0, 1)
    }
    out = tmp_path / "compared"
    for resume in (False, True):  # trained, then read back from disk
        made = fs.compare(methods, scorer, CLIENTS, rounds=3, seeds=2, out=out, resume=resume)
        for label, results in made.results.items():
            for result in results:
                assert torch.equal(says(result.module()), single[label, result.seed])
    with pytest.raises(CheckpointError, match="adam-seed0"):
        fs.load(out)
    with pytest.raises(ObjectiveError, match="pass it"):
        finished_result(out / "adam-seed0").module()
    assert torch.equal(says(finished_result(out / "adam-seed0").module(scorer())), single["Adam", 0])


def test_a_comparison_without_a_directory_keeps_models_in_memory(monkeypatch: pytest.MonkeyPatch):
    methods = {"FedSubAvg": METHODS["fedsubavg"]}
    made = fs.compare(methods, scorer, CLIENTS, rounds=2, seeds=2)
    found = made.results["FedSubAvg"]
    for seed, result in enumerate(found):
        alone = fs.run(methods["FedSubAvg"], scorer(seed), CLIENTS, rounds=2, seed=seed)
        assert torch.equal(says(result.module()), says(alone.module()))
    size = sum(4 * value.numel() for value in found[0].params.values())
    monkeypatch.setattr(comparing, "MODELS", size)  # room for one
    first, second = fs.compare(methods, scorer, CLIENTS, rounds=2, seeds=2).results["FedSubAvg"]
    assert torch.equal(says(first.module()), says(made.results["FedSubAvg"][0].module()))
    with pytest.raises(RunError, match=r"too large for memory.*out=…"):
        second.module()
