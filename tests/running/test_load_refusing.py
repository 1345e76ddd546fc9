"""Clear words where a model cannot come back: damage, other data, older versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from loading import CLIENTS, Scorer, says, scorer, train
from torch import nn

import fedsub as fs
from fedsub.disk.seal import sealed
from fedsub.errors import CheckpointError, DataError, ObjectiveError


def test_a_damaged_model_file(tmp_path: Path):
    result = train(tmp_path / "run")
    path = tmp_path / "run" / "model.safetensors"
    content = path.read_bytes()
    for broken in (content[:-1], content[:4], content[:-5] + bytes([content[-5] ^ 1]) + content[-4:]):
        path.write_bytes(broken)
        with pytest.raises(CheckpointError, match="is damaged"):
            fs.load(tmp_path / "run")
    path.unlink()  # as the message says
    again = fs.load(tmp_path / "run")
    assert "checkpoint of round 4" in again.notes[0]
    assert torch.equal(says(again.module(scorer())), says(result.module()))


def test_a_damaged_personal_file(tmp_path: Path):
    train(tmp_path / "run", fs.methods.fedper(lr=0.5, clients_per_round=4))
    path = tmp_path / "run" / "personal.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    trained = fs.load(tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"personal\.safetensors is missing or damaged"):
        trained.module(scorer(), client="user 0")


def test_bad_input(tmp_path: Path):
    with pytest.raises(CheckpointError, match="There is no directory"):
        fs.load(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="holds no run"):
        fs.load(tmp_path)
    run = tmp_path / "run"
    train(run, fs.methods.fedper(lr=0.5, clients_per_round=4))
    trained = fs.load(run)
    with pytest.raises(DataError, match="There is no client 'nobody' among the 9"):
        trained.module(scorer(), client="nobody")
    with pytest.raises(ObjectiveError, match="pass it"):
        trained.module()
    with pytest.raises(ObjectiveError, match=r"the module has no items\.weight"):
        trained.module(nn.Embedding(CLIENTS.size("item"), 3))
    wide = Scorer(CLIENTS.size("item") + 1, CLIENTS.size("shop"))
    with pytest.raises(ObjectiveError, match=r"items.weight is \[31, 3\] in the module and \[30, 3\]"):
        trained.module(wide)
    with pytest.raises(ObjectiveError, match=r"must be a torch\.nn\.Module"):
        trained.module("scorer")  # type: ignore[arg-type]
    for name, words in (("model.json", "newer fedsub"), ("versions.json", "newer fedsub")):
        path = run / name
        content = path.read_bytes()
        path.write_bytes(json.dumps(sealed(json.loads(content) | {"version": 99})).encode())
        with pytest.raises(CheckpointError, match=words):
            fs.load(run)
        path.write_bytes(content)


def test_no_personal_parameters(tmp_path: Path):
    train(tmp_path / "run")
    with pytest.raises(CheckpointError, match="no parameters of their own"):
        fs.load(tmp_path / "run").module(scorer(), client="user 0")


def test_a_run_of_an_older_version(tmp_path: Path):
    """Before there were models in run directories: the checkpoint serves, and a resume adds what is lacking."""
    result = train(tmp_path / "run")
    run = tmp_path / "run"
    for name in ("model.json", "model.safetensors"):
        (run / name).unlink()
    kept = json.loads((run / "result.json").read_bytes())
    for name in ("files", "kept", "logs", "seal"):
        del kept[name]
    (run / "result.json").write_text(json.dumps(kept))
    trained = fs.load(run)
    assert "older fedsub" in trained.notes[0]
    assert trained.vocabulary == {}
    assert torch.equal(says(trained.module(scorer())), says(result.module()))
    train(run, resume=True)
    assert fs.load(run).notes == ()
