"""FedProx: the weights of fixed gradients, the local map and its limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from known_answers import (
    ENGINES,
    EVERYONE,
    final,
    quadratics,
    slopes,
    x_of,
)
from worlds import bag, equal, item_data

import fedsub as fs
from fedsub.errors import MethodError


@ENGINES
def test_fedprox_weighs_each_fixed_gradient(engine: str) -> None:
    """Δ = −η Σ_k (1−α)^{τ−1−k} g_k with α = ημ; for equal ones ‖a‖₁ = (1−(1−α)^τ)/α = 3.3616."""
    local = {"lr": 0.1, "mu": 2.0, "batch_size": 1, "batches": "ordered", **EVERYONE}
    a = 0.8 ** np.arange(4, -1, -1)
    assert a.sum() == pytest.approx(3.3616, rel=1e-12)
    for g in ([1.5] * 5, [1.0, -2.0, 0.5, 4.0, 3.0]):
        goal, clients = slopes([g, g])
        x = x_of(fs.methods.fedprox(local_steps=5, **local), goal, clients, engine=engine)
        assert 0.25 - x == pytest.approx(0.1 * a @ g, rel=1e-12)


@ENGINES
def test_fedprox_local_map_and_its_limit(engine: str) -> None:
    a, e, start, lr, mu = 3.0, 2.0, -1.0, 0.1, 0.7
    goal, clients = quadratics([a, a], [e, e], start)
    x = start
    for steps in range(1, 5):
        x = (1 - lr * (a + mu)) * x + lr * (a * e + mu * start)
        method = fs.methods.fedprox(lr=lr, mu=mu, local_steps=steps, batch_size=1, **EVERYONE)
        assert x_of(method, goal, clients, engine=engine) == pytest.approx(x, rel=1e-12)
    method = fs.methods.fedprox(lr=lr, mu=mu, local_steps=200, batch_size=1, **EVERYONE)
    assert x_of(method, goal, clients, engine=engine) == pytest.approx((a * e + mu * start) / (a + mu), rel=1e-12)


@ENGINES
def test_fedprox_without_pull_is_fedavg(engine: str) -> None:
    clients = item_data()
    goal = bag(clients, dim=3)
    local = {"lr": 0.3, "local_epochs": 1, "batch_size": 4, "clients_per_round": 5}
    found = final(fs.methods.fedprox(mu=0.0, **local), goal, clients, 2, engine=engine)
    assert equal(found, final(fs.methods.fedavg(**local), goal, clients, 2, engine=engine))


def test_too_strong_a_pull_is_refused() -> None:
    fs.methods.fedprox(lr=0.5, mu=2.0)
    too_strong: list[dict[str, Any]] = [{"lr": 0.5, "mu": 2.01}, {"lr": 0.1, "mu": 2.0, "groups": {"x": {"lr": 0.51}}}]
    for settings in too_strong:
        with pytest.raises(MethodError, match="lr·mu"):
            fs.methods.fedprox(**settings)
