"""Each command end to end, on small synthetic data."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

import fedsub as fs
from fedsub.cli import app
from fedsub.study.reproduce import output, runs, studies
from fedsub.study.reproduce.table1 import sparsity
from fedsub.study.tuning import workers

SMALL = ["--twin", "--scale", "0.01", "--task", "movielens", "--workers", "1", "--rounds", "4", "--seeds", "2"]
TWO = ["--methods", "fedavg,fedsubavg"]


def call(*arguments: str, code: int = 0):
    result = CliRunner().invoke(app, ["reproduce", *arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def rows(folder: str) -> list[dict[str, str]]:
    with open(Path("runs/reproduce") / folder / "table.csv", newline="") as file:
        return list(csv.DictReader(file))


def numbers(folder: str) -> list[dict[str, str]]:
    """All that may not change when a run is made again."""
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows(folder)]


def test_table1_prints_the_published_rows_beside_ours():
    said = call("table1", "--task", "movielens,sentiment", "--scale", "0.05").output
    assert "6,040" in said
    assert "1,451" in said
    (movies, texts) = rows("table1-movielens-sentiment")
    assert (movies["data"], movies["clients"], movies["published_clients"]) == ("movielens-like", "302", "6040")
    assert texts["published_dispersion"] == "1451"
    assert (movies["published_sparsity"], texts["published_sparsity"]) == ("0.0416", "0.1315")
    assert "4.16 %" in said
    assert "0.05 of the published size" in said


def test_sparsity_is_the_mean_heat_by_the_clients_with_data():
    """Heats 3, 1 and 1 of three clients; row 0 and row 4 are nobody's."""
    ids = {"item": ["item"]}
    clients = fs.Clients.from_arrays(
        {"item": [1, 2, 1, 1, 3, 3], "label": [0, 1, 0, 1, 0, 1]}, offsets=[0, 2, 3, 6], ids=ids, label="label",
        sizes={"item": 5},
    )  # fmt: skip
    assert sparsity(clients) == pytest.approx((3 + 1 + 1) / 3 / 3)


def test_table2_is_written_and_a_second_call_trains_nothing(monkeypatch):
    drawn: list[str | None] = []

    def noted(panels: Mapping[str, fs.Comparison], metric: str | None = None) -> Figure:
        assert all(found.results["FedAvg"][0].series(metric or "train.ce") for found in panels.values())
        drawn.append(metric)
        return Figure(figsize=(1, 1))

    monkeypatch.setattr(output, "panels_plot", noted)
    said = call("table2", *SMALL, *TWO).output
    assert drawn == [None, "test.accuracy"]  # the curves, and those of the accuracy
    folder = Path("runs/reproduce/table2-stated-movielens-twin")
    assert {p.name for p in folder.iterdir()} == {
        "table.md", "table.csv", "curves.png", "accuracy.png", "page.html",
    }  # fmt: skip
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "page.html").read_text()
    assert "<svg" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert [(r["method"], r["published_rounds"], r["seeds"]) for r in rows(folder.name)] == [
        ("FedAvg", "170", "2"),
        ("FedSubAvg", "100", "2"),
    ]
    assert "4+" in said
    assert "half_ce" in said
    before = numbers(folder.name)
    monkeypatch.setattr(workers, "perform", lambda *_: pytest.fail("trained"))
    again = call("table2", *SMALL, *TWO, "--quiet").output
    assert "published" in again
    assert numbers(folder.name) == before
    call("figure3", *SMALL, *TWO)
    assert numbers("figure3-stated-movielens-twin") == before


def test_finished_runs_keep_their_numbers_but_no_checkpoints():
    """State at clients can take gigabytes. A record that is lost is made again."""
    call("table2", *SMALL, *TWO)
    before = numbers("table2-stated-movielens-twin")
    folders = [p for p in Path("runs/reproduce/runs/movielens-like").iterdir() if p.is_dir()]
    assert len(folders) == 4
    assert all((p / "result.json").exists() and not (p / "checkpoints").exists() for p in folders)
    folders[0].with_suffix(".json").unlink()
    call("table2", *SMALL, *TWO)
    assert numbers("table2-stated-movielens-twin") == before


def test_changed_settings_make_new_runs(monkeypatch):
    call("table2", *SMALL, "--methods", "fedavg")
    kept = {p.name for p in Path("runs/reproduce/runs/movielens-like").glob("*.json")}
    call("table2", *SMALL, "--methods", "fedavg", "--rounds", "3")
    now = {p.name for p in Path("runs/reproduce/runs/movielens-like").glob("*.json")}
    assert kept < now
    assert len(now) == 4
    trained = []
    real = workers.perform
    monkeypatch.setattr(workers, "perform", lambda bench, job: trained.append(job.seed) or real(bench, job))
    call("table2", *SMALL, "--methods", "fedavg", "--seeds", "3")
    assert trained == [2]


def test_figure4_draws_the_runs_of_table3(monkeypatch, real_plots):
    call("table3", *SMALL, "--seeds", "1")
    assert [(r["method"], r["published_rounds"]) for r in rows("table3-movielens-twin")] == [
        ("K=10", "100"),
        ("K=30", "110"),
        ("K=50", "100"),
    ]
    monkeypatch.setattr(workers, "perform", lambda *_: pytest.fail("trained"))
    call("figure4", *SMALL, "--seeds", "1")
    folder = Path("runs/reproduce/figure4-movielens-twin")
    assert (folder / "curves.png").stat().st_size > 10_000
    page = (folder / "page.html").read_text()
    assert page.index('id="curves"') < page.index('id="table"')


def test_the_tuned_protocol_searches_once_and_trains_the_winners(monkeypatch):
    said = call("table2", *SMALL, *TWO, "--protocol", "tuned", "--json")
    found = json.loads(said.stdout)
    (note,) = [n for n in found["notes"] if "chosen by" in n]
    assert "FedAvg: lr=" in note
    assert [r["method"] for r in found["rows"]] == ["FedAvg", "FedSubAvg"]
    (search,) = Path("runs/reproduce/search").iterdir()
    assert len(list((search / "trials").glob("*.json"))) == 10  # two methods, five points, one seed
    monkeypatch.setattr(workers, "perform", lambda *_: pytest.fail("trained"))
    again = json.loads(call("table2", *SMALL, *TWO, "--protocol", "tuned", "--json").stdout)
    assert again["rows"] == found["rows"]


def test_winners_in_the_file_are_taken_on_their_task_only(monkeypatch):
    monkeypatch.setattr(runs, "tune", lambda *_, **options: pytest.fail(f"searched {options['grid']}"))
    shop = runs.Workshop(Path("out"), 1, workers.Watch())
    small = runs.Loaded.read(studies.experiment("table2_movielens_tuned", "movielens-like", None, 0.01, {}))

    def winners(task: str) -> runs.Loaded:
        changes = {"tune": {"winners_of": task}}
        made = studies.experiment("table2_movielens_tuned", "movielens-like", None, None, changes)
        return shop.winners(small.with_(studies.changed(made, {"fedavg": {"lr": 0.7}})), "x")

    assert winners("movielens-like").experiment.settings(60)["FedAvg"]["lr"] == 0.7
    with pytest.raises(pytest.fail.Exception, match="searched"):
        winners("movielens-1m")


def test_din_is_never_printed_without_what_it_has_to_beat():
    arguments = ["--twin", "--scale", "0.06", "--task", "amazon", "--workers", "1", "--rounds", "2", "--seeds", "1"]
    said = call("table2", *arguments, "--methods", "fedsubavg").output
    names = [r["method"] for r in rows("table2-stated-amazon-twin")]
    assert names[0] == "FedSubAvg"
    assert {"User + item LR, FedSubAvg", "User + item ridge, central", "Smoothed user means"} <= set(names)
    for row in rows("table2-stated-amazon-twin"):
        assert 0 < float(row["best_test.auc_mean"]) < 1
        assert 0 < float(row["best_test_seen.auc_mean"]) < 1
    assert "0.641" in said  # the paper's best AUC


def test_killed_and_called_again_it_ends_as_if_nothing_had_happened(folder):
    slow = [*SMALL, *TWO, "--rounds", "40"]
    command = [sys.executable, "-m", "fedsub", "reproduce", "table2", *slow, "--out", "killed"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 60
    kept = Path("killed/runs/movielens-like")
    while time.monotonic() < deadline and not any(kept.glob("*/checkpoints/*")):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not Path("killed/table2-stated-movielens-twin").exists()
    call("table2", *slow, "--out", "killed")
    call("table2", *slow)
    one, other = (Path(p) / "table2-stated-movielens-twin" / "table.csv" for p in ("killed", "runs/reproduce"))
    cut = [[line.rsplit(",", 1)[0] for line in path.read_text().splitlines()] for path in (one, other)]
    assert cut[0] == cut[1]


@pytest.mark.skipif("FEDSUB_DATA" not in os.environ, reason="needs the real data: FEDSUB_DATA=DIR")
def test_table1_of_the_real_data():
    call("table1", "--data", os.environ["FEDSUB_DATA"], "--task", "movielens,amazon")
    (movies, amazon) = rows("table1-movielens-amazon")
    assert (movies["clients"], movies["samples"], movies["dispersion"]) == ("6040", "1000209", "4331.0")
    assert (amazon["clients"], amazon["samples"], amazon["dispersion"]) == ("1859", "99710", "232.0")
    assert round(float(movies["samples_per_client"]), 1) == 165.6
    assert round(float(amazon["samples_per_client"]), 1) == 53.6
