"""A method and an objective of one's own from the command line, and the model that comes back."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

import fedsub as fs
from fedsub.cli import app
from fedsub.cli.folder import load
from fedsub.cli.options import Flags
from fedsub.cli.what import experiment


def command(*arguments: str, code: int = 0):
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, (result.output, result.exception)
    return result


def test_run_resume_and_load(folder):
    text = (folder / "study.toml").read_text()
    text = text.replace("[methods]\n", '[methods]\n"Mine" = { method = "my_method.py:dynamic", alpha = 0.2 }\n')
    (folder / "mine.toml").write_text(text)
    command("compare", "mine.toml", "--out", "out", "--quiet")
    config = json.loads((folder / "out" / "mine-seed0" / "config.json").read_bytes())
    assert config["method"]["parts"] == [{"type": "Dynamic", "alpha": 0.2}]

    trained = fs.load(folder / "out" / "mine-seed0")
    made = experiment("mine.toml", Flags())
    clients, _ = made.parts()
    result = fs.run(
        made.methods(len(clients))["Mine"], made.objective(clients)(0), clients, rounds=4, engine="batched"
    )  # fmt: skip
    batch = {"item": torch.arange(clients.size("item"))}
    with torch.no_grad():  # the module of "my_model:make_objective", made again without the data
        assert torch.equal(trained.module()(batch), result.module()(batch))
    assert type(trained.module()).__name__ == "Scorer"

    path = folder / "my_method.py"
    path.write_text(path.read_text() + "\n# changed\n")
    (warning,) = load(folder / "out")[3]
    assert "my_method.py has changed since the start" in warning
    path.unlink()
    assert "is gone; put it back" in command("resume", "out", code=2).output.replace("\n", " ")


def test_run_a_method_by_its_file(folder):
    command("run", "study.toml", "-m", "my_method.py:dynamic", "--out", "one", "--quiet")
    assert (folder / "one" / "dynamic-seed0" / "result.json").exists()
    said = command("run", "study.toml", "-m", "my_method.py:dynamo", "--out", "two", code=2).output
    assert "did you mean 'dynamic'?" in said.replace("\n", " ")
    assert not (folder / "two").exists()


def test_an_objective_that_changed_is_said(folder):
    study = folder / "study.toml"
    study.write_text(study.read_text().replace('"my_model:', '"my_model.py:'))
    command("run", "study.toml", "-m", "fedavg", "--out", "one", "--quiet")
    path = folder / "my_model.py"
    path.write_text(path.read_text().replace("(items, 3)", "(items, 2)").replace("nn.Linear(3, 1)", "nn.Linear(2, 1)"))
    with pytest.warns(UserWarning, match="has changed"), pytest.raises(fs.FedsubError, match=r"items\.weight is"):
        fs.load(folder / "one" / "fedavg-seed0").module()
    path.unlink()
    with pytest.raises(fs.FedsubError, match="cannot be made again"):
        fs.load(folder / "one" / "fedavg-seed0").module()


def test_an_objective_that_takes_no_seed_starts_every_seed_anew(folder):
    raw = ("compare", "study.toml", "--set", "model.objective=my_model:fresh", "-m", "fedavg", "--seeds", "2")
    (folder / "my_model.py").write_text(
        (folder / "my_model.py").read_text() + "\ndef fresh(clients):\n    return make_objective(clients, 0)\n"
    )
    found = json.loads(command(*raw, "--split-per-seed", "--validation", "0.2", "--out", "o", "--json").stdout)
    assert not any("same initial values" in note for note in found["notes"])
    firsts = [(folder / "o" / f"fedavg-seed{s}" / "metrics.jsonl").read_text().splitlines()[0] for s in (0, 1)]
    assert json.loads(firsts[0])["validation.ce"] != json.loads(firsts[1])["validation.ce"]
    models = [fs.load(folder / "o" / f"fedavg-seed{s}") for s in (0, 1)]
    assert not torch.equal(models[0].module().out.weight, models[1].module().out.weight)  # type: ignore[union-attr]
    data = [trained.config["data"] for trained in models]
    assert data[0] != data[1]
