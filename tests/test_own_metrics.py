"""Metrics of the user's own: what they see, where they count, and what happens when they fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import brier_score_loss, roc_auc_score
from worlds import bag, click_data, item_data

import fedsub as fs
from fedsub.disk.functions import code_digest
from fedsub.errors import CheckpointError, ConfigError
from fedsub.running.run import finished_result

FAST: dict[str, Any] = {"rounds": 2, "engine": "serial"}
METHOD = fs.methods.fedavg(lr=0.5, clients_per_round=3)


@fs.metric(better="lower")
def brier(scores, labels):
    return np.mean((1 / (1 + np.exp(-scores)) - labels) ** 2)


@fs.metric(better="higher")
def mine(labels, scores):
    return torch.tensor(np.mean((scores > 0) == (labels > 0.5)))  # any number will do


def test_values_by_split_decile_and_client() -> None:
    train, test = item_data((9, 8, 12, 7), seed=1).split(0.7)
    plan = fs.Evaluate(every=1, metrics=[brier, mine])
    result = fs.run(METHOD, bag(train), train, test=test, evaluate=plan, **FAST)
    module = result.module()
    for split, data in (("train", train), ("test", test)):
        rows = data.gather(np.arange(data.samples), local=False)
        with torch.no_grad():
            z = module({"ids": torch.from_numpy(rows["ids"])}).double().numpy()
        chance, y, owner = 1 / (1 + np.exp(-z)), rows["label"], data.clients_of(np.arange(data.samples))
        final = result.final[split]
        assert final["brier"] == pytest.approx(brier_score_loss(y, chance)) == result.history[-1][f"{split}.brier"]
        assert final["mine"] == final["accuracy"]
        by_client = [np.mean((chance - y)[owner == c] ** 2) for c in np.unique(owner)]
        assert final["by_client"]["brier"] == pytest.approx(np.mean(by_client))
        assert final["by_client"]["brier_clients"] == len(by_client)
        assert final["by_client"]["worst_decile_brier"] == pytest.approx(max(by_client))
        groups = [d for d in final["deciles"] if d["samples"]]
        assert sum(d["samples"] * d["brier"] for d in groups) == pytest.approx(final["brier"] * data.samples)
    assert result.better("test.brier") == "lower"
    assert result.better("test.mine") == "higher"


def test_a_metric_sees_clients_columns_and_losses() -> None:
    clients = click_data()
    seen: dict[str, Any] = {}

    def look(scores, labels, losses, clients, columns, unused_default=3):
        seen.update(scores=scores, labels=labels, losses=losses, clients=clients, columns=columns)
        return float(len(scores))

    plan = fs.Evaluate(samples=None, final_samples=None, metrics={"count": fs.Metric(look, better="higher")})
    goal = fs.models.make_objective(clients, "lr")
    result = fs.run(METHOD, goal, clients, evaluate=plan, rounds=1, engine="serial")
    assert result.history[-1]["train.count"] == clients.samples
    assert result.final["train"]["by_client"]["count"] == pytest.approx(clients.sizes.mean())
    plan = fs.Evaluate(samples=None, metrics=[fs.Metric(look, "higher", "count", by_client=False)])
    result = fs.run(METHOD, goal, clients, evaluate=plan, rounds=1, engine="serial")
    assert "count" not in result.final["train"]["by_client"]
    rows = clients.gather(np.arange(clients.samples), local=False)
    some = np.arange(clients.samples)
    assert set(seen["columns"]) == set(clients.columns)
    last = seen["columns"]["item"]
    assert len(last) == len(seen["scores"]) == len(seen["clients"]) == len(seen["losses"])
    assert set(last.tolist()) <= set(rows["item"].tolist())
    assert set(seen["clients"].tolist()) <= set(clients.client_ids[clients.clients_of(some)].tolist())


def test_targets_best_and_tables_follow_the_direction(tmp_path: Path) -> None:
    train, test = item_data((9, 8, 12, 7), seed=1).split(0.7)

    @fs.metric(better="higher")
    def rising(scores):
        return float(np.abs(scores).mean())

    methods = {"slow": fs.methods.fedavg(lr=0.1, clients_per_round=3), "fast": METHOD}
    plan = fs.Evaluate(every=1, metrics=[rising, brier])
    found = fs.compare(
        methods, bag(train), train, test=test, rounds=3, engine="serial", evaluate=plan, target="test.rising>=0.000001",
        out=tmp_path / "out",
    )  # fmt: skip
    for results in found.results.values():
        (result,) = results
        assert result.best("test.rising") == max(result.series("test.rising")[1][1:])  # round 0 never counts
        assert finished_result(result.path or "").best("test.rising") == result.best("test.rising")
        assert result.first_round("test.rising>=0.000001") is not None
    assert "rising" in found.table()
    assert "test.brier" in found.metrics()
    with pytest.raises(ConfigError, match=r"did you mean 'test\.rising'"):
        fs.run(METHOD, bag(train), train, test=test, evaluate=plan, target="test.risng>=1", **FAST)


def test_a_changed_metric_is_noticed_on_resume(tmp_path: Path) -> None:
    clients = item_data((5, 6, 7))

    def made(power: int):
        def gap(scores):
            return float(np.mean(np.abs(scores) ** power))

        return fs.Evaluate(metrics=[fs.Metric(gap, better="lower")])

    out = tmp_path / "run"
    fs.run(METHOD, bag(clients), clients, evaluate=made(2), out=out, **FAST)
    saved = json.loads((out / "config.json").read_text())["evaluate"]["metrics"]["gap"]
    assert saved["better"] == "lower"
    fs.run(METHOD, bag(clients), clients, evaluate=made(2), out=out, resume=True, **FAST)
    with pytest.raises(CheckpointError, match="gap"):
        fs.run(METHOD, bag(clients), clients, evaluate=made(3), out=out, resume=True, **FAST)
    assert code_digest(brier) != code_digest(mine)
    assert code_digest(lambda x: x + 1) != code_digest(lambda x: x + 2)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda scores: 1 / 0, r"'f' raised ZeroDivisionError.*test_own_metrics.py, line"),
        (lambda scores: scores, "returned ndarray"),
        (lambda scores: None, "returned NoneType None, expected one number"),
        (lambda scores: "0.3", "returned str"),
        (lambda rating: 0.0, "asks for 'rating'; it can ask for scores, labels"),
        (3, "function of scores"),
    ],
)
def test_a_metric_that_cannot_be_computed_is_refused_before_training(function, words: str, tmp_path: Path) -> None:
    clients = item_data((5, 6, 7))

    def run() -> None:
        plan = fs.Evaluate(metrics=[fs.Metric(function, better="lower", name="f")])
        fs.run(METHOD, bag(clients), clients, evaluate=plan, out=tmp_path / "run", **FAST)

    with pytest.raises(ConfigError, match=words):
        run()
    assert not (tmp_path / "run").exists()


def test_names_and_directions_are_checked() -> None:
    for given, words in (
        ([lambda scores: 0.0], "cannot be called '<lambda>'"),
        ([np.mean], "does not say which values are better|asks for"),
        ({"auc": brier}, "which evaluations have"),
        ([brier, fs.Metric(mine, name="brier")], "Two metrics are called 'brier'"),
        (brier, "a list of functions"),
    ):
        with pytest.raises(ConfigError, match=words):
            fs.Evaluate(metrics=given)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="does not say which values are better"):
        fs.Metric(lambda scores: 0.0, name="silent")
    with pytest.raises(ConfigError, match='expected "higher" or "lower"'):
        fs.metric(better="up")


def test_a_metric_that_fails_later_loses_nothing() -> None:
    """As sklearn's do when a run diverged, or a client has samples of one class only."""
    train, test = item_data((9, 8, 12, 7), seed=1).split(0.7)
    calls = []

    def fragile(scores, labels):
        calls.append(len(scores))
        if len(calls) > 2:
            raise ValueError("no more")
        return 0.5

    plan = fs.Evaluate(every=1, metrics=[fs.Metric(fragile, better="higher"), fs.Metric(area, better="higher")])
    result = fs.run(METHOD, bag(train), train, test=test, evaluate=plan, **FAST)
    assert result.history[0]["test.fragile"] == 0.5
    assert np.isnan(result.history[1]["test.fragile"])
    said = [event for event in result.events if "fragile" in event]
    assert len(said) == 1
    assert "no more" in said[0]
    final = result.final["test"]
    assert final["area"] == pytest.approx(final["auc"])
    assert final["by_client"]["area_clients"] == final["by_client"]["auc_clients"]
    if final["by_client"]["auc_clients"]:
        assert final["by_client"]["area"] == pytest.approx(final["by_client"]["auc"])


def area(scores, labels):
    if len(np.unique(labels)) < 2:
        raise ValueError("one class")
    return roc_auc_score(labels, scores)


def test_metrics_of_other_losses_see_the_outputs() -> None:
    clients = item_data((5, 6, 7))
    goal = bag(clients)

    def loss(output, batch):
        return 0.1 * (output - batch["label"]) ** 2

    own = fs.Objective(goal.module, loss, goal.tables)
    seen = []

    def f(scores):
        seen.append(scores)
        return float(scores.mean())

    fs.run(METHOD, own, clients, evaluate=fs.Evaluate(metrics=[fs.Metric(f, better="lower")]), **FAST)
    assert seen[0].shape == (clients.samples,)
    assert np.abs(seen[0]).sum() > 0
