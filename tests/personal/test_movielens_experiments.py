"""The experiments on personal models of MovieLens-1M, on a small release with genres."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedsub.cli import app
from fedsub.study.reproduce import studies

FOLDER = studies.experiment_file("table2_movielens_stated").parent


@pytest.fixture
def release(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    folder = tmp_path / "movielens-1m"
    folder.mkdir()
    ratings, users = [], []
    for user in range(1, 13):
        users.append(f"{user}::{'FM'[user % 2]}::{(1, 18, 25)[user % 3]}::0::0")
        for movie in draw.choice(40, 20, replace=False):
            ratings.append(f"{user}::{movie + 1}::{draw.integers(1, 6)}::978300760")
    genres = ("Comedy", "Drama|War", "Action|Crime|Thriller")
    movies = [f"{movie + 1}::Title::{genres[movie % 3]}" for movie in range(40)]
    for name, lines in (("ratings", ratings), ("users", users), ("movies", movies)):
        (folder / f"{name}.dat").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.mark.parametrize("name", ["movielens_personal", "movielens_taste"])
def test_the_comparison_runs(name: str, release: Path, tmp_path: Path):
    out = tmp_path / "out"
    given = ["compare", str(FOLDER / f"{name}.toml"), "--data", str(release), "--rounds", "2", "-k", "4"]
    done = CliRunner().invoke(app, [*given, "--out", str(out), "--json"])
    assert done.exit_code == 0, (done.output, done.exception)
    assert "FedPer + Adagrad" in done.stdout
    assert json.loads(done.stdout)


def test_lambda_is_chosen_and_tested_beside_both_ends(release: Path, capsys: pytest.CaptureFixture[str]):
    spec = importlib.util.spec_from_file_location("movielens_mixture", FOLDER / "movielens_mixture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.main(str(release), 3, 2, ("train.rounds=2", "train.clients_per_round=4"))
    assert {"lambda = 0", "lambda = inf"} <= set(found)
    assert all(math.isfinite(value) for line in found.values() for value in line.values())
    assert capsys.readouterr().out.count("chosen") == 1
