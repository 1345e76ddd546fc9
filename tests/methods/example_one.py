"""Example 1 of the paper, and gradients by client as autograd has them."""

from __future__ import annotations

import copy

import numpy as np
import torch
from known_answers import DOUBLE
from torch import nn

import fedsub as fs


class Values(nn.Module):
    """The values of the rows a sample names; padding counts nothing."""

    def __init__(self, start):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([[0.0], *[[x] for x in start]], dtype=DOUBLE))

    def forward(self, ids):
        return nn.functional.embedding(ids, self.w).squeeze(-1) * (ids != 0)


def example_one(n: int, start=(3.0, -2.0)) -> tuple[fs.Objective, fs.Clients]:
    """Client 1 has the loss w1² + w2², all others w2²; row 0 is padding."""
    lists = [[1, 2]] + [[2]] * (n - 1)
    clients = fs.Clients.from_arrays({"ids": lists}, offsets=np.arange(n + 1), ids=["ids"], sizes={"ids": 3})
    loss = lambda z, batch: (z**2).sum(-1)  # noqa: E731
    return fs.Objective(Values(start), loss, {"w": "ids"}, inputs=("ids",)), clients


def client_gradients(objective: fs.Objective, clients: fs.Clients, samples=None) -> list[dict]:
    """∇f_i at the objective's parameters, by autograd on the full table; one dict per client."""
    out = []
    for i in range(len(clients)):
        module = copy.deepcopy(objective.module)
        own = np.arange(clients.offsets[i], clients.offsets[i + 1]) if samples is None else samples[i]
        batch = {k: torch.from_numpy(v) for k, v in clients.gather(own, local=False).items()}
        objective.loss(objective.output(module, batch), batch).mean().backward()
        out.append({n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in module.named_parameters()})
    return out
