"""The tasks of examples/method_pictures.py, and runs on them."""

from functools import cache
from itertools import accumulate

import numpy as np
from mixture_problem import Gradients, Logistic, breast_cancer
from torch import nn

import fedsub as fs
from fedsub.families import mixture as mx

FILMS = {"lr": 0.3, "clients_per_round": 20}

STEPS = {"lr": 0.3, "local_steps": 20, "batch_size": None, "clients_per_round": 20}

EPOCHS = {"lr": 0.05, "local_epochs": 4, "batch_size": 5, "clients_per_round": None}

ROUNDS, EVERY = 100, 5


class Value(nn.Module):
    """One number for each thing."""

    def __init__(self, things):
        super().__init__()
        self.things = nn.Embedding(things, 1)
        nn.init.zeros_(self.things.weight)

    def forward(self, batch):
        return self.things(batch["thing"]).squeeze(-1)


@cache
def films():
    clients = fs.movielens_like(scale=0.05)
    train, _ = clients.split(0.8, seed=0)
    return train, fs.models.make_objective(train), "train.ce", 0.0


@cache
def tastes(clients=40, things=30):
    draw = np.random.default_rng(0)
    sizes = np.clip(draw.lognormal(3.0, 1.0, clients).astype(int), 4, 200)
    owner = np.repeat(np.arange(clients), sizes)
    habits = draw.dirichlet(np.full(things, 0.15), clients)
    thing = np.concatenate([draw.choice(things, n, p=p) for n, p in zip(sizes, habits, strict=True)])
    value = draw.normal(size=things)[thing] + draw.normal(size=(clients, things))[owner, thing]
    value = (value + 0.8 * np.log(sizes / sizes.mean())[owner]).astype(np.float32)  # busy clients are another kind
    data = {"client": owner, "thing": thing, "value": value}
    train = fs.Clients.from_arrays(data, client="client", ids=["thing"], label="value", binary_label=False)
    objective = fs.Objective(Value(train.size("thing")), fs.losses.squared("value"), tables={"things.weight": "thing"})
    mean = np.bincount(thing, value, things) / np.maximum(np.bincount(thing, minlength=things), 1)
    best = 0.5 * float(((value - mean[thing]) ** 2).mean())  # the loss is half the square
    return train, objective, "train.loss", best


@cache
def stars(users=200, films=400):
    draw = np.random.default_rng(0)
    tastes, kinds = draw.normal(size=(users, 3)), draw.normal(size=(films, 3))
    user, film = np.nonzero(draw.random((users, films)) < 0.9 / np.sqrt(np.arange(1, films + 1)))
    value = 3.5 + 0.5 * (tastes[user] * kinds[film]).sum(1) + 0.3 * draw.normal(size=len(user))
    data = {"user": user, "film": film, "rating": value.astype(np.float32)}
    train = fs.Clients.from_arrays(data, client="user", ids=["film"], label="rating", binary_label=False)
    return train, fs.models.make_objective(train, "factorisation", rank=4), "train.rmse", 0.0


RUNS: dict = {}


def trained(task, method):
    """The history of a run; methods that occur in several pictures are trained once."""
    key = task, repr(method)
    if key not in RUNS:
        train, objective, metric, best = {"films": films, "tastes": tastes, "stars": stars}[task]()
        evaluate = fs.Evaluate(every=EVERY if task == "films" else 2, samples=5000)
        trains = isinstance(method, fs.Method | fs.gossip.Gossip | fs.Asynchronous)  # others have solvers of their own
        engine = "batched" if trains else "auto"
        timed = isinstance(method, fs.Method | fs.Asynchronous) and not method.pooled
        devices = "phones" if timed else None
        result = fs.run(
            method, objective, train, rounds=ROUNDS, evaluate=evaluate, engine=engine, seed=0, devices=devices
        )
        rounds, losses = result.series(metric)
        up = [0, *accumulate(r["up"] for r in result.history if r["round"] > 0)]
        total = sum(r["up"] + r["down"] for r in result.history)
        against = {"rounds": rounds, "up": [up[r] / 1e6 for r in rounds]}
        if timed:
            against["clock"] = [result.clock()[r] for r in rounds]
        RUNS[key] = against, [loss - best for loss in losses], total
    return RUNS[key]


@cache
def personal(lam, exact, l2):
    """The clients' functions, in batches of 5, and x(λ)."""
    functions = (Logistic if exact else Gradients)(breast_cancer("sorted"), l2, batch_size=5)
    if np.isinf(lam):
        (end,) = mx.trace_path(functions, [lam], functions.constants, tolerance=1e-12)
        return functions, end.x
    return functions, functions.optima([lam])[0]
