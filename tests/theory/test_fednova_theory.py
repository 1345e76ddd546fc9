"""What FedAvg minimises where clients take different numbers of steps: weights, fixed points, constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedsub as fs
from fedsub.errors import ConfigError
from fedsub.study import theory


@pytest.mark.parametrize(("momentum", "pull"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.3)])
def test_accumulation_is_what_a_path_does(momentum: float, pull: float):
    """Gradients one at a time: the k-th alone moves the end by −η a_k; and its norm is the solver's."""
    for tau in (1, 2, 7):
        a = theory.accumulation(tau, momentum=momentum, pull=pull)
        for k in range(tau):
            x = buffer = 0.0
            for step in range(tau):
                buffer = momentum * buffer + (step == k)
                x -= (buffer if momentum else float(step == k)) + pull * x
            assert -x == pytest.approx(a[k], rel=1e-12)
        norm = fs.SGD(lr=0.1, momentum=momentum).path_norm(torch.tensor([float(tau)], dtype=torch.float64), pull)
        assert float(norm) == pytest.approx(a.sum(), rel=1e-6)


def test_surrogate_weights_and_slowdown_by_hand():
    p, a = [0.5, 0.25, 0.25], [theory.accumulation(tau) for tau in (1, 4, 7)]
    assert theory.surrogate_weights(p, a) == pytest.approx(np.array([0.5, 1.0, 1.75]) / 3.25)
    assert theory.effective_steps(p, a) == 3.25
    assert theory.slowdown([1, 4, 7], 3.25) == pytest.approx(4 / 3.25)
    assert theory.slowdown([5, 5], theory.effective_steps([0.9, 0.1], [np.ones(5)] * 2)) == 1
    assert theory.mismatch([0.5, 0.5], [0.25, 0.75]) == pytest.approx(0.0625 / 0.25 + 0.0625 / 0.75)
    assert theory.mismatch(p, p) == 0


def test_constants_by_hand():
    a = [np.array([3.0, 1.0]), np.array([1.0])]
    found = theory.nova_constants([0.25, 0.75], a, 2.0)
    assert found.noise == pytest.approx(2 * 2 * (0.0625 * 10 / 16 + 0.5625))
    assert found.drift_noise == pytest.approx(0.25 * 9)
    assert found.drift == pytest.approx(16 - 4)
    one = theory.nova_constants([0.5, 0.5], [np.ones(1)] * 2, 1.0)
    assert (one.noise, one.drift_noise, one.drift) == (1, 0, 0)  # FedSGD: no drift


@pytest.mark.parametrize(("momentum", "mu"), [(0.0, 0.0), (0.8, 0.0), (0.0, 30.0)])
def test_the_fixed_point_tends_to_the_surrogate_s_minimiser(momentum: float, mu: float):
    """Quadratics with different curvatures and steps: the distance to Σ w_i H_i (x − e_i) = 0 falls like η."""
    rng = np.random.default_rng(5)
    size, steps, p = 3, (2, 5, 11, 17), np.array([0.1, 0.2, 0.3, 0.4])
    factors = rng.standard_normal((4, size, size))
    H, e = np.einsum("kij,klj->kil", factors, factors) / size + 0.5 * np.eye(size), rng.standard_normal((4, size))
    apart = []
    for lr in (4e-4, 2e-4, 1e-4):
        a = [theory.accumulation(tau, momentum=momentum, pull=lr * mu) for tau in steps]
        w = theory.surrogate_weights(p, a)
        target = np.linalg.solve(np.einsum("k,kij->ij", w, H), np.einsum("k,kij,kj->i", w, H, e))
        # A round is affine in x, so that its fixed point is solved for: x ← M x + c.
        columns = np.stack([_round(unit, H, e, p, steps, lr, momentum, mu) for unit in (*np.eye(size), np.zeros(size))])
        M, c = (columns[:size] - columns[size]).T, columns[size]
        point = np.linalg.solve(np.eye(size) - M, c)
        apart.append(float(np.linalg.norm(point - target)))
    true = np.linalg.solve(np.einsum("k,kij->ij", p, H), np.einsum("k,kij,kj->i", p, H, e))
    assert np.linalg.norm(target - true) > 5 * apart[-1]  # it is the surrogate's and not the mean's
    assert apart[0] / apart[1] == pytest.approx(2, rel=0.1)
    assert apart[1] / apart[2] == pytest.approx(2, rel=0.1)


def _round(x, H, e, p, steps, lr, momentum, mu):
    total = np.zeros_like(x)
    for k, tau in enumerate(steps):
        y, buffer = x.copy(), np.zeros_like(x)
        for _ in range(tau):
            buffer = momentum * buffer + H[k] @ (y - e[k])
            y = y - lr * (buffer + mu * (y - x))
        total += p[k] * y
    return total


def test_fedavg_and_fednova_of_fedsub_end_where_the_weights_say():
    """Clients with 1, 4 and 10 samples of value e_i, one pass in batches of one: τ_i = w_i steps, equal p."""
    sizes, e = (1, 4, 10), np.array([0.0, 10.0, 4.0])
    clients = fs.Clients.from_arrays(
        {"one": np.ones(15, np.float32), "label": np.repeat(e, sizes).astype(np.float32)},
        offsets=np.concatenate([[0], np.cumsum(sizes)]), ids=[], label="label", values=["one"],
        binary_label=False,
    )  # fmt: skip
    options: dict[str, Any] = {
        "lr": 0.005, "local_epochs": 1, "batch_size": 1, "clients_per_round": None, "weighting": "clients",
    }  # fmt: skip
    p, a = np.full(3, 1 / 3), [theory.accumulation(tau) for tau in sizes]
    for make, weights in ((fs.methods.fedavg, theory.surrogate_weights(p, a)), (fs.methods.fednova, p)):
        goal = fs.models.make_objective(clients, "linear", loss="squared")
        found = fs.run(make(**options), goal, clients, rounds=200, evaluate=fs.Evaluate(every=200))
        assert float(found.params["weight"]) == pytest.approx(weights @ e, abs=0.1)
    assert abs(theory.surrogate_weights(p, a) @ e - p @ e) > 0.5


def test_refusals():
    with pytest.raises(ConfigError, match="not for both"):
        theory.accumulation(3, momentum=0.5, pull=0.5)
    with pytest.raises(ConfigError, match="steps must be a whole number"):
        theory.accumulation(0)
    with pytest.raises(ConfigError, match="with the sum 1"):
        theory.surrogate_weights([0.5, 0.6], [np.ones(1), np.ones(2)])
