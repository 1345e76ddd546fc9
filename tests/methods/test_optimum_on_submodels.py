"""Quadratics that share rows unevenly: methods against drift end at the minimiser of the normal equations.

Client i has samples ½ (c₁ x_m + c₂ x_n − b)² of two rows each, so that rows are coupled and S(i) differ. FedAvg and
FedSubAvg, with the same local steps, end where their own fixed-point equations say, which numpy solves.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedsub as fs
from fedsub.method.training import Algorithm

ROWS, LR, STEPS = 6, 0.05, 5
PAIRS = (  # rows of a sample, by client: row 0 is everybody's, row 5 one client's
    ((0, 1), (1, 2), (0, 2)), ((0, 1), (0, 1)), ((0, 2), (2, 3), (0, 3)), ((0, 4), (3, 4), (0, 3)),
    ((0, 5), (5, 4), (0, 4)),
)  # fmt: skip
LOCAL: dict[str, Any] = {"lr": LR, "local_steps": STEPS, "batch_size": None, "weighting": "clients"}


class Sums(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Embedding(ROWS, 1, _weight=torch.zeros(ROWS, 1, dtype=torch.float64))

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return (self.x(batch["pair"]).squeeze(-1) * batch["c"].double()).sum(1)


def problem() -> tuple[fs.Objective, fs.Clients, list[np.ndarray], list[np.ndarray]]:
    """(objective, clients, H_i, h_i) with f_i(x) = ½ xᵀ H_i x − h_iᵀ x + constant, on all rows."""
    draw = np.random.default_rng(5)
    pairs = np.array([pair for own in PAIRS for pair in own])
    c = draw.uniform(0.5, 1.5, pairs.shape).astype(np.float32)
    b = draw.normal(size=len(pairs)).astype(np.float32) * 3
    offsets = np.cumsum([0, *map(len, PAIRS)])
    clients = fs.Clients.from_arrays(
        {"pair": pairs, "c": c, "b": b}, offsets=offsets, ids=["pair"], values=["c", "b"], sizes={"pair": ROWS}
    )
    rows = np.zeros((len(pairs), ROWS))
    np.add.at(rows, (np.arange(len(pairs))[:, None], pairs), c.astype(float))
    parts = [(rows[i:j], b[i:j].astype(float)) for i, j in itertools.pairwise(offsets)]
    loss = lambda z, batch: 0.5 * (z - batch["b"].double()) ** 2  # noqa: E731
    objective = fs.Objective(Sums(), loss, {"x.weight": "pair"})
    return objective, clients, [a.T @ a / len(a) for a, _ in parts], [a.T @ y / len(y) for a, y in parts]


def drift(hessians: list[np.ndarray], slopes: list[np.ndarray], *, holders: bool) -> np.ndarray:
    """Where the mean of Δ_i = (P_i − I) X + q_i vanishes, P_i = (I − η H_i)^τ: over everybody, or over holders."""
    lhs, rhs, held = np.zeros((ROWS, ROWS)), np.zeros(ROWS), np.zeros(ROWS)
    for h, s in zip(hessians, slopes, strict=True):
        step, power, add = np.eye(ROWS) - LR * h, np.eye(ROWS), np.zeros(ROWS)
        for _ in range(STEPS):
            power, add = step @ power, step @ add + LR * s
        lhs, rhs, held = lhs + np.eye(ROWS) - power, rhs + add, held + (np.diag(h) > 0)
    scale = 1 / held if holders else np.full(ROWS, 1 / len(hessians))  # which moves no fixed point with everyone
    return np.linalg.solve(scale[:, None] * lhs, scale * rhs)


def end(method: Algorithm, rounds: int, start: np.ndarray | float = 0.0) -> np.ndarray:
    objective, clients, _, _ = problem()
    with torch.no_grad():
        objective.module.get_parameter("x.weight")[:, 0] = torch.as_tensor(start)
    plan = fs.Evaluate(every=rounds)
    return fs.run(method, objective, clients, rounds=rounds, evaluate=plan).params["x.weight"].numpy()[:, 0]


AGAINST: dict[str, tuple[Callable[..., Algorithm], int]] = {
    "FedDyn": (lambda **s: fs.methods.feddyn(alpha=2.0, **s), 700),
    "FedDyn with the heat correction": (lambda **s: fs.methods.fedsubavg(variates="dynamic:2.0", **s), 150),
    "FedADMM": (lambda **s: fs.methods.fedadmm(rho=2.0, **s), 150),
    "FedSplit": (lambda **s: fs.methods.fedsplit(rho=2.0, **s), 200),
    "FSVRG": (lambda **s: fs.methods.fsvrg(even=False, scale=False, **{**s, "lr": 0.3}), 700),
    "FSVRG with g over holders": (lambda **s: fs.methods.fsvrg(even=False, holders=True, **s), 700),
}


def optimum() -> np.ndarray:
    _, _, hessians, slopes = problem()
    return np.linalg.solve(sum(hessians), sum(slopes))


def test_fedavg_and_fedsubavg_stay_at_their_drift() -> None:
    """What numpy solved for is where no round moves them; that they get there, FedSubAvg sooner, is seen too."""
    _, _, hessians, slopes = problem()
    for make, holders, near in ((fs.methods.fedavg, False, 4e-3), (fs.methods.fedsubavg, True, 1e-9)):
        expected, method = drift(hessians, slopes, holders=holders), make(clients_per_round=None, **LOCAL)
        assert np.abs(expected - optimum()).max() > 0.02
        np.testing.assert_allclose(end(method, 3, expected), expected, atol=1e-12)
        np.testing.assert_allclose(end(method, 350), expected, atol=near)


@pytest.mark.parametrize("name", AGAINST)
def test_with_everyone_the_end_is_the_optimum(name: str) -> None:
    make, rounds = AGAINST[name]
    np.testing.assert_allclose(end(make(clients_per_round=None, **LOCAL), rounds), optimum(), atol=1e-10)


@pytest.mark.parametrize("name", ["FedDyn with the heat correction", "FedADMM", "FedSplit"])
def test_with_three_of_five_clients_it_is_the_optimum_too(name: str) -> None:
    make, rounds = AGAINST[name]
    np.testing.assert_allclose(end(make(clients_per_round=3, **LOCAL), 4 * rounds), optimum(), atol=1e-10)
