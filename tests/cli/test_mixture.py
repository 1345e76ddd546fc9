"""`fedsub mixture path` as a person uses it, and the mixture's methods on the command line."""

from __future__ import annotations

import json
import signal
import time

import pytest
from test_cli import RATINGS, fedsub_, start

PATH = ("mixture", "path", *RATINGS, "--l2", "0.05", "--lams", "0.01..1/3", "--engine", "batched")


def test_a_killed_path_is_resumed_to_the_same_numbers(folder):
    whole = json.loads(fedsub_(*PATH, "--out", "whole", "--json").stdout)
    assert [p["lam"] for p in whole["points"]] == [0.0, 0.01, 0.1, 1.0, None]  # JSON has no infinity
    process = start(*PATH, "--out", "o")
    lines = folder / "o/metrics.jsonl"
    while process.poll() is None and not list((folder / "o/checkpoints").glob("round-*.json")):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = lines.read_bytes()
    said = fedsub_(*PATH, "--out", "o", "--resume").stdout
    assert "of 5 points were computed before and are read." in said
    assert lines.read_bytes().startswith(before)
    assert lines.read_bytes() == (folder / "whole/metrics.jsonl").read_bytes()
    assert "Chosen: λ = " in said
    assert "Test, chosen" in said
    for name in ("path.csv", "path.json", "path.png"):
        assert (folder / "o" / name).exists(), name
    refused = fedsub_("resume", "o", code=2).stderr
    assert "fedsub mixture path" in refused


def test_any_model_with_a_method_and_rounds(folder):
    said = fedsub_(
        "mixture", "path", *RATINGS, "--model", "embedding", "-m", "l2sgd+", "--rounds", "6", "--lams", "2",
        "--select", "auc", "--out", "o", "--set", "methods.l2sgd_plus.batch_size=3",
    ).stdout  # fmt: skip
    assert "λ = ∞, 2 of 4" in said
    assert "by area under the ROC curve on validation samples" in said


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ((), "--l2 0.001"),
        (("--l2", "0.1", "--model", "embedding"), "--method l2sgd+ --rounds 2000"),
        (("--method", "l2sgd+"), "--method and --rounds belong together"),
        (("--method", "fedavg", "--rounds", "3"), "has no lam; use l2gd"),
        (("--lams", "0.1..1"), "--lams 0.1..1/9"),
        (("--lams", "a"), "expected a finite number"),
        (("--validation", "1.5", "--l2", "1"), "share of the training samples"),
        (("--select", "aucc", "--l2", "1"), "did you mean 'auc'"),
    ],
)
def test_mistakes_of_a_path(folder, more, message):
    refused = fedsub_("mixture", "path", *RATINGS, *more, "--out", "o", code=2).stderr
    assert message in refused
    assert not (folder / "o").exists()


@pytest.mark.parametrize(("name", "example"), [("l2sgd+", "l2sgd_plus.lam=0.1"), ("lgd", "lgd.local_steps=1")])
def test_settings_are_explained(name, example):
    said = fedsub_("methods", name).stdout
    assert "strong convexity of the clients' losses" in said
    assert f"--set methods.{example}" in " ".join(said.split())


def test_a_run_tells_how_often_it_averaged(folder):
    said = fedsub_("run", *RATINGS, "-m", "l2sgd+", "--rounds", "40", "--set", "methods.l2sgd_plus.p=0.5").stdout
    assert "averaged" in said
    assert "best mixture" not in said
