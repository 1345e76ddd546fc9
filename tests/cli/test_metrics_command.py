"""Metrics of the user's own, rankings and the reference method, from flags and TOML: run, compare, tune, resume."""

from __future__ import annotations

import csv
import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedsub.cli import app
from fedsub.cli.folder import load
from fedsub.disk import functions
from fedsub.study.tuning.workers import Files

MINE = """
import numpy as np
import fedsub as fs

@fs.metric(better="higher")
def margin(scores, labels):
    return float(np.mean(np.where(labels > 0, scores, -scores)))

def silent(scores):
    return 0.0
"""
FLAGS = ["--client", "user", "--label", "liked", "--table", "item", "--methods", "fedavg,fedsubavg", "--rounds", "4",
         "--every", "2", "--engine", "batched", "-k", "5"]  # fmt: skip


@pytest.fixture
def mine(folder: Path) -> Path:
    (folder / "mine.py").write_text(MINE)
    return folder


def fedsub(*words: str):
    return CliRunner().invoke(app, [*words])


def test_flags_add_metrics_and_a_ranking(mine: Path) -> None:
    asked = [*FLAGS, "--metric", "mine.py:margin", "--rank", "item", "--seeds", "2", "--reference", "fedsubavg"]
    done = fedsub("compare", "ratings.csv", *asked, "--target", "test.ndcg@10>=0.0001", "--out", "out", "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["reference"] == "FedSubAvg"
    for row in said["methods"]:
        assert {"test.margin", "test.ndcg@10", "test.hr@10"} <= row.keys()
        assert row["first"] == [2, 2]
    assert "test.margin" in said["methods"][0]["difference"]
    assert said["methods"][1]["difference"] == {}
    assert json.loads((mine / "out/compare.json").read_text())["own_metrics"][0]["file"] == str(mine / "mine.py")
    again = fedsub("resume", "out", "-q")
    assert "interval of its difference to FedSubAvg" in " ".join(again.output.split())
    (mine / "mine.py").write_text(MINE.replace("> 0", ">= 1"))
    assert "mine.py has changed since the start" in load(mine / "out")[3][0]


def test_a_configuration_names_them(mine: Path) -> None:
    more = '\nmetrics = { edge = "mine.py:margin" }\n'
    more += 'ranking = { item = "item", k = [2, 3], candidates = 5, clients = "all" }\n'
    study = mine / "study.toml"
    study.write_text(study.read_text() + more)
    done = fedsub("run", "study.toml", "-m", "fedavg", "--out", "out", "--json")
    assert done.exit_code == 0, done.output
    final = json.loads(done.stdout)["runs"][0]["final"]["test"]
    assert final["ranking"]["candidates"] == 5
    assert {"edge", "hr@2", "hr@3", "ndcg@3"} <= final.keys()
    plan = json.loads((mine / "out/fedavg-seed0/config.json").read_text())["evaluate"]
    assert plan["ranking"]["clients"] is None


def test_settings_are_chosen_by_them(mine: Path) -> None:
    asked = [*FLAGS, "--metric", "mine.py:margin", "--rank", "item", "--grid", "lr=0.05,1", "--seeds", "2", "-q"]
    for select in ("best:margin", "final:ndcg@10"):
        out = f"tuned-{select[:4]}"
        done = fedsub("tune", "ratings.csv", *asked, "--select", select, "--workers", "1", "--out", out)
        assert done.exit_code == 0, done.output
        trials = [*csv.DictReader((mine / out / "trials.csv").open())]
        name = "best validation margin" if select == "best:margin" else "validation ndcg@10"
        for method in ("FedAvg", "FedSubAvg"):
            by_rate: dict[str, list[float]] = {}
            for row in (r for r in trials if r["method"] == method):
                by_rate.setdefault(row["lr"], []).append(float(row[name]))
            chosen = {r["lr"] for r in trials if r["method"] == method and r["chosen"] == "yes"}
            assert sum(by_rate[chosen.pop()]) == max(map(sum, by_rate.values()))  # higher is better
        head = next(csv.reader((mine / out / "winners.csv").open()))
        assert {"test margin: mean", "test ndcg@10: mean", "test ndcg@10 minus FedAvg: low"} <= {*head}
        assert "95 % intervals of differences" in done.output


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--metric", "mine.py:margn"], "did you mean 'margin'"),
        (["--metric", "mine.py"], "expected file:function, such as my_metrics.py:brier"),
        (["--metric", "mine.py:silent"], "does not say which values are better"),
        (["--rank", "itm"], "did you mean 'item'"),
        (["--rank", "item", "--set", "evaluate.ranking.kk=3"], "did you mean 'evaluate.ranking.k'"),
        (["--set", "evaluate.ranking.k=3"], "evaluate.ranking.item is missing"),
        (["--target", "test.margin>=1"], "test.accuracy"),
        (["--reference", "fedprox"], "run.reference is 'fedprox'"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(mine: Path, more: list[str], words: str) -> None:
    done = fedsub("compare", "ratings.csv", *FLAGS, *more, "--out", "out")
    assert done.exit_code == 2
    assert words in " ".join(done.output.split())
    assert not (mine / "out").exists()


def test_workers_import_the_file_before_they_read_its_functions(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    margin = functions.function_of("mine.py:margin", mine, "here", "")
    sent = pickle.dumps((Files(functions.loaded()), margin))
    monkeypatch.setattr(functions, "_LOADED", {})
    monkeypatch.delitem(sys.modules, margin.__module__)  # as in a new process
    _, again = pickle.loads(sent)
    assert again is not margin
    assert again(np.array([1.0, -1.0]), np.array([1, 0])) == 1.0


def test_tune_names_the_metrics_that_it_knows(mine: Path) -> None:
    asked = [*FLAGS, "--grid", "lr=0.1,1", "--metric", "mine.py:margin", "--out", "out"]
    done = fedsub("tune", "ratings.csv", *asked, "--select", "best:margn")
    assert done.exit_code == 2
    assert "did you mean 'margin'" in " ".join(done.output.split())
