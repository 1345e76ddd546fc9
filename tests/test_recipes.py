"""Recipes, the table of the twins and raw results: they run, and pages say what the files say."""

from __future__ import annotations

import importlib.util
import json
import re
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner
from worlds import there

import fedsub as fs
from fedsub.cli import app

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs/results"
RECIPES = {p.stem: p for p in sorted((ROOT / "experiments").glob("recipe_*.toml"))}
TWINS = {"movielens": ("movielens-like", 0.01), "amazon": ("amazon-like", 0.02)}


def script(name: str) -> ModuleType:
    spec = there(importlib.util.spec_from_file_location(name, ROOT / f"experiments/{name}.py"))
    module = importlib.util.module_from_spec(spec)
    there(spec.loader).exec_module(module)
    return module


def compared(recipe: Path, out: Path, *more: str) -> Any:
    """A recipe for two rounds on a small twin of its data."""
    name, scale = TWINS[recipe.stem.split("_")[1]]
    fs.twins.TWINS[name].make(scale=scale).save(out / "data")
    given = ["compare", str(recipe), "--data", str(out / "data"), "--rounds", "2", "-k", "4", "--out", str(out / "o")]
    done = CliRunner().invoke(app, [*given, "--json", *more])
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_recipe_runs_as_the_page_says(recipe: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs/recipes.md").read_text()
    assert f"fedsub compare experiments/{recipe.name} --data DIR" in page
    assert f"fedsub compare experiments/{recipe.name} --data DIR" in recipe.read_text()
    found = compared(recipe, tmp_path)
    assert "FedAdagrad" in {row["method"] for row in found["methods"]}
    model = fs.load(tmp_path / "o/fedadagrad-seed0")
    assert (model.personal is not None) == (recipe.stem != "recipe_movielens")  # parts of a client's own


def test_raw_results_hold_what_was_measured_and_tried(tmp_path: Path) -> None:
    found = compared(RECIPES["recipe_amazon"], tmp_path, "--methods", "FedAdagrad")
    written = script("raw_results").keep("tried", [tmp_path / "o"], tmp_path / "raw")
    assert [path.name for path in written] == ["tried-metrics.parquet"]
    lines = pl.read_parquet(written[0])
    last = lines.filter((pl.col("stage") == "final") & (pl.col("metric") == "test.auc"))
    assert last["value"].to_list() == [found["runs"][0]["final"]["test"]["auc"]]
    sent = lines.filter(pl.col("metric") == "bytes")["value"].item()
    rounds = (tmp_path / "o/fedadagrad-seed0/metrics.jsonl").read_text().splitlines()
    assert sent == sum(line["down"] + line["up"] for line in map(json.loads, rounds))
    about = pl.read_parquet_metadata(written[0])
    assert json.loads(about["settings of o"])["config"]["model"]["own_bias"] is True
    assert str(tmp_path) not in json.dumps(about)


def test_raw_results_hold_attacks(tmp_path: Path) -> None:
    rows = [
        {"protection": "alone", "seed": 3, "task": 0.7},
        {"protection": "none", "seed": 3, "task": 0.8, "norm.one": 1},
    ]
    made = {"metric": "test.auc", "settings": {"passes": 4, "known": 20}, "rows": rows}
    (tmp_path / "ads").mkdir()
    (tmp_path / "ads" / "attack.json").write_text(json.dumps(made))
    (written,) = script("raw_results").keep("attacks", [tmp_path / "ads"], tmp_path / "raw")
    lines = pl.read_parquet(written).select("of", "run", "seed", "round", "metric", "value").rows()
    assert lines == [
        ("ads", "alone", 3, 4, "test.auc", 0.7), ("ads", "none", 3, 4, "test.auc", 0.8),
        ("ads", "none", 3, 4, "attack.norm.one", 1.0),
    ]  # fmt: skip
    assert json.loads(pl.read_parquet_metadata(written)["settings of ads"]) == made["settings"]


def test_kept_files_are_small_and_in_the_table_of_the_page() -> None:
    page = (ROOT / "docs/results.md").read_text().partition("## Raw results")[2]
    kept = sorted(RESULTS.glob("*.parquet"))
    assert kept
    for path in kept:
        assert path.stat().st_size < 200_000, path
        assert f"`{path.name}`" in page, path
        assert "/work" not in json.dumps(pl.read_parquet_metadata(path)), path


def figure(of: str, run: str, metric: str) -> str:
    """Mean ± deviation over the seeds, after the last round, from the kept file."""
    lines = pl.read_parquet(RESULTS / "recipes-metrics.parquet")
    found = lines.filter(
        (pl.col("of") == of) & (pl.col("run") == run) & (pl.col("stage") == "final") & (pl.col("metric") == metric)
    )["value"]
    assert len(found) >= 3
    return f"{found.mean():.4f} ± {found.std():.4f}"


def test_the_page_has_the_figures_of_the_files() -> None:
    page = (ROOT / "docs/recipes.md").read_text()
    for of in RECIPES:
        for metric in ("test.ce", "test.auc"):
            assert figure(of.replace("_", "-"), "fedadagrad", metric) in page, (of, metric)


def test_the_table_of_the_twins_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    twins = script("twins")
    lines = pl.DataFrame(twins.measure("movielens-like", rounds=2, scale=0.01))
    assert lines["method"].to_list() == ["planted", *twins.METHODS]
    assert not len(twins.differences(lines, lines))
    off = pl.when(pl.col("method") == "FedAvg").then(0.01).otherwise(0.0)
    other = lines.with_columns(auc=pl.col("auc") + off)
    assert twins.differences(lines, other)["method"].to_list() == ["FedAvg"]
    kept = pl.read_parquet(twins.KEPT)
    assert twins.table(kept) in (ROOT / "docs/twins.md").read_text()


@pytest.mark.slow
def test_the_table_of_the_twins_comes_out_again() -> None:
    assert script("twins").main([]) == 0


def test_the_movielens_example_takes_either_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "movielens-1m"
    folder.mkdir()
    (folder / "users.dat").write_text("1::M::1::0::0\n2::F::25::0::0\n3::M::18::0::0\n")
    rated = [(1, 1, 5), (2, 1, 4), (2, 2, 1), (3, 1, 3), (3, 3, 5)]
    (folder / "ratings.dat").write_text("".join(f"{u}::{m}::{stars}::978300760\n" for u, m, stars in rated))

    class Enough(Exception):
        pass

    def stop(*_: Any, **__: Any) -> None:
        raise Enough

    monkeypatch.setattr(fs, "compare", stop)
    for given in (tmp_path, folder):
        monkeypatch.setattr(sys, "argv", ["movielens.py", str(given)])
        with pytest.raises(Enough):
            runpy.run_path(str(ROOT / "examples/movielens.py"))
    said = re.findall(r"feature heat dispersion: (\d+)", capsys.readouterr().out)
    assert said == ["3", "3"]  # movie 1 belongs to all three
