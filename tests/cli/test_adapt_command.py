"""`fedsub adapt`: newcomers of a finished run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from test_cli import fedsub_
from worlds import equal

import fedsub as fs
from fedsub.cli import folder as comparison

METHODS = """
[methods]
"With Adam" = { method = "fedsubadam", personal = "last", lr = 0.2 }
"Plain" = { method = "fedavg", lr = 0.2 }
"""


@pytest.fixture
def trained(folder: Path) -> Path:
    """u0 to u14 have trained, with a server that leaves rows behind; the others are newcomers.csv."""
    head, *lines = (folder / "ratings.csv").read_text().splitlines()
    old = [line for line in lines if int(line[1 : line.index(",")]) < 15]
    new = [line for line in lines if line not in old] + ["u19,never-seen,g1,5,1"]
    (folder / "ratings.csv").write_text("\n".join([head, *old]) + "\n")
    (folder / "newcomers.csv").write_text("\n".join([head, *new]) + "\n")
    study = (folder / "study.toml").read_text()
    start, end = study.index("[methods]"), study.index("[train]")
    (folder / "study.toml").write_text(study[:start] + METHODS + study[end:])
    fedsub_("compare", "study.toml", "--out", "o", "--quiet")
    return folder / "o"


def test_newcomers_get_parameters_of_their_own(trained: Path) -> None:
    said = fedsub_("adapt", "o", "newcomers.csv", "--steps", "20", "--lr", "0.2").stdout
    assert "With Adam; 5 new clients" in said
    assert re.search(r"Left out \d samples with ids that training never saw\.", said)
    assert "AUC, worst tenth" in said
    found = json.loads(fedsub_("adapt", "o/with-adam-seed0", "newcomers.csv", "--steps", "20", "--json").stdout)
    assert found["clients"] == 5
    assert found["train"]["gain"]["mean"] > 0
    assert found["test"]["by_client"]["clients"] <= 5
    again = json.loads(fedsub_("adapt", "o/with-adam-seed0", "newcomers.csv", "--steps", "20", "--json").stdout)
    assert again == found
    assert "took part in training" in fedsub_("adapt", "o", "ratings.csv", "--steps", "2").stderr


def test_what_is_restored_is_what_was_trained(trained: Path) -> None:
    out, _, experiment, _ = comparison.load(trained)
    clients, _ = experiment.parts()
    method, objective = experiment.methods(len(clients))["With Adam"], experiment.objective(clients)(0)
    result = fs.run(method, objective, clients, rounds=4, engine="batched")
    assert equal(fs.load(out / "with-adam-seed0").params, result.params)


def test_mistakes(trained: Path) -> None:
    assert "keeps no parameters at the clients" in fedsub_("adapt", "o/plain-seed0", "newcomers.csv", code=2).output
    assert "There is no file" in fedsub_("adapt", "o", "nowhere.csv", code=2).output
    assert "no directory" in fedsub_("adapt", "nowhere", "newcomers.csv", code=2).output
    (trained / "with-adam-seed0" / "result.json").unlink()
    assert "is not finished" in fedsub_("adapt", "o", "newcomers.csv", code=2).output
    (trained.parent / "other.csv").write_text("user,item,genre,time,liked\n" + "u1,zz,g,3,1\nu1,yy,g,4,0\n" * 5)
    fedsub_("resume", "o", "--quiet")
    assert "No sample has only ids" in fedsub_("adapt", "o", "other.csv", code=2).output


def test_nodes_without_a_server_have_newcomers_too(trained: Path) -> None:
    """The shared parameters are then the mean of all nodes' models."""
    study = trained.parent / "study.toml"
    nodes = '[methods]\nNodes = { method = "gossip", personal = "last", lr = 0.2 }\n'
    study.write_text(study.read_text().replace(METHODS.strip(), nodes.strip()))
    fedsub_("compare", "study.toml", "--out", "n", "--quiet")
    found = json.loads(fedsub_("adapt", "n", "newcomers.csv", "--steps", "20", "--json").stdout)
    assert found["method"] == "Nodes"
    assert found["clients"] == 5
    assert found["train"]["gain"]["mean"] > 0
