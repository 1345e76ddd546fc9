"""A curious party in a run: it changes nothing, learns labels without protection, and less with it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fedsub.cli import app
from fedsub.errors import ConfigError, RunError
from fedsub.vertical import Marvell, attack, run
from fedsub.vertical.agreed import batch_of
from fedsub.vertical.attacks import attack_study
from fedsub.vertical.attacks.notes import Notes, Watching
from fedsub.vertical.attacks.study import ATTACKS, Made
from fedsub.vertical.config import Study, read

PASSES, BATCH = 2, 128


FAST = {"ads": {"optimiser": "adam:0.01"}, "publisher": {"optimiser": "adam:0.01"}}


@pytest.fixture(scope="module")
def study() -> Study:
    return read("ads-like", {"scale": 0.08, "train": {"batch_size": BATCH}, "parties": FAST})


def made(study: Study) -> Made:
    sides = study.sides()
    return study.label_party(sides.labelled), [study.party("publisher", sides.parties["publisher"])]


def test_a_watching_party_trains_the_same_model_and_sees_its_gradients(study: Study) -> None:
    label, (party,) = made(study)
    steps = -(-label.data.samples // BATCH)
    plain = run(label, [party], rounds=1, steps=steps, batch_size=BATCH)
    notes = Notes()
    label, (party,) = made(study)
    tables = {f"bottom.{name}": of for name, of in party.tables.items()}
    spy = type(party)(party.name, Watching(party.bottom, notes), party.data, party.parts, tables, party.optimiser)
    seen = run(label, [spy], rounds=1, steps=steps, batch_size=BATCH)
    for name, value in plain.result.params.items():
        assert torch.equal(value, seen.result.params[name])
    for name, value in plain.bottoms["publisher"].state_dict().items():
        assert torch.equal(value, seen.bottoms["publisher"].state_dict()[f"bottom.{name}"])
    assert len(notes.came) == steps
    # What was written down, sample by sample and up to a factor by batch.
    whole = notes.passes(0, label.data.samples, BATCH)
    first = batch_of(0, label.data.samples, BATCH, 1).copy()
    assert whole.shape == (1, label.data.samples, 16)
    assert float(whole[0, first].square().sum(1).mean()) == pytest.approx(1.0, rel=1e-5)
    scale = float(notes.came[0].square().sum(1).mean().sqrt())
    assert torch.allclose(whole[0, first] * scale, notes.came[0], atol=1e-8)
    with pytest.raises(RunError, match="are no pass over"):
        Notes().passes(0, 100, 10)


def test_labels_are_open_without_protection_and_less_so_with_marvell(study: Study) -> None:
    found = attack_study(study, {"none": (), "marvell": (Marvell(16.0),)}, seeds=(0,), passes=PASSES)
    assert found.protections() == ["alone", "none", "marvell"]
    assert found.metric == "test.auc"
    for name in ("direction", "spectral"):
        assert found.of("none", f"{name}.one")[0] > 0.97
        assert found.of("marvell", f"{name}.one")[0] < 0.75
    assert found.of("none", "norm.all")[0] > 0.9
    assert found.of("marvell", "norm.all")[0] < 0.75
    assert found.of("none", "untrained") == found.of("marvell", "untrained")
    assert found.of("alone", "norm.one") == []
    assert all(0 <= row[a] <= 1 for row in found.rows[1:] for a in (*ATTACKS, "task"))


def test_nonsense_is_refused_before_training(study: Study) -> None:
    with pytest.raises(ConfigError, match="no feature party 'publsher'; did you mean 'publisher'"):
        attack(lambda seed: made(study), {"none": ()}, curious="publsher")
    with pytest.raises(ConfigError, match="at least one"):
        attack(lambda seed: (made(study)[0], []), {"none": ()})
    with pytest.raises(ConfigError, match="No protections were given"):
        attack(lambda seed: made(study), {})


def test_the_command_prints_saves_and_repeats(tmp_path: Path) -> None:
    arguments = ["vertical", "attack", "ads-like", "--scale", "0.04", "--seeds", "2", "--passes", "1", "--json"]
    arguments += ["--protect", "none", "--protect", "mixup+project", "--set", "train.batch_size=64"]
    results = [CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / name)]) for name in ("a", "b")]
    assert [r.exit_code for r in results] == [0, 0], results[0].output
    said = json.loads(results[0].stdout)
    assert len(said["rows"]) == 6
    with open(tmp_path / "a" / "attack.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(r["protection"], r["seed"]) for r in rows[:3]] == [("alone", "0"), ("none", "0"), ("mixup+project", "0")]
    assert np.mean([float(r["direction.one"]) for r in rows if r["protection"] == "none"]) > 0.9
    assert json.loads((tmp_path / "a" / "attack.json").read_text())["rows"] == said["rows"]
    assert (tmp_path / "a" / "attack.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "a" / "attack.csv").read_bytes() == (tmp_path / "b" / "attack.csv").read_bytes()


def test_the_command_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    for arguments, wanted in (
        (["ads-lik"], "There is no file and no task 'ads-lik'; did you mean 'ads-like'"),
        (["ads-like", "--protect", "noise"], "protection must be one of"),
        (["ads-like", "--seeds", "0"], "--seeds 0 is no seed at all"),
        (["movielens-1m"], "MovieLens-1M needs --data DIR"),
    ):
        result = CliRunner().invoke(app, ["vertical", "attack", *arguments])
        assert result.exit_code == 2
        assert wanted in " ".join(result.output.split())
