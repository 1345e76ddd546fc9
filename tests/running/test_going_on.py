"""Going on with a run: changed code, more rounds, more seeds, and what a stopped run says."""

from __future__ import annotations

import json
import os
import signal
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from worlds import bag, equal, item_data

import fedsub as fs
from fedsub.errors import CheckpointError, ConfigError
from fedsub.objective.code import changed, code_of

METHOD = fs.methods.fedsubavg(lr=0.3, local_steps=2, batch_size=4, clients_per_round=4)
SOURCE = """
import torch
from torch import nn

SCALE = 1.0


def act(x):
    return torch.relu(x)


class Net(nn.Module):
    def __init__(self, items):
        super().__init__()
        self.emb, self.out = nn.EmbeddingBag(items, 2, mode="sum"), nn.Linear(2, 1)
        self.last = torch.sigmoid

    def forward(self, batch):
        '''Scores.'''
        return self.out(act(self.emb(batch["ids"]))).squeeze(-1) * SCALE


def loss(z, batch):
    return (z - batch["label"]) ** 2


squared = lambda z, batch: (z - batch["label"]) ** 2
"""


def written(folder: Path, name: str = "own.py", loss: str = "loss", edits: dict | None = None) -> fs.Objective:
    """The objective of a file, after edits (``{old: new}``), as a new process would import it."""
    text = SOURCE
    for old, new in (edits or {}).items():
        assert old in text
        text = text.replace(old, new)
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    module = types.ModuleType("own")
    exec(compile(text, str(file), "exec"), vars(module))
    torch.manual_seed(0)
    return fs.Objective(module.Net(20), getattr(module, loss), {"emb.weight": "ids"})


def options(objective: fs.Objective, **more) -> dict[str, Any]:
    clients = item_data()
    return {"method": METHOD, "objective": objective, "clients": clients, "rounds": 3, "engine": "serial"} | more


def again(given: dict[str, Any], **more: Any) -> dict[str, Any]:
    return given | more


# ---------------------------------------------------------------------- code


@pytest.mark.parametrize(
    ("edits", "what"),
    [
        ({"torch.relu(x)": "torch.tanh(x)"}, "the forward of Net"),
        ({"SCALE = 1.0": "SCALE = 2.0"}, "the forward of Net"),
        ({"* SCALE": "/ SCALE"}, "the forward of Net"),
        ({"** 2": "** 4"}, "the loss"),
        ({"torch.sigmoid": "torch.tanh"}, "the module's layers and their settings"),
        ({'"sum"': '"mean"'}, "the module's layers and their settings"),
    ],
)
def test_changed_code_is_found(tmp_path: Path, edits: dict, what: str):
    before, after = code_of(written(tmp_path)), code_of(written(tmp_path, edits=edits))
    assert changed(before, after) == [what]
    other_python = before | {"python": "3.0"}  # bytecode says nothing then: by the source
    assert changed(json.loads(json.dumps(other_python)), after) == [what]


def test_a_loss_that_is_a_lambda(tmp_path: Path):
    before = code_of(written(tmp_path, loss="squared"))
    after = code_of(written(tmp_path, loss="squared", edits={"- batch": "+ batch"}))
    assert changed(before, after) == ["the loss"]


@pytest.mark.parametrize(
    "edits",
    [
        {"import torch\n": "# moved down\n\n\nimport torch\n"},
        {"    return torch.relu(x)": "    # a comment\n    return torch.relu(\n        x\n    )"},
        {"'''Scores.'''": "'''Says more of what it does.'''"},
        {"SCALE = 1.0\n": "SCALE = 1.0\n\n\ndef other():\n    return 3\n"},
    ],
)
def test_what_computes_the_same_is_the_same(tmp_path: Path, edits: dict):
    before, after = code_of(written(tmp_path)), code_of(written(tmp_path, "elsewhere/mine.py", edits=edits))
    assert changed(before, after) == []
    assert changed(before | {"python": "3.0"}, after) == []


def test_changed_code_is_refused_unless_forced_and_then_told(tmp_path: Path):
    first = options(written(tmp_path))
    fs.run(out=tmp_path / "r", **first)
    config = (tmp_path / "r" / "config.json").read_bytes()
    other = again(first, objective=written(tmp_path, edits={"relu": "tanh", "** 2": "** 4"}), rounds=4)
    with pytest.raises(CheckpointError, match=r"the forward of Net and the loss have changed since.*force_code=True"):
        fs.run(out=tmp_path / "r", resume=True, **other)
    assert (tmp_path / "r" / "config.json").read_bytes() == config
    forced = fs.run(out=tmp_path / "r", resume=True, force_code=True, **other)
    assert any("not what this run was begun with" in said for said in forced.events)
    assert "not what this run was begun with" in (tmp_path / "r" / "events.jsonl").read_text()
    kept = json.loads((tmp_path / "r" / "config.json").read_bytes())["code"]
    assert kept == json.loads(config)["code"]  # the first digest


def test_a_comparison_tells_of_changed_code(tmp_path: Path):
    clients, out = item_data(), tmp_path / "c"
    rest: dict[str, Any] = {"rounds": 2, "engine": "serial", "out": out}
    fs.compare({"A": METHOD}, written(tmp_path), clients, **rest)
    other = written(tmp_path, edits={"relu": "tanh"})
    with pytest.raises(CheckpointError, match="other code"):
        fs.compare({"A": METHOD, "B": METHOD}, other, clients, resume=True, **rest)
    both = fs.compare({"A": METHOD, "B": METHOD}, other, clients, resume=True, force_code=True, **rest)
    assert [n for n in both.notes if "A, seed 0, was trained before the forward of Net changed" in n], both.notes
    assert "was trained before" in both.table()
    further = fs.compare({"A": METHOD}, other, clients, resume=True, force_code=True, **again(rest, rounds=3))
    assert [n for n in further.notes if "going on was forced" in n], further.notes


# ---------------------------------------------------------------------- more rounds, more seeds


@pytest.mark.parametrize("name", ["fedsubavg", "fedadam"])
def test_trained_further_is_as_if_asked_for_from_the_start(tmp_path: Path, name: str):
    clients = item_data()
    method = fs.methods.make(name, lr=0.3, local_steps=2, batch_size=4, clients_per_round=3)
    given = options(bag(clients), clients=clients, method=method, evaluate=fs.Evaluate(every=3))
    whole = fs.run(out=tmp_path / "whole", **again(given, rounds=9))
    fs.run(out=tmp_path / "r", **given)
    longer = fs.run(out=tmp_path / "r", resume=True, **again(given, rounds=6))
    assert json.loads((tmp_path / "r" / "result.json").read_bytes())["rounds"] == 6
    assert any("trained further: 6 rounds, 3 before" in said for said in longer.events)
    longest = fs.run(out=tmp_path / "r", resume=True, **again(given, rounds=9))
    assert equal(whole.params, longest.params)
    assert str(whole.final) == str(longest.final)  # as text: NaN is among them
    for file in ("metrics.jsonl", "traffic.jsonl", "model.safetensors"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "r" / file).read_bytes()
    with pytest.raises(CheckpointError, match="rounds: 9 in the directory, 3 now"):
        fs.run(out=tmp_path / "r", resume=True, **given)


def test_rounds_after_the_end_of_a_schedule_are_refused(tmp_path: Path):
    method = fs.methods.fedsubavg(lr=0.3, clients_per_round=3, schedule="cosine:3")
    given = options(bag(item_data()), method=method)
    fs.run(out=tmp_path / "r", **given)
    before = {p: p.read_bytes() for p in (tmp_path / "r").rglob("*") if p.is_file()}
    with pytest.raises(ConfigError, match="0 from round 4 on"):
        fs.run(out=tmp_path / "r", resume=True, **again(given, rounds=5))
    assert {p: p.read_bytes() for p in (tmp_path / "r").rglob("*") if p.is_file()} == before


def test_more_seeds_and_rounds_in_a_comparison(tmp_path: Path):
    clients = item_data()
    rest: dict[str, Any] = {"engine": "serial", "evaluate": fs.Evaluate(every=1)}
    fs.compare({"A": METHOD}, bag(clients), clients, rounds=2, seeds=1, out=tmp_path / "c", **rest)
    more = fs.compare({"A": METHOD}, bag(clients), clients, rounds=4, seeds=2, out=tmp_path / "c", resume=True, **rest)
    whole = fs.compare({"A": METHOD}, bag(clients), clients, rounds=4, seeds=2, **rest)
    assert [r.history for r in more.results["A"]] == [r.history for r in whole.results["A"]]


# ---------------------------------------------------------------------- stopped


class Press(fs.Callback):
    def on_round(self, record) -> None:
        if record["round"] == 2:
            os.kill(os.getpid(), signal.SIGINT)


def test_a_python_run_that_is_stopped_names_a_call_that_goes_on(tmp_path: Path):
    given = options(bag(item_data()), rounds=6)
    with pytest.raises(fs.Interrupted) as caught:
        fs.run(out=tmp_path / "r", callbacks=[Press()], **given)
    assert f"fedsub.run(…, out={str(tmp_path / 'r')!r}, resume=True)" in str(caught.value)
    assert "fedsub resume" not in str(caught.value)
    fs.run(out=tmp_path / "r", resume=True, **given)
    clients = item_data()
    with pytest.raises(fs.Interrupted) as caught:
        fs.compare(
            {"A": METHOD}, bag(clients), clients, rounds=6, engine="serial", out=tmp_path / "c", callbacks=[Press()]
        )
    assert f"fedsub.compare(…, out={str(tmp_path / 'c')!r}, resume=True)" in str(caught.value)
    with pytest.raises(fs.Interrupted, match="nothing to resume"):
        fs.compare({"A": METHOD}, bag(clients), clients, rounds=6, engine="serial", callbacks=[Press()])
