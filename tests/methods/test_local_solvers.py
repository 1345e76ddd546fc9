"""Local solvers: those of torch, and clipping by a client's own norm."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from known_answers import (
    DOUBLE,
    ENGINES,
    EVERYONE,
    final,
    slopes,
    start_of,
    x_of,
)
from torch import nn
from worlds import bag

import fedsub as fs


def torch_client(goal, clients, make, steps: int, size: int, clip=None) -> dict:
    """One client's local work by torch.optim, on ordered batches."""
    module = fs.Objective(bag(clients, dim=2, dtype=DOUBLE).module, goal.loss, goal.tables).module
    module.load_state_dict(goal.module.state_dict())
    optimiser = make(module)
    per_pass = -(-clients.samples // size)
    for step in range(steps):
        at = step % per_pass * size
        own = np.arange(at, min(at + size, clients.samples))
        batch = {k: torch.from_numpy(v) for k, v in clients.gather(own, local=False).items()}
        optimiser.zero_grad()
        goal.loss(goal.output(module, batch), batch).mean().backward()
        for names, limit in (clip or {}).items():
            own = [p for n, p in module.named_parameters() if n.startswith(names)]
            nn.utils.clip_grad_norm_(own, limit)
        optimiser.step()
    return start_of(fs.Objective(module, goal.loss, goal.tables))


SOLVERS = {
    "momentum": ({"momentum": 0.8}, lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.8), None),
    "decay": ({"weight_decay": 0.3}, lambda p: torch.optim.SGD(p, lr=0.2, weight_decay=0.3), None),
    "adam": ({"solver": "adam"}, lambda p: torch.optim.Adam(p, lr=0.2), None),
    "adam and decay": (
        {"solver": "adam", "weight_decay": 0.3}, lambda p: torch.optim.Adam(p, lr=0.2, weight_decay=0.3), None,
    ),
    "clip": ({"clip_norm": 0.05}, lambda p: torch.optim.SGD(p, lr=0.2), {"": 0.05}),
    "all": (
        {"clip_norm": 0.05, "weight_decay": 0.1, "momentum": 0.5},
        lambda p: torch.optim.SGD(p, lr=0.2, weight_decay=0.1, momentum=0.5),
        {"": 0.05},
    ),
}  # fmt: skip


def lone_client():
    """A client with eight samples that holds every row, so that its submodel is the model."""
    draw = np.random.default_rng(0)
    clients = fs.Clients.from_arrays(
        {"ids": np.arange(24).reshape(8, 3) % 6, "label": draw.integers(0, 2, 8)},
        offsets=[0, 8], ids=["ids"], label="label", sizes={"ids": 6},
    )  # fmt: skip
    return bag(clients, dim=2, dtype=DOUBLE), clients


@ENGINES
@pytest.mark.parametrize("solver", SOLVERS)
def test_local_solvers_are_those_of_torch(engine: str, solver: str) -> None:
    settings, make, clip = SOLVERS[solver]
    goal, clients = lone_client()
    method = fs.methods.fedavg(lr=0.2, local_steps=6, batch_size=2, batches="ordered", clients_per_round=1, **settings)
    expected = torch_client(goal, clients, lambda m: make(m.parameters()), 6, 2, clip)
    for name, value in final(method, goal, clients, engine=engine).items():
        # torch's clipping adds 1e-6 to the norm
        torch.testing.assert_close(value, expected[name], rtol=1e-4 if clip else 1e-9, atol=1e-6 if clip else 1e-11)


@ENGINES
def test_a_client_is_clipped_by_its_own_norm(engine: str) -> None:
    """Two clients with gradients 3 and 0.5, clipped at 1: steps of 1 and 0.5."""
    goal, clients = slopes([[3.0], [-0.5]])
    method = fs.methods.fedavg(lr=0.1, local_steps=2, batch_size=1, clip_norm=1.0, **EVERYONE)
    assert x_of(method, goal, clients, engine=engine) == pytest.approx(0.25 - 0.2 * (1.0 - 0.5) / 2, rel=1e-12)
