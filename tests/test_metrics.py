"""Metrics against scikit-learn and brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

from fedsub.objective import metrics

# Few distinct scores, so that ties are the rule; and any doubles, so that order is all that counts.
PAIRS = st.lists(
    st.tuples(
        st.one_of(st.integers(-3, 3).map(float), st.floats(-1e6, 1e6, allow_subnormal=False)),
        st.integers(0, 1),
    ),
    min_size=2,
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(PAIRS)
def test_auc_equals_sklearn(pairs) -> None:
    scores, labels = (np.array(x, float) for x in zip(*pairs, strict=True))
    found = metrics.auc(scores, labels)
    if labels.min() == labels.max():
        assert math.isnan(found)
    else:
        assert found == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(PAIRS)
def test_auc_is_the_chance_that_a_positive_scores_higher(pairs) -> None:
    scores, labels = (np.array(x, float) for x in zip(*pairs, strict=True))
    high, low = scores[labels == 1], scores[labels == 0]
    if len(high) and len(low):
        wins = (high[:, None] > low).mean() + 0.5 * (high[:, None] == low).mean()
        assert metrics.auc(scores, labels) == pytest.approx(wins, abs=1e-12)
        assert metrics.auc(-scores, labels) == pytest.approx(1 - wins, abs=1e-12)


def test_binary_equals_sklearn() -> None:
    draw = np.random.default_rng(0)
    scores = np.round(draw.normal(size=500), 1)
    scores = np.where(scores == 0, 0.05, scores)
    labels = draw.integers(0, 2, 500).astype(np.float64)
    losses = np.logaddexp(0, scores) - labels * scores
    found = metrics.binary(losses, scores, labels)
    p = 1 / (1 + np.exp(-scores))
    assert found["ce"] == pytest.approx(log_loss(labels, p))
    assert found["half_ce"] == found["ce"] / 2
    assert found["accuracy"] == pytest.approx(accuracy_score(labels, p > 0.5))
    assert found["auc"] == pytest.approx(roc_auc_score(labels, scores))


def test_groups() -> None:
    groups = np.array([2, 0, 2, 2])
    found = metrics.by_group(groups, np.arange(3), lambda mask: {"count": int(mask.sum())})
    assert found == [
        {"group": 0, "samples": 1, "count": 1},
        {"group": 1, "samples": 0},
        {"group": 2, "samples": 3, "count": 3},
    ]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.floats(-100, 100)), min_size=1, max_size=50))
def test_spread_over_clients(pairs) -> None:
    owners = np.array([p[0] for p in pairs])
    values = np.array([p[1] for p in pairs])
    means = [values[owners == c].mean() for c in np.unique(owners)]
    found = metrics.spread(values, owners)
    assert found["clients"] == len(means)
    assert found["mean"] == pytest.approx(np.mean(means), abs=1e-9)
    assert found["std"] == pytest.approx(np.std(means), abs=1e-9)
    assert found["p10"] <= found["median"] + 1e-12
    assert found["median"] <= found["p90"] + 1e-12
    assert found["median"] == pytest.approx(np.median(means), abs=1e-9)
