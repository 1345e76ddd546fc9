"""Metrics by client against the metrics of one client after the other."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsub.objective import metrics

# Few distinct scores: ties are the rule, within a client and across clients.
SAMPLES = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.one_of(st.integers(-2, 2).map(float), st.floats(-1e6, 1e6, allow_subnormal=False)),
        st.integers(0, 1),
    ),
    min_size=1,
    max_size=60,
)


def arrays(samples) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    owners, scores, labels = zip(*samples, strict=True)
    return np.array(owners), np.array(scores, float), np.array(labels, float)


@settings(max_examples=300, deadline=None)
@given(SAMPLES)
def test_auc_of_every_client_at_once(samples) -> None:
    owners, scores, labels = arrays(samples)
    found = metrics.auc_by_client(scores, labels, owners, 7)  # clients without samples too
    for client in range(7):
        mine = owners == client
        expected = metrics.auc(scores[mine], labels[mine])
        assert found[client] == pytest.approx(expected, abs=1e-12, nan_ok=True)


@settings(max_examples=100, deadline=None)
@given(SAMPLES)
def test_means_over_clients(samples) -> None:
    owners, scores, labels = arrays(samples)
    losses = np.logaddexp(0, scores) - labels * scores
    found = metrics.by_client(losses, scores, labels, owners * 3 + 1)
    clients = np.unique(owners)
    means = sorted(losses[owners == c].mean() for c in clients)
    areas = [metrics.auc(scores[owners == c], labels[owners == c]) for c in clients]
    areas = sorted(a for a in areas if not math.isnan(a))
    assert found["clients"] == len(clients)
    assert found["loss"] == pytest.approx(np.mean(means), rel=1e-12)
    assert found["worst_decile_loss"] == pytest.approx(means[-1], rel=1e-12)  # at most six clients: the worst one
    assert found["auc_clients"] == len(areas)
    if areas:
        assert found["auc"] == pytest.approx(np.mean(areas), abs=1e-12)
        assert found["worst_decile_auc"] == pytest.approx(areas[0], abs=1e-12)
    else:
        assert "auc" not in found


def test_the_worst_tenth_of_the_clients() -> None:
    owners = np.repeat(np.arange(30), 4)
    losses = owners.astype(float)
    found = metrics.by_client(losses, None, np.zeros(120), owners)
    assert found.pop("loss_quantiles") == pytest.approx(np.linspace(0, 29, 21))
    assert found == {"clients": 30, "loss": 14.5, "worst_decile_loss": 28.0}
    # Client i ranks its two positives above i of its negatives, more or less: the AUC falls with i.
    labels = np.tile([1.0, 1.0, 0.0, 0.0], 30)
    scores = np.tile([3.0, 2.0, 1.0, 0.0], 30)
    scores[owners >= 27] *= -1
    found = metrics.by_client(losses, scores, labels, owners)
    assert found["auc"] == pytest.approx(0.9)
    assert found["worst_decile_auc"] == 0.0


@settings(max_examples=100, deadline=None)
@given(SAMPLES, st.integers(0, 3))
def test_gain(samples, seed: int) -> None:
    owners, scores, _ = arrays(samples)
    losses = np.abs(scores) % 7
    before = losses + np.random.default_rng(seed).integers(-2, 3, len(losses))
    gained = [(before - losses)[owners == c].mean() for c in np.unique(owners)]
    found = metrics.gain(losses, before, owners)
    assert found["mean"] == pytest.approx(np.mean(gained), abs=1e-9)
    assert found["median"] == pytest.approx(np.median(gained), abs=1e-9)
    assert found["p10"] <= found["median"] + 1e-9 <= found["p90"] + 2e-9
    # A gain of 0 may round either way.
    surely, perhaps = (np.mean([g > limit for g in gained]) for limit in (1e-9, -1e-9))
    assert surely - 1e-12 <= found["better_off"] <= perhaps + 1e-12
    assert found["quantiles"][0] == pytest.approx(min(gained), abs=1e-9)
    assert found["quantiles"][-1] == pytest.approx(max(gained), abs=1e-9)
    nothing = metrics.gain(losses, losses, owners)
    assert nothing.pop("quantiles") == [0.0] * 21
    assert nothing == {"mean": 0.0, "p10": 0.0, "median": 0.0, "p90": 0.0, "better_off": 0.0}
