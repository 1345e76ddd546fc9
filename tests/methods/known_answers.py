"""Problems whose answers are known, and short cuts to run them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import fedsub as fs

DOUBLE = torch.float64


EVERYONE = {"clients_per_round": None, "weighting": "clients"}


ENGINES = pytest.mark.parametrize("engine", ["serial", "batched"])


class Point(nn.Module):
    """Dense numbers, in double."""

    def __init__(self, *start: float):
        super().__init__()
        self.x = nn.Parameter(torch.tensor(start[0] if len(start) == 1 else start, dtype=DOUBLE))

    def forward(self, batch):
        return self.x


def quadratics(a, e, start: float = 0.0, copies=None) -> tuple[fs.Objective, fs.Clients]:
    """Client i has ½ a_i (x − e_i)², ``copies[i]`` times over."""
    copies = copies or [1] * len(a)
    clients = fs.Clients.from_arrays(
        {"a": np.repeat(np.array(a, np.float32), copies), "e": np.repeat(np.array(e, np.float32), copies)},
        offsets=np.concatenate([[0], np.cumsum(copies)]),
        ids=[],
        values=["a", "e"],
    )
    loss = lambda x, batch: 0.5 * batch["a"].double() * (x - batch["e"].double()) ** 2  # noqa: E731
    return fs.Objective(Point(start), loss), clients


def slopes(g, copies=None) -> tuple[fs.Objective, fs.Clients]:
    """Client i has the loss g_ik · x on its k-th sample: gradients that do not depend on x."""
    clients = fs.Clients.from_arrays(
        {"g": np.concatenate(g).astype(np.float32)},
        offsets=np.concatenate([[0], np.cumsum([len(one) for one in g])]),
        ids=[],
        values=["g"],
    )
    return fs.Objective(Point(0.25), lambda x, batch: batch["g"].double() * x), clients


def final(method, objective, clients, rounds: int = 1, **options):
    return fs.run(method, objective, clients, rounds=rounds, **options).params


def x_of(*arguments, **options) -> float:
    return float(final(*arguments, **options)["x"])


def start_of(objective: fs.Objective) -> dict:
    return {n: p.detach().clone() for n, p in objective.module.named_parameters()}


DRIFT = ((1, 4, 10), (0, 5, -1))  # a and e of §2.1: optimum 2/3, FedAvg ends elsewhere


OPTIMUM, FEDAVG = 2 / 3, 1.1793039910


def variates(trainer) -> tuple[dict, dict]:
    """(c, c_i) of a trainer: c_i of tables as [N, rows, …], zero outside S(i)."""
    c = trainer.server.keeper.slots["scaffold"]["variate"]
    own = {}
    for name in trainer.problem.names:
        stored = trainer.memory.tensors[f"scaffold.variate/{name}"]
        if name not in trainer.problem.tables:
            own[name] = stored
            continue
        space = trainer.problem.tables[name]
        own[name] = torch.zeros(len(trainer.problem.clients), *c[name].shape, dtype=DOUBLE)
        for i in range(len(trainer.problem.clients)):
            at = slice(int(space.row_offsets[i]), int(space.row_offsets[i + 1]))
            own[name][i, torch.from_numpy(space.rows_of(i)).long()] = stored[at]
    return c, own
