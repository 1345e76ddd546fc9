"""Convex problems: 569 samples given to 20 clients in two ways, three methods, and how far each stays from the optimum.

python examples/convex.py [ROUNDS]

Needs scikit-learn (pip install -e '.[sklearn]') for the data that come with it.
"""

import sys

import numpy as np

import fedsub as fs
from fedsub import data
from fedsub.families.mixture.linear import linear_constants

rounds, l2 = int(sys.argv[1]) if len(sys.argv) > 1 else 40, 0.01


def optimum(clients: fs.Clients) -> np.ndarray:
    """The minimiser of all clients' loss together, by Newton's method."""
    a, y = clients.columns["features"].values.astype(float), clients.columns["label"].values
    a = np.concatenate([a, np.ones((len(a), 1))], axis=1)  # for the bias
    x = np.zeros(a.shape[1])
    for _ in range(20):
        p = 1 / (1 + np.exp(-a @ x))
        hessian = (a.T * (p * (1 - p))) @ a / len(y) + l2 * np.eye(len(x))
        x -= np.linalg.solve(hessian, a.T @ (p - y) / len(y) + l2 * x)
    return x


for split in ("uniform", "sorted"):
    # %% Clients that are alike, or that know one label each
    clients = data.bundled("breast-cancer", clients=20, split=split, scaling="standard-unit")
    labels = clients.columns["label"].values
    shares = [labels[a:b].mean() for a, b in zip(clients.offsets[:-1], clients.offsets[1:], strict=True)]
    print(f"{split}: {len(clients)} clients; share of label 1 from {min(shares):.2f} to {max(shares):.2f}")

    # %% Logistic regression with an L2 term, which makes every client's function strongly convex
    train, test = clients.split(0.8, seed=0)
    objective = fs.models.make_objective(train, "linear", bias=True, l2=l2)
    known = linear_constants(train, "features", objective.loss, l2, terms=1, bias=True).together
    print(f"L = {known.L:.3f}, mu = {known.mu:.3f}; L of a single sample {known.L_terms:.3f}")

    # %% Twenty local steps, everybody in every round. Where clients know one label, each pulls the bias its own way
    common = dict(clients_per_round=None, local_steps=20, batch_size=None, lr=1 / known.L)
    methods = {
        "FedAvg": fs.methods.fedavg(**common),
        "FedProx": fs.methods.fedprox(mu=0.1, **common),
        "Scaffold": fs.methods.scaffold(**common),
    }
    best = optimum(train)
    for name, method in methods.items():
        result = fs.run(method, objective, train, test=test, rounds=rounds, engine="batched")
        model = np.concatenate([result.params["weight"].numpy(), result.params["bias"].numpy().reshape(1)])
        far = np.linalg.norm(model - best) / np.linalg.norm(best)
        print(f"{name:8} ends {far:.2%} from the optimum; test accuracy {result.final['test']['accuracy']:.3f}")
