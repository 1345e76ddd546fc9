"""FedBuff written again in numpy, with an event queue of its own, beside fedsub's."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from fleets import SIZES, world

import fedsub as fs
from fedsub import Asynchronous

LR, STEPS, N = 0.2, 3, len(SIZES)
WAIT = np.random.default_rng(5).uniform(0.2, 3.0, N)  # one way
SPEED = np.random.default_rng(6).uniform(2.0, 20.0, N)


def logits(table: np.ndarray, weight: float, bias: float, ids: np.ndarray) -> np.ndarray:
    return weight * table[ids].sum(1) + bias


def client_update(model, ids: np.ndarray, labels: np.ndarray):
    """STEPS steps on all samples of one client: logistic regression over a bag of ids, one number an id."""
    table, weight, bias = model[0].copy(), model[1], model[2]
    for _ in range(STEPS):
        bags = table[ids].sum(1)
        error = (1 / (1 + np.exp(-(weight * bags + bias))) - labels) / len(labels)
        slope = np.zeros_like(table)
        np.add.at(slope, ids.reshape(-1), np.repeat(error * weight, ids.shape[1]))
        table, weight, bias = table - LR * slope, weight - LR * (error * bags).sum(), bias - LR * error.sum()
    return table - model[0], weight - model[1], bias - model[2]


def fedbuff(model, data, heat: np.ndarray, *, buffer: int, steps: int, s, holders: bool):
    """Everybody trains all the time; who waits in the buffer begins again after the step. Model and times of steps."""
    time = 2 * WAIT + np.array(SIZES) * STEPS / SPEED
    running = {i: (time[i], 0, client_update(model, *data[i])) for i in range(N)}
    clocks, ages, now = [], [], 0.0
    for version in range(steps):
        came = []
        while len(came) < buffer:
            first = min(running, key=lambda i: (running[i][0], i))
            now, began, update = running.pop(first)
            came.append((first, version - began, update))
        share = N / np.maximum(heat, 1) if holders else np.ones(len(heat))
        total = [sum(s(age) * update[k] for _, age, update in came) / buffer for k in range(3)]
        model = model[0] + share * total[0], model[1] + total[1], model[2] + total[2]
        for i, _, _ in came:
            running[i] = now + time[i], version + 1, client_update(model, *data[i])
        clocks.append(now)
        ages.append(max(age for _, age, _ in came))
    return model, clocks, ages


@pytest.mark.parametrize("holders", [False, True])
@pytest.mark.parametrize(
    ("word", "s"),
    [("polynomial:0.5", lambda age: 1 / np.sqrt(1 + age)), ("constant", lambda age: 1.0),
     ("hinge:1", lambda age: 1.0 if age <= 1 else 1 / (0.5 * (age - 1) + 1))],
)  # fmt: skip
def test_the_same_model_at_the_same_times(holders: bool, word: str, s) -> None:
    objective, clients = world(dtype=torch.float64)
    draw = np.random.default_rng(0)  # as worlds.item_data draws
    ids, labels = draw.integers(0, 20, (sum(SIZES), 4)), draw.integers(0, 2, sum(SIZES))
    data = [(ids[a:b], labels[a:b]) for a, b in pairwise(np.append(0, np.cumsum(SIZES)))]
    heat = np.bincount(np.concatenate([np.unique(own) for own, _ in data]), minlength=20)
    start = [p.detach().numpy().reshape(-1).copy() for p in objective.module.parameters()]
    begin = start[0], float(start[1][0]), float(start[2][0])
    model, clocks, ages = fedbuff(begin, data, heat, buffer=3, steps=15, s=s, holders=holders)

    make = fs.methods.fedsubavg if holders else fs.methods.fedavg
    method = make(lr=LR, local_steps=STEPS, batch_size=None, weighting="clients", clients_per_round=N)
    devices = fs.Devices("odd", download=1e300, upload=1e300, latency=WAIT, speed=SPEED)
    result = fs.run(Asynchronous(method, buffer=3, staleness=word), objective, clients, rounds=15, devices=devices)
    assert max(ages) >= 3
    assert [r["stalest"] for r in result.history[1:]] == ages
    assert list(result.clock().values())[1:] == pytest.approx(clocks, rel=1e-12)
    table, weight, bias = (value.double().numpy().reshape(-1) for value in result.params.values())
    assert table == pytest.approx(model[0], abs=1e-9)
    assert (weight[0], bias[0]) == pytest.approx(model[1:], abs=1e-9)
