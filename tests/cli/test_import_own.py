"""`fedsub data import` of tables of the user's own, and training on what came of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from fedsub.cli import app
from fedsub.data import Clients


def run(*args: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(args))
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def log(tmp_path) -> Path:
    draw = np.random.default_rng(0)
    (tmp_path / "log").mkdir()
    for part in range(3):
        frame = pl.DataFrame(
            {
                "user": draw.integers(0, 12, 80), "item": draw.integers(0, 20, 80), "other": draw.integers(0, 20, 80),
                "rating": draw.integers(1, 6, 80), "price": draw.random(80),
            }
        )  # fmt: skip
        frame.write_parquet(tmp_path / "log" / f"{part}.parquet")
    return tmp_path / "log"


FLAGS = ("--client", "user", "--table", "thing=item,other", "--label", "rating>=4", "--value", "price")


def test_a_folder_becomes_a_directory_to_train_on(log, tmp_path):
    target = str(tmp_path / "log.fedsub")
    said = run("data", "import", str(log), *FLAGS, "--to", target, "--memory", "4GB", "--workers", "2")
    assert "12 clients, 240 samples saved in" in said
    assert "Table thing: 20 rows; columns item, other" in said
    options = {"ids": {"thing": ["item", "other"]}, "label": "rating>=4", "values": ["price"]}
    assert Clients.open(target).fingerprint == Clients.from_file(log, "user", **options).fingerprint
    said = run("data", "info", target, "--json")
    about = json.loads(said[said.index("{\n") :])
    assert about["made"]["statistics"]["samples_per_client"]["mean"] == 20
    assert "holds saved data already; --force" in run("data", "import", str(log), *FLAGS, "--to", target, code=2)
    run("data", "import", str(log), *FLAGS, "--to", target, "--force", "--memory", "4GB")


def test_flags_that_are_missing_or_too_many(log, tmp_path):
    assert "Say where to save the data: --to DIR" in run("data", "import", str(log), *FLAGS, code=2)
    said = run("data", "import", str(log), "--table", "item", code=2)
    assert "--table says how to read a table of your own; give its path and --client" in said
    target = str(tmp_path / "o")
    said = run("data", "import", str(log), *FLAGS, "--to", target, "--option", "a=b", code=2)
    assert "--option is for data sets that fedsub knows" in said
    said = run("data", "import", str(log), *FLAGS, "--to", target, "--memory", "lots", code=2)
    assert "memory is 'lots', expected bytes or a text such as '2GB'" in said


def test_a_folder_is_trained_on_as_it_is(log, tmp_path):
    said = run("run", str(log), *FLAGS, "-m", "fedavg", "--rounds", "2", "--out", str(tmp_path / "out"), "--json")
    assert json.loads(said[said.index("{\n") :])
