"""Scaffold: drift, what c and c_i are, traffic, and what option II is for."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from known_answers import (
    DOUBLE,
    DRIFT,
    ENGINES,
    EVERYONE,
    FEDAVG,
    OPTIMUM,
    quadratics,
    variates,
    x_of,
)
from worlds import bag, envelope, item_data, trainer_for

import fedsub as fs
from fedsub.data.heat import row_heat, weighted_heat
from fedsub.errors import MethodError
from fedsub.method.batches import draw


@ENGINES
@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_takes_the_drift_out(engine: str, option: str) -> None:
    goal, clients = quadratics(*DRIFT)
    local = {"lr": 0.02, "local_steps": 10, "batch_size": 1, **EVERYONE}
    assert x_of(fs.methods.fedavg(**local), goal, clients, 60, engine=engine) == pytest.approx(FEDAVG, abs=1e-9)
    x = x_of(fs.methods.scaffold(option=option, **local), goal, clients, 80, engine=engine)
    assert x == pytest.approx(OPTIMUM, abs=1e-12)


@ENGINES
def test_scaffold_with_one_step_of_everyone_is_gradient_descent(engine: str) -> None:
    goal, clients = quadratics(*DRIFT, start=3.0)
    a, e = (np.array(v, float) for v in DRIFT)
    x = 3.0
    for _ in range(5):
        x -= 0.05 * (a * (x - e)).mean()
    for option in ("I", "II"):
        method = fs.methods.scaffold(option=option, lr=0.05, local_steps=1, batch_size=1, **EVERYONE)
        assert x_of(method, goal, clients, 5, engine=engine) == pytest.approx(x, rel=1e-12)


@ENGINES
@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("average", ["clients", "holders", "holders by samples"])
def test_the_servers_variate_is_the_mean_of_the_clients(engine: str, option: str, average: str) -> None:
    """c = (1/N) Σ c_i at all times; with OverHolders c_m is the mean over the holders of row m."""
    clients = item_data((1, 7, 4, 9, 2, 5))
    goal = bag(clients, dim=2, dtype=DOUBLE)
    local = {"lr": 0.3, "local_epochs": 1, "batch_size": 2, "clients_per_round": 3}
    if average == "clients":
        method = fs.methods.scaffold(option=option, weighting="clients", **local)
    else:
        how = "samples" if average.endswith("samples") else "clients"
        method = fs.methods.fedsubavg(variates=option, weighting=how, **local)
    trainer = trainer_for(method, goal, clients, engine)
    space, w = clients.spaces["ids"], clients.sizes.astype(float)
    seen: set[int] = set()
    for number in range(1, 6):
        seen |= set(trainer.round(number).clients.tolist())
        c, own = variates(trainer)
        for name, mean in c.items():
            table = name in trainer.problem.tables
            weight = torch.from_numpy(w if average.endswith("samples") else np.ones(6))
            total = torch.einsum("i,i...->...", weight, own[name])
            over = torch.tensor(float(weight.sum()))
            if table and average != "clients":
                heat = weighted_heat(space, clients.sizes) if average.endswith("samples") else row_heat(space)
                over = torch.from_numpy(heat.astype(float)).clamp(min=1)[:, None]
            torch.testing.assert_close(mean, total / over, rtol=1e-12, atol=1e-14)
        # A client that never took part has no variate; one that did has one on S(i), which is all that is stored.
        for i in range(6):
            assert bool(own["out.weight"][i].any()) == (i in seen)
    assert len(trainer.memory.tensors["scaffold.variate/emb.weight"]) == len(space.rows)


@ENGINES
def test_variates_use_the_clients_own_number_of_steps(engine: str) -> None:
    """Option II from zero: c_i⁺ = (x − y)/(I_i η), the mean gradient on the path."""
    goal, clients = quadratics((1, 4, 10), (0, 5, -1), start=2.0, copies=[1, 3, 5])
    method = fs.methods.scaffold(lr=0.02, local_epochs=1, batch_size=1, **EVERYONE)
    trainer = trainer_for(method, goal, clients, engine)
    trainer.round(1)
    c, own = variates(trainer)
    for i, (a, e, steps) in enumerate(zip(*DRIFT, (1, 3, 5), strict=True)):
        y = e + (2.0 - e) * (1 - 0.02 * a) ** steps
        assert float(own["x"][i]) == pytest.approx((2.0 - y) / (steps * 0.02), rel=1e-12)
    assert float(c["x"]) == pytest.approx(float(own["x"].mean()), rel=1e-12)


@ENGINES
@pytest.mark.parametrize("share", [1.0, 0.5, 0.1])
def test_option_one_takes_the_gradient_at_x_over_a_share_of_the_batches(engine: str, share: float) -> None:
    """c_i⁺ = g_i(x): the mean over the first ⌈share · I_i⌉ batches, whichever way a client's steps go on."""
    clients = item_data((1, 7, 4, 9, 2, 5))
    goal = bag(clients, dim=2, dtype=DOUBLE)
    local = {"lr": 0.3, "local_epochs": 1, "batch_size": 2, "clients_per_round": None}
    name = "I" if share == 0.5 else f"I:{share:g}"
    trainer = trainer_for(fs.methods.scaffold(option=name, **local), goal, clients, engine)
    part = trainer.method.parts[0]
    assert isinstance(part, fs.ControlVariates)
    assert part.share == share
    trainer.round(1)
    _, own = variates(trainer)
    everyone = trainer.server.sampler.select(1, 0, lambda who, _: np.zeros(len(who)))
    batches = draw(clients, everyone, trainer.method.local, round=1, seed=0)
    for i, steps in enumerate(batches.steps):
        module, found = copy.deepcopy(goal.module), []
        for step in range(math.ceil(share * steps)):
            at = batches.samples[i, step][batches.weights[i, step] > 0]
            batch = {k: torch.from_numpy(v) for k, v in clients.gather(at, ("ids", "label"), local=False).items()}
            loss = goal.loss(goal.output(module, batch), batch).mean()
            found.append(torch.autograd.grad(loss, list(module.parameters())))
        for (key, _), gradients in zip(module.named_parameters(), zip(*found, strict=True), strict=True):
            torch.testing.assert_close(own[key][i], torch.stack(gradients).mean(0), rtol=1e-9, atol=1e-12)


@ENGINES
def test_scaffold_costs_twice_the_traffic(engine: str) -> None:
    clients = item_data()
    goal = bag(clients, dim=2, dtype=DOUBLE)
    local: dict[str, Any] = {"local_steps": 1, "clients_per_round": 4}
    plain, double = (
        trainer_for(make(**local), goal, clients, engine).round(1) for make in (fs.methods.fedavg, fs.methods.scaffold)
    )
    assert plain.clients.tolist() == double.clients.tolist()
    shapes = {"emb.weight": 2, "out.weight": 2, "out.bias": 1}
    values = 8 * (2 * clients.spaces["ids"].counts[plain.clients] + 3)
    more = envelope({f"scaffold.variate/{n}": ndim for n, ndim in shapes.items()}) - envelope({}) + values
    assert double.down.tolist() == (plain.down + more).tolist()
    assert double.up.tolist() == (plain.up + more).tolist()  # the rows' ids cross once


def test_option_two_is_for_plain_sgd() -> None:
    others: list[dict[str, Any]] = [{"momentum": 0.9}, {"solver": "adam"}, {"clip_norm": 1.0}, {"weight_decay": 0.1}]
    for settings in others:
        with pytest.raises(MethodError, match="option"):
            fs.methods.scaffold(**settings)
        fs.methods.scaffold(option="I", **settings)
    with pytest.raises(MethodError, match="sampled"):
        fs.methods.sampled_heat(variates="II")
    for wrong, said in (
        ("I:0", "above 0"),
        ("I:2", "at most 1"),
        ("II:1", "no number"),
        ("III", "one of"),
        ("I:x", "not a"),
    ):
        with pytest.raises(MethodError, match=said):
            fs.methods.scaffold(option=wrong)
