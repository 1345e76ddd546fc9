"""Baselines against their closed forms, and against a pilot on the real data."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from test_kinds import shop

import fedsub as fs
from fedsub.objective import metrics
from fedsub.objective.models.baselines import baseline_auc, baseline_scores, ridge, smoothed_means

SHOP = shop(tuple([6] * 12), seed=4)
TRAIN, TEST = SHOP.split(0.7, seed=1)


def table(clients: fs.Clients) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = clients.gather(np.arange(clients.samples), ["item", "label"], local=False)
    return np.repeat(clients.client_ids, clients.sizes), rows["item"], rows["label"]


def test_user_means_are_drawn_to_the_base_rate():
    user, _, label = table(TRAIN)
    got = baseline_scores(TRAIN, TEST, smoothing=3)["user means"]
    for one, score in zip(table(TEST)[0], got, strict=True):
        own = label[user == one]
        assert score == pytest.approx((own.sum() + 3 * label.mean()) / (len(own) + 3))
    assert smoothed_means(np.array([0, 0]), np.array([1.0, 0.0]), 3, 2.0).tolist() == [0.5, 0.5, 0.5]


def test_ridge_solves_the_normal_equations():
    user, item, label = table(TRAIN)
    users = np.unique(user, return_inverse=True)[1]
    one_hot = np.concatenate([np.eye(users.max() + 1)[users], np.eye(25)[item]], 1)
    want = np.linalg.solve(one_hot.T @ one_hot + 2 * np.eye(one_hot.shape[1]), one_hot.T @ (label - label.mean()))
    got = ridge([users, item], [users.max() + 1, 25], label, 2.0)
    np.testing.assert_allclose(np.concatenate(got), want, atol=1e-7)


def test_scores_fit_the_test_samples():
    scores = baseline_scores(TRAIN, TEST)
    assert set(scores) == {"user means", "item means", "ridge"}
    assert all(score.shape == (TEST.samples,) and np.isfinite(score).all() for score in scores.values())
    _, item, label = table(TEST)
    seen = np.isin(item, table(TRAIN)[1])
    assert not seen.all()
    found = baseline_auc(TRAIN, TEST)
    for name, score in scores.items():
        assert found[name] == {"auc": metrics.auc(score, label), "auc_seen": metrics.auc(score[seen], label[seen])}


def test_clients_and_items_without_training_get_the_base_rate():
    arrays = {"item": [1, 2, 1, 3], "label": [1, 0, 1, 0], "test": [0, 0, 0, 1]}
    clients = fs.Clients.from_arrays(
        arrays, np.array(["a", "a", "b", "c"]), ids=["item"], label="label", values=["test"]
    )
    train, test = clients.split(by="column", column="test")
    scores = baseline_scores(train, test)
    assert scores["user means"] == scores["item means"] == pytest.approx([2 / 3])
    assert scores["ridge"] == [0.0]


def test_without_items_there_are_user_means():
    clients = fs.Clients.from_arrays(
        {"word": [1, 2, 1, 2], "label": [1, 0, 1, 0]}, [0, 0, 1, 1], ids=["word"], label="label"
    )
    assert set(baseline_scores(clients, clients)) == {"user means"}


@pytest.mark.skipif("FEDSUB_DATA" not in os.environ, reason="needs the real data")
def test_the_pilots_figures_on_amazon_electronics():
    file = Path(os.environ["FEDSUB_DATA"]) / "amazon-electronics" / "train_interactions.parquet"
    frame = pl.read_parquet(file).sort("client_id", "time_rank").with_columns(pl.col("holdout").cast(pl.Int64))
    clients = fs.Clients.from_frame(
        frame.rename({"item_id": "item"}), "client_id", ids=["item"], label="label", values=["holdout"]
    )
    found = baseline_auc(*clients.split(by="column", column="holdout"))
    assert found["user means"]["auc"] == pytest.approx(0.704, abs=2e-3)
    assert found["ridge"]["auc"] == pytest.approx(0.733, abs=2e-3)
    assert found["ridge"]["auc_seen"] > found["ridge"]["auc"]
