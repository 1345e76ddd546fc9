"""`compare`: what it refuses before training, what it takes over, and what it does when a method fails."""

from __future__ import annotations

import json
import math

import pytest
from rich.console import Console
from worlds import bag, item_data

import fedsub as fs
from fedsub.disk.files import JsonLines, dump
from fedsub.errors import CheckpointError, ConfigError, MethodError, NoUsableClient, RunError
from fedsub.objective.models import key, make_objective
from fedsub.study import comparing
from fedsub.study.comparing import Comparison
from fedsub.study.report import markdown_table, render, rich_table, text_table

FAST = {"rounds": 2, "engine": "batched", "evaluate": fs.Evaluate(every=1)}


def fedavg(lr: float = 0.1, k: int = 3) -> fs.Method:
    return fs.methods.fedavg(lr=lr, clients_per_round=k, local_steps=1)


@pytest.fixture
def never(monkeypatch):
    """Training is a mistake."""

    def run(*_, **__):
        raise AssertionError("trained")

    monkeypatch.setattr(comparing, "run", run)


# Resume --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"methods": {"A": fedavg(lr=0.2)}}, "method.local.lr"),
        ({"clients": item_data(seed=1)}, "data: "),
        ({"rounds": 1}, "rounds: 2 in the directory, 1 now"),
    ],
)
def test_a_finished_run_of_another_configuration_is_refused(tmp_path, monkeypatch, change, named):
    clients = item_data()
    fs.compare({"A": fedavg()}, bag(clients), clients, out=tmp_path, **FAST)
    monkeypatch.setattr(comparing, "run", lambda *_, **__: pytest.fail("trained"))
    same = {"methods": {"A": fedavg()}, "clients": clients, **FAST}
    assert fs.compare(objective=bag(clients), out=tmp_path, resume=True, **same).results["A"]
    with pytest.raises(CheckpointError, match=named):
        fs.compare(objective=bag(clients), out=tmp_path, resume=True, **same | change)


def test_one_foreign_run_is_refused_before_another_is_trained(tmp_path, never):
    clients = item_data()
    fs.run(fedavg(lr=0.3), bag(clients), clients, out=tmp_path / "b-seed0", **FAST)
    for resume in (True, False):
        with pytest.raises(CheckpointError, match="b-seed0"):
            fs.compare({"A": fedavg(), "B": fedavg()}, bag(clients), clients, out=tmp_path, resume=resume, **FAST)
    assert not (tmp_path / "a-seed0").exists()


def test_a_metric_that_is_not_a_number_is_the_same_after_a_resume(tmp_path):
    clients = item_data()
    fs.compare({"A": fedavg()}, bag(clients), clients, out=tmp_path, **FAST)
    file = tmp_path / "a-seed0/metrics.jsonl"
    rows = JsonLines.read(file)
    rows[1]["train.ce"] = math.nan
    rows[2]["train.ce"] = math.inf
    file.unlink()
    JsonLines(file).append(*rows)
    result = json.loads((file.parent / "result.json").read_bytes())
    older = {k: v for k, v in result.items() if k not in ("logs", "seal")}  # as without digests
    (file.parent / "result.json").write_bytes(dump(older))
    found = fs.compare({"A": fedavg()}, bag(clients), clients, out=tmp_path, resume=True, **FAST).results["A"][0]
    rounds, values = found.series("train.ce")
    assert rounds == [0, 1, 2]
    assert math.isnan(values[1])
    assert values[2] == math.inf


@pytest.mark.parametrize(
    ("name", "content"), [("result.json", b"{"), ("metrics.jsonl", b"{\n"), ("metrics.jsonl", None)]
)
def test_a_damaged_finished_run_is_an_error_of_ours(tmp_path, name, content):
    clients = item_data()
    fs.compare({"A": fedavg()}, bag(clients), clients, out=tmp_path, **FAST)
    file = tmp_path / "a-seed0" / name
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(fs.FedsubError, match=name):
        fs.compare({"A": fedavg()}, bag(clients), clients, out=tmp_path, resume=True, **FAST)


# Before training -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("methods", "seeds", "error", "message"),
    [
        ({}, 1, ConfigError, "nothing to compare"),
        ([fedavg()], 1, ConfigError, "methods is a list"),
        ({3: fedavg()}, 1, ConfigError, "label 3 is a int"),
        ({"A": "fedavg"}, 1, ConfigError, "A: got a str"),
        ({"A": fedavg(), "Big": fedavg(k=500)}, 1, MethodError, "Big: clients_per_round=500"),
        ({"a b": fedavg(), "A-B": fedavg()}, 1, ConfigError, "same directory name"),
        *[({"A": fedavg()}, seeds, ConfigError, "seeds is")
          for seeds in (0, -1, True, 10**20, [], [1, 1], [-1], [0.5], ["1"], "12", None, [2**70])],
    ],
)  # fmt: skip
def test_mistakes_show_before_training(never, methods, seeds, error, message):
    clients = item_data()
    with pytest.raises(error, match=message):
        fs.compare(methods, bag(clients), clients, seeds=seeds, **FAST)


# A method that fails -------------------------------------------------------------------------------


@pytest.fixture
def failing(monkeypatch):
    """Methods with lr=9 diverge, with seed 1 only if lr=8."""
    real = comparing.run

    def run(method, *rest, seed, **options):
        if method.local.lr == 9 or (method.local.lr == 8 and seed == 1):
            raise NoUsableClient("every update holds NaN; lower lr")
        return real(method, *rest, seed=seed, **options)

    monkeypatch.setattr(comparing, "run", run)


def test_a_method_that_fails_does_not_end_the_comparison(failing):
    clients = item_data()
    methods = {"Bad": fedavg(lr=9), "Half": fedavg(lr=8), "Good": fedavg()}
    found = fs.compare(methods, lambda seed: bag(clients, seed=seed), clients, seeds=2, **FAST)
    assert {label: len(results) for label, results in found.results.items()} == {"Half": 1, "Good": 2}
    stopped = [
        f"{who}, stopped: every update holds NaN; lower lr" for who in ("Bad, seed 0", "Bad, seed 1", "Half, seed 1")
    ]
    assert sorted(found.notes) == sorted(stopped)
    assert [row["seeds"] for row in found.rows()] == [1, 2]
    console = Console(width=200)
    with console.capture() as capture:
        console.print(rich_table(found, 200))
    for text in (text_table(found), capture.get(), markdown_table(found), render(found)):
        assert "Bad, seed 0" in text
        assert "lower lr" in text


def test_nothing_that_succeeds_is_an_error(failing):
    clients = item_data()
    with pytest.raises(NoUsableClient):
        fs.compare({"Bad": fedavg(lr=9)}, bag(clients), clients, **FAST)
    with pytest.raises(RunError, match="Bad, seed 1, stopped"):
        fs.compare({"Bad": fedavg(lr=9)}, bag(clients), clients, seeds=2, **FAST)


def test_a_full_disk_ends_the_comparison(monkeypatch):
    def run(*_, **__):
        try:
            raise OSError(28, "No space left")
        except OSError as error:
            raise RunError("Could not write") from error

    monkeypatch.setattr(comparing, "run", run)
    clients = item_data()
    with pytest.raises(RunError, match="Could not write"):
        fs.compare({"A": fedavg(), "B": fedavg()}, bag(clients), clients, **FAST)


def test_a_method_without_runs_is_left_out():
    empty = Comparison({"A": []}, notes=["A, seed 0, stopped: no"])
    assert empty.results == {}
    assert empty.metrics() == empty.rows() == []
    assert "A, seed 0, stopped" in text_table(empty)


# Built-in models -----------------------------------------------------------------------------------


def test_module_names_are_safe_and_distinct():
    names = ["a.b", "a_b", "a__b", "a_2e_b", "a", "items", "type", "a b", "é", "_", "."]
    assert len({key(name) for name in names}) == len(names)
    assert all(key(name).isascii() and key(name).isidentifier() for name in names)


@pytest.mark.parametrize("kind", ["lr", "embedding"])
def test_columns_may_have_any_name(kind):
    names = ["items", "type", "values", "training", "keys", "forward", "a.b", "a_b"]
    clients = fs.Clients.from_arrays(
        {**{name: [0, 1, 2, 1] for name in names}, "label": [0, 1, 1, 0]}, offsets=[0, 2, 4], ids=names, label="label"
    )
    objective = make_objective(clients, kind)
    result = fs.run(fedavg(k=2), objective, clients, **FAST)
    assert len(objective.tables) == len(names)
    assert math.isfinite(result.best("train.ce"))
