"""A method of your own in a page: a new part, composed with the heat correction.

The part keeps a client from moving any parameter further than ``radius`` from what it was sent: beyond it,
the gradient is replaced by a pull back. It works in both engines because it is elementwise; `check_part` makes sure.

python examples/new_part.py
"""

from dataclasses import dataclass

import torch

import fedsub as fs
from fedsub.testing import check_part


@dataclass(frozen=True)
class Leash(fs.Part):
    """Beyond ``radius`` from what was sent, step back instead of on."""

    radius: float = 0.2

    def grad(self, grads, params, work):
        away = {k: params[k] - work.sent[k] for k in grads}
        return {k: torch.where(away[k].abs() > self.radius, away[k], g) for k, g in grads.items()}


check_part(Leash(0.2))  # engines, chunks, workers, an interruption, clients that have only bytes

clients = fs.movielens_like(scale=0.05)
train, test = clients.split(0.8, seed=0)
leashed = fs.Method(
    local=fs.SGD(lr=0.3, local_steps=10, batch_size=5),
    parts=(Leash(0.2), fs.Prox(mu=0.01)),
    average=fs.OverHolders("samples", temper=0.5),
    server=fs.Add(lr=1.0),
    sampler=fs.Uniform(30),
    name="leashed",
)
plain = fs.methods.fedsubavg(lr=0.3, clients_per_round=30, temper=0.5)
comparison = fs.compare(
    {"FedSubAvg": plain, "leashed": leashed},
    lambda seed: fs.models.make_objective(train, seed=seed),
    train,
    test=test,
    rounds=100,
)
print(comparison.table())
