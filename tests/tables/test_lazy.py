"""Lazy tables: a run on one is, bit for bit, that on the dense table of the same initialiser."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lazy_world import DIM, INIT, ROWS, Net, clicks, everything, objective, table_of
from safetensors.torch import load_file
from torch import nn

import fedsub as fs
from fedsub.errors import ConfigError, MethodError, ObjectiveError
from fedsub.method.servers import TailMean, TorchOptimiser
from fedsub.objective.directory import Directory
from fedsub.round import layout

DRAW: dict[str, Any] = {"clients_per_round": 6, "local_steps": 2, "batch_size": 4}
METHODS = {
    "subadam": lambda: fs.methods.fedsubadam(lr=0.5, **DRAW),
    "avgm": lambda: fs.methods.fedavgm(lr=0.5, **DRAW),
    "weighted": lambda: fs.methods.fedsubavg(lr=0.5, weighting="samples", temper=0.7, **DRAW),
    "scaffold": lambda: fs.methods.scaffold(lr=0.5, **DRAW),
    "prox and signs": lambda: fs.methods.fedsubavg(lr=0.5, mu=0.1, codec="ef-sign", **DRAW),
    "mean of iterates": lambda: _with(fs.methods.fedsubavg(lr=0.5, **DRAW), TailMean(0.5, fs.servers.Adam())),
    "torch's": lambda: _with(
        fs.methods.fedsubavg(lr=0.5, **DRAW),
        TorchOptimiser(lambda tensors: torch.optim.Adam(tensors, lr=0.01), sparse_server=True),
    ),
}


def _with(method: fs.Method, server) -> fs.Method:
    return replace(method, server=server)


def run(name: str, lazy: bool, rounds: int = 6, **more) -> fs.Result:
    train, test = clicks()
    more = {"engine": "batched", "test": test, "seed": 3} | more
    return fs.run(METHODS[name](), objective(lazy), train, rounds=rounds, **more)


@pytest.mark.parametrize("name", METHODS)
def test_as_with_the_dense_table(name: str) -> None:
    assert everything(run(name, True)) == everything(run(name, False))


def test_as_with_the_dense_table_one_by_one_and_lost() -> None:
    found = [everything(run("scaffold", lazy, engine="serial", lost=0.3)) for lazy in (True, False)]
    assert found[0] == found[1]


def test_rows_that_nobody_touched_follow_the_formula() -> None:
    """SplitMix64's finaliser over (purpose, seed, row, column), by whole numbers of Python."""
    word, golden, m1, m2 = 2**64 - 1, 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

    def mix(x: int) -> int:
        x = (x + golden) & word
        x = ((x ^ (x >> 30)) * m1) & word
        x = ((x ^ (x >> 27)) * m2) & word
        return x ^ (x >> 31)

    def uniform(x: int) -> float:
        return (x >> 11) * 2.0**-53

    assert INIT.seed is not None
    row, column, key = 4_321_000_007, 2, 0
    for part in (77, INIT.seed, row, column):
        key = mix(((key * m2) ^ part) & word)
    expected = 0.1 * np.sqrt(-2 * np.log1p(-uniform(mix(key)))) * np.cos(2 * np.pi * uniform(mix(~key & word)))
    table = fs.Lazy(10**10, DIM, init=INIT).drawn
    found = table.take(torch.tensor([5, row, 7]))
    assert found[1, column].item() == pytest.approx(expected, rel=1e-6)
    assert torch.equal(table.take(torch.tensor([row])), found[1:2])  # whatever is asked for with it
    low = fs.inits.Uniform(-1, 3, seed=2).values(np.arange(20_000), 2)
    assert (low.min(), low.max(), low.mean()) == pytest.approx((-1, 3, 1), abs=0.02)


def test_seeds_are_drawn_as_other_modules_values_are() -> None:
    torch.manual_seed(7)
    one, other = fs.Lazy(9, 2).init, fs.Lazy(9, 2).init
    torch.manual_seed(7)
    assert fs.Lazy(9, 2).init == one != other


def test_interrupted_loaded_and_asked(tmp_path: Path) -> None:
    whole = run("subadam", True, 12, out=tmp_path / "whole", checkpoint_every=2)
    run("subadam", True, 5, out=tmp_path / "cut", checkpoint_every=2)
    resumed = run("subadam", True, 12, out=tmp_path / "cut", checkpoint_every=2, resume=True)
    assert torch.equal(table_of(resumed), table_of(whole))
    assert [r["loss"] for r in resumed.history] == [r["loss"] for r in whole.history]
    assert repr(resumed.final) == repr(whole.final)
    saved = load_file(tmp_path / "whole" / "model.safetensors")
    touched = saved["rows/items.weight"]
    assert 50 < len(touched) < ROWS / 4
    assert saved["items.weight"].shape == (len(touched), DIM)
    trained = fs.load(tmp_path / "whole")
    assert torch.equal(trained.params["items.weight"].take(torch.arange(ROWS)), table_of(whole))
    module = trained.module(objective(True))
    assert torch.equal(module.get_parameter("items.weight"), table_of(whole))
    frame = {"item": np.array([0, 3, ROWS - 1])}
    found = fs.predict(tmp_path / "whole", frame, module=objective(True)).frame
    dense = fs.predict(run("subadam", False, 12), frame).frame
    assert found.equals(dense)
    folder = fs.export(tmp_path / "whole", tmp_path / "out", module=objective(True), onnx=False).path
    assert torch.equal(load_file(folder / "model.safetensors")["items.weight"], table_of(whole))


def test_a_checkpoint_of_a_run_that_goes_on(tmp_path: Path) -> None:
    """What is loaded in mid-run is what the server had sent last; untouched rows are as at first."""
    run("weighted", True, 4, out=tmp_path / "a", checkpoint_every=1)
    (tmp_path / "a" / "result.json").unlink()
    (tmp_path / "a" / "model.safetensors").unlink()
    assert torch.equal(
        fs.load(tmp_path / "a").params["items.weight"].take(torch.arange(ROWS)), table_of(run("weighted", False, 4))
    )


def test_a_table_on_the_meta_device() -> None:
    """Of the user's own module: a weight of 64 GB is never allocated, and a billion rows train."""
    rows = 10**9
    train, test = clicks(rows)
    module = Net(nn.Embedding(rows, 16 if DIM == 16 else DIM, device="meta"))
    goal = fs.Objective(module, fs.losses.binary("label"), {"items.weight": "item"}, lazy={"items.weight": INIT})
    options = {"rounds": 3, "engine": "batched", "test": test}
    result = fs.run(METHODS["subadam"](), goal, train, **options)
    table: Any = result.params["items.weight"]  # fedsub.objective.lazy.Touched
    assert table.shape == (rows, DIM)
    assert table.values.numel() < 10**5
    other = fs.run(METHODS["subadam"](), objective(True, rows), train, **options)
    assert torch.equal(other.params["items.weight"].take(table.rows), table.take(table.rows))
    with pytest.raises(ObjectiveError, match="16 GB as a whole"):
        table.dense()


def test_what_lazy_tables_do_not_go_with() -> None:
    train, _ = clicks()
    step = TorchOptimiser(lambda tensors: torch.optim.AdamW(tensors, lr=0.01))
    whole = _with(fs.methods.fedsubavg(lr=0.5, **DRAW), step)
    private = fs.methods.fedsubavg(lr=0.5, personal=["items.*"], **DRAW)
    for method, said in (
        (whole, "steps every row of a table in every round"),
        (private, "rows of their own"),
        (fs.methods.gossip(lr=0.5), "does not know lazy tables"),
    ):
        with pytest.raises(MethodError, match=said):
            fs.run(method, objective(True), train, rounds=1)
    with pytest.raises(ConfigError, match="start= fills the tables"):
        fs.run(METHODS["weighted"](), objective(True), train, rounds=1, start=Net(nn.Embedding(ROWS, DIM)))
    with pytest.raises(MethodError, match="counted from the rows that clients hold"):
        fs.run(fs.methods.fedsubavg(lr=0.5, heat={"item": np.ones(ROWS)}), objective(True), train, rounds=1)
    with pytest.raises(ObjectiveError, match="is lazy and no table"):
        fs.Objective(Net(fs.Lazy(9, DIM)), fs.losses.binary("label"))
    with pytest.raises(ObjectiveError, match="say how its rows begin"):
        fs.Objective(Net(nn.Embedding(9, DIM, device="meta")), fs.losses.binary("label"), {"items.weight": "item"})


def test_the_directory_is_a_dictionary() -> None:
    draw, known, found = np.random.default_rng(0), dict[int, int](), Directory()
    for _ in range(30):
        rows = np.unique(draw.integers(0, 40_000, 700)) * 2**20  # homes must not depend on low bits alone
        new = found.new(rows)
        assert new.tolist() == [row for row in rows.tolist() if row not in known]
        found.grow(found.needed(len(new)))
        known |= dict(zip(new.tolist(), found.add(new).tolist(), strict=True))
        assert found.find(rows).tolist() == [known[row] for row in rows.tolist()]
    assert found.count == len(known) > 10_000
    again = Directory(found.rows)
    assert again.find(np.array(list(known))).tolist() == list(known.values())
    assert again.find(np.array([1, 3])).tolist() == [-1, -1]


def test_unions_of_large_spaces_have_the_order_of_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.array([7, 3, 9, 3, 7, 1, 9, 2], np.int32)
    asked = {"item": layout.Asked(rows, np.array([3, 3, 2]))}
    small = layout.Layouts({"item": 10}, torch.device("cpu"))(asked)["item"]
    monkeypatch.setattr(layout, "SCRATCH", 0)
    large = layout.Layouts({"item": 10}, torch.device("cpu"))(asked)["item"]
    assert small.union.tolist() == large.union.tolist()
    assert small.inverse.tolist() == large.inverse.tolist()
    assert large.union.dtype == small.union.dtype
    assert large.inverse.dtype == small.inverse.dtype


def test_the_configuration_names_the_initialiser(tmp_path: Path) -> None:
    run("weighted", True, 1, out=tmp_path / "a")
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["lazy"] == {"items.weight": {"type": "Normal", "std": 0.1, "seed": 5}}
    assert config["parameters"]["items.weight"] == [[ROWS, DIM], "float32"]
