"""FedNova: fixed points, brute force, bytes, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from known_answers import (
    DOUBLE,
    ENGINES,
    EVERYONE,
    final,
    quadratics,
    slopes,
    x_of,
)
from worlds import bag, item_data, trainer_for

import fedsub as fs
from fedsub.errors import MethodError

STEPS = {"local_epochs": 1, "batch_size": 1, **EVERYONE}


@ENGINES
@pytest.mark.parametrize(("lr", "fedavg", "fednova"), [(0.01, 5.0537392, 4.6507826), (0.1, 5.4821029, 4.4047946)])
def test_fixed_points_with_unequal_steps(engine: str, lr: float, fedavg: float, fednova: float) -> None:
    rounds = 20 if lr == 0.1 else 130
    for make, expected in ((fs.methods.fednova, fednova), (fs.methods.fedavg, fedavg)):
        goal, clients = quadratics((1, 1, 1), (0, 10, 4), start=expected + 0.01, copies=[1, 5, 20])
        x = x_of(make(lr=lr, **STEPS), goal, clients, rounds, engine=engine)
        assert x == pytest.approx(expected, abs=1e-6)
    c = 1 - (1 - lr) ** np.array([1, 5, 20])
    e = np.array([0, 10, 4])
    assert c @ e / c.sum() == pytest.approx(fedavg, abs=1e-6)
    assert (c / [1, 5, 20]) @ e / (c / [1, 5, 20]).sum() == pytest.approx(fednova, abs=1e-6)


@ENGINES
@pytest.mark.parametrize("way", [{}, {"momentum": 0.7}, {"mu": 0.5}])
def test_equal_steps_make_fednova_fedavg(engine: str, way: dict) -> None:
    clients = item_data((4, 8, 2, 1, 16))
    goal = bag(clients, dim=2, dtype=DOUBLE)
    local = {"lr": 0.3, "local_steps": 3, "batch_size": 2, "clients_per_round": 3, **way}
    plain = final(fs.methods.fedavg(**local), goal, clients, 3, engine=engine)
    for name, value in final(fs.methods.fednova(**local), goal, clients, 3, engine=engine).items():
        torch.testing.assert_close(value, plain[name], rtol=1e-10, atol=1e-12)


@ENGINES
@pytest.mark.parametrize("way", [{}, {"momentum": 0.7}, {"mu": 2.0}])
@pytest.mark.parametrize("weighting", ["clients", "samples"])
def test_fednova_against_brute_force(engine: str, way: dict, weighting: str) -> None:
    """X + τ_eff Σ p_i Δ_i/‖a_i‖₁ with a_i found by sending unit gradients through the local rule one by one."""
    lr, taus = 0.1, np.array([1, 4, 7])

    def update(g) -> float:
        x = b = 0.0
        for one in g:
            b = way.get("momentum", 0.0) * b + one + way.get("mu", 0.0) * x
            x -= lr * b
        return x

    norms = np.array([sum(-update(np.eye(t)[k]) / lr for k in range(t)) for t in taus])
    if way.get("momentum"):  # the closed forms of the specification
        r = 0.7
        np.testing.assert_allclose(norms, (taus - r * (1 - r**taus) / (1 - r)) / (1 - r), rtol=1e-12)
    elif way:
        np.testing.assert_allclose(norms, (1 - 0.8**taus) / 0.2, rtol=1e-12)
    else:
        np.testing.assert_allclose(norms, taus, rtol=1e-12)
    gradients = [np.linspace(-1, 2, t).astype(np.float32).astype(float) for t in taus]
    goal, clients = slopes(gradients)
    p = taus / taus.sum() if weighting == "samples" else np.full(3, 1 / 3)
    deltas = np.array([update(g) for g in gradients])
    local = {"lr": lr, "batches": "ordered", **STEPS, "weighting": weighting, **way}
    x = x_of(fs.methods.fednova(**local), goal, clients, engine=engine)
    assert x - 0.25 == pytest.approx((p @ norms) * (p @ (deltas / norms)), rel=1e-12)
    method = fs.methods.fednova(**local)
    x = x_of(replace(method, parts=(*method.parts[:-1], fs.NormalisedSteps("steps"))), goal, clients, engine=engine)
    assert x - 0.25 == pytest.approx((p @ taus) * (p @ (deltas / norms)), rel=1e-12)


def test_fednova_sends_one_number_more() -> None:
    clients = item_data()
    goal = bag(clients, dim=2)
    plain, nova = (
        trainer_for(make(clients_per_round=4), goal, clients, "serial").round(1)
        for make in (fs.methods.fedavg, fs.methods.fednova)
    )
    assert nova.down.tolist() == plain.down.tolist()
    one = 4 + len("sum/fednova.effective") + 8  # its name and the number
    assert nova.up.tolist() == (plain.up + one).tolist()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"solver": "adam"}, "linear"),
        ({"momentum": 0.9, "mu": 0.1}, "not for both"),
        ({"clip_norm": 1.0}, "clipping"),
        ({"weight_decay": 0.1}, "weight decay"),
        ({"groups": {"out.*": {"clip_norm": 1.0}}}, "clipping"),
        ({"groups": {"out.*": {"weight_decay": 0.1}}}, "weight decay"),
        ({"groups": {"out.*": {"lr": 0.05}}, "mu": 0.1}, "one number for all"),
        ({"codec": "sign"}, "lost"),
    ],
)
def test_fednova_refuses_what_it_has_no_norm_for(settings: dict, reason: str) -> None:
    with pytest.raises(MethodError, match=reason):
        fs.methods.fednova(**settings)


def test_scaffold_comes_before_fednova() -> None:
    fs.methods.fednova(variates="II")
    with pytest.raises(MethodError, match="before FedNova"):
        replace(fs.methods.fedavg(), parts=(fs.NormalisedSteps(), fs.ControlVariates()))
