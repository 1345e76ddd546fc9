"""FedAvg, FedSGD and local SGD against closed forms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from example_one import client_gradients
from known_answers import DOUBLE, ENGINES, EVERYONE, final, quadratics, start_of
from worlds import bag, item_data

import fedsub as fs
from fedsub.method.batches import draw
from fedsub.method.groups import Cohort


@ENGINES
def test_drift_bias_of_fedavg(engine: str) -> None:
    goal, clients = quadratics((1, 4, 10), (0, 5, -1))
    method = fs.methods.fedavg(lr=0.02, local_steps=10, batch_size=1, **EVERYONE)
    x = float(final(method, goal, clients, 80, engine=engine)["x"])
    assert x == pytest.approx(1.1793039910, abs=1e-9)
    one_step = replace(method, local=fs.SGD(0.05, 1, None, 1))
    x = float(final(one_step, goal, clients, 200, engine=engine)["x"])
    assert x == pytest.approx(0.6666666667, abs=1e-9)  # the optimum: one local step has no drift


@ENGINES
def test_one_step_of_everyone_is_gradient_descent(engine: str) -> None:
    clients = item_data((4, 8, 2, 1, 16))  # powers of two: sample weights are exact
    goal = bag(clients, dim=2, dtype=DOUBLE)
    method = fs.methods.fedavg(lr=0.7, local_steps=1, batch_size=None, **EVERYONE)
    found = final(method, goal, clients, 3, engine=engine)
    for _ in range(3):
        gradients = client_gradients(goal, clients)
        with torch.no_grad():
            for name, p in goal.module.named_parameters():
                p -= 0.7 * sum(g[name] for g in gradients) / len(clients)
    for name, p in goal.module.named_parameters():
        torch.testing.assert_close(found[name], p.detach(), rtol=1e-10, atol=1e-12)


@ENGINES
def test_fedsgd_averages_gradients_or_parameters_alike(engine: str) -> None:
    clients = item_data((4, 8, 2, 1, 16))
    goal = bag(clients, dim=2, dtype=DOUBLE)
    found = final(fs.methods.fedsgd(lr=0.5, clients_per_round=None), goal, clients, engine=engine)
    share = clients.sizes / clients.samples
    gradients = client_gradients(goal, clients)
    for name, x in start_of(goal).items():
        step = sum(w * g[name] for w, g in zip(share, gradients, strict=True))
        torch.testing.assert_close(found[name], x - 0.5 * step, rtol=1e-10, atol=1e-12)
    # Averaging by samples, the mean gradient is the one of all samples together.
    pooled = client_gradients(goal, clients.pooled())[0]
    for name, x in start_of(goal).items():
        torch.testing.assert_close(found[name], x - 0.5 * pooled[name], rtol=1e-10, atol=1e-12)


@ENGINES
def test_local_sgd_with_one_step_is_minibatch_sgd(engine: str) -> None:
    clients = item_data((8, 9, 11, 16))
    goal = bag(clients, dim=2, dtype=DOUBLE)
    method = fs.methods.local_sgd(lr=0.5, local_steps=1, batch_size=4)
    found = final(method, goal, clients, 3, engine=engine, seed=4)
    everyone = Cohort.of(np.arange(4))
    for number in (1, 2, 3):
        samples = draw(clients, everyone, method.local, round=number, seed=4).samples
        together = client_gradients(goal, clients, [samples.reshape(-1)] * len(clients))[0]  # batch K·B = 16
        with torch.no_grad():
            for name, p in goal.module.named_parameters():
                p -= 0.5 * together[name]
    for name, p in goal.module.named_parameters():
        torch.testing.assert_close(found[name], p.detach(), rtol=1e-10, atol=1e-12)


def test_server_lr_scales_the_step() -> None:
    clients = item_data()
    goal = bag(clients, dtype=DOUBLE)
    base = {"lr": 0.5, "local_steps": 2, "batch_size": 4, "clients_per_round": 5}
    x = start_of(goal)
    one = final(fs.methods.fedavg(**base), goal, clients, engine="serial")
    half = final(fs.methods.fedavg(**base, server_lr=0.5), goal, clients, engine="serial")
    for name in x:
        torch.testing.assert_close(half[name] - x[name], 0.5 * (one[name] - x[name]), rtol=1e-9, atol=1e-13)
