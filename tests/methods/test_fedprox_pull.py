"""The pull of FedProx: none, on a quadratic, solved, and on rows of the submodel only."""

from __future__ import annotations

import numpy as np
import pytest
from example_one import example_one
from known_answers import ENGINES, EVERYONE, Point, final, quadratics
from worlds import bag, equal, item_data

import fedsub as fs
from fedsub.errors import MethodError


@ENGINES
def test_fedprox_without_pull_is_fedavg(engine: str) -> None:
    clients = item_data()
    goal = bag(clients, dim=3)
    local = {"lr": 0.3, "local_epochs": 2, "batch_size": 4, "clients_per_round": 5}
    assert equal(
        final(fs.methods.fedprox(mu=0.0, **local), goal, clients, 3, engine=engine),
        final(fs.methods.fedavg(**local), goal, clients, 3, engine=engine),
    )


@ENGINES
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_fedprox_on_a_quadratic(engine: str, steps: int) -> None:
    a, e, start, lr, mu = 3.0, 2.0, -1.0, 0.1, 0.7
    goal, clients = quadratics([a, a], [e, e], start)
    method = fs.methods.fedprox(lr=lr, mu=mu, local_steps=steps, batch_size=1, **EVERYONE)
    x = start
    for _ in range(steps):
        x = (1 - lr * (a + mu)) * x + lr * (a * e + mu * start)
    assert float(final(method, goal, clients, engine=engine)["x"]) == pytest.approx(x, rel=1e-12)


@ENGINES
def test_fedprox_solves_the_proximal_problem(engine: str) -> None:
    goal, clients = quadratics([3.0], [2.0], -1.0)
    method = fs.methods.fedprox(lr=0.1, mu=0.5, local_steps=300, batch_size=1, **EVERYONE)
    x = float(final(method, goal, clients, engine=engine)["x"])
    assert x == pytest.approx((3 * 2 + 0.5 * -1) / 3.5, rel=1e-12)


@ENGINES
def test_fedprox_weighs_fixed_gradients_geometrically(engine: str) -> None:
    """Linear loss g·x: Δ = −η g ‖a‖₁ with ‖a‖₁ = (1 − (1 − ημ)^τ)/(ημ) = 3.3616."""
    clients = fs.Clients.from_arrays({"g": np.array([1.5, 1.5])}, offsets=[0, 1, 2], ids=[], values=["g"])
    goal = fs.Objective(Point(0.25), lambda x, batch: batch["g"].double() * x)
    method = fs.methods.fedprox(lr=0.1, mu=2.0, local_steps=5, batch_size=1, **EVERYONE)
    x = float(final(method, goal, clients, engine=engine)["x"])
    assert (0.25 - x) / (0.1 * 1.5) == pytest.approx(3.3616, rel=1e-12)


def test_fedprox_pulls_rows_of_the_submodel_only() -> None:
    """Client 2 holds w2 only; the pull acts on it, and w1 is moved by client 1 alone."""
    goal, clients = example_one(2)
    method = fs.methods.fedprox(lr=0.1, mu=1.0, local_steps=2, batch_size=1, **EVERYONE)
    found = final(method, goal, clients, engine="serial")["w"].squeeze(-1)
    shrink = 0.8 * 0.8 + 0.1 * (1 - 0.8)  # x1 = .8X; x2 = .8 x1 − .1 (x1 − X)
    np.testing.assert_allclose(found, [0, 3 * (1 + shrink) / 2, -2 * shrink], rtol=1e-12)


def test_too_strong_a_pull_is_refused() -> None:
    with pytest.raises(MethodError, match="overshoots"):
        fs.methods.fedprox(lr=0.5, mu=2.01)
    fs.methods.fedprox(lr=0.5, mu=2.0)
    with pytest.raises(MethodError, match="at least 0"):
        fs.methods.fedprox(mu=-0.1)
