"""Personal models: items that all clients share, and a taste that each keeps for itself.

python examples/fedper.py [DIRECTORY]

300 users like or dislike items as their tastes, vectors of four numbers, say. One model for everybody can only learn
which items are popular. With a private taste (FedPer) the clients agree on what items are and keep what they like.
Fifty further users come later: they get a fresh taste, fitted to their own samples (`adapt`).
"""

import sys

import numpy as np
import torch
from torch import nn

import fedsub as fs
from fedsub.data.split import select
from fedsub.running.adapt import adapt

DIM, ITEMS, USERS, NEWCOMERS = 4, 150, 300, 50


class Taste(nn.Module):
    """logit = popularity[item] + vector[item] · taste"""

    def __init__(self, items: int, dim: int):
        super().__init__()
        self.popularity, self.vectors = nn.Embedding(items, 1), nn.Embedding(items, dim)
        self.taste = nn.Parameter(torch.zeros(dim))
        nn.init.zeros_(self.popularity.weight)
        nn.init.normal_(self.vectors.weight, std=0.3)

    def forward(self, batch):
        item = batch["item"]
        return self.popularity(item).squeeze(-1) + self.vectors(item) @ self.taste


def make_clients(seed: int = 0) -> fs.Clients:
    draw = np.random.default_rng(seed)
    users = USERS + NEWCOMERS
    tastes, vectors, popular = draw.normal(size=(users, DIM)), draw.normal(size=(ITEMS, DIM)), draw.normal(size=ITEMS)
    user, item = np.nonzero(draw.random((users, ITEMS)) < 3 / np.sqrt(np.arange(1, ITEMS + 1)))
    logit = popular[item] + (tastes[user] * vectors[item]).sum(1)
    liked = draw.random(len(user)) < 1 / (1 + np.exp(-logit))
    table = {"user": user, "item": item, "liked": liked}
    return fs.Clients.from_arrays(table, client="user", ids=["item"], label="liked", sizes={"item": ITEMS})


clients = make_clients()
known, newcomers = select(clients, range(USERS)), select(clients, range(USERS, USERS + NEWCOMERS))
train, test = known.split(0.8, seed=0)


def objective(seed: int) -> fs.Objective:
    torch.manual_seed(seed)
    tables = {"popularity.weight": "item", "vectors.weight": "item"}
    return fs.Objective(Taste(ITEMS, DIM), fs.losses.binary("liked"), tables)


settings = {"lr": 0.5, "local_epochs": 2, "batch_size": 10, "clients_per_round": 60, "server_lr": 3.0}
own = {"personal": "taste", "groups": {"taste": {"weight_decay": 0.1}}}
comparison = fs.compare(
    {
        "FedAvg": fs.methods.fedavg(**settings | {"server_lr": 1.0}),
        "FedSubAvg": fs.methods.fedsubavg(**settings | {"server_lr": 1.0}),
        "FedPer": fs.methods.fedper(**settings | own),
        "FedPer, heat": fs.methods.fedsubavg(**settings | own),
    },
    objective,
    train,
    test=test,
    rounds=100,
    metric="test.auc",
)
print(comparison.table())
if len(sys.argv) > 1:
    print("Report:", comparison.save(sys.argv[1]))

# Newcomers: the shared part is trained again here, because a comparison keeps curves and no models.
result = fs.run(fs.methods.fedsubavg(**settings | own), objective(0), train, rounds=100)
arrived, later = newcomers.split(0.8, seed=0)
made = adapt(result, objective(0), arrived, "taste", test=later, steps=100, lr=0.5, batch_size=10)
found = made.metrics["test"]
print(f"{len(arrived)} newcomers, AUC averaged over them: {found['shared']['by_client']['auc']:.3f} with the shared "
      f"model, {found['by_client']['auc']:.3f} with a taste of their own.")  # fmt: skip
