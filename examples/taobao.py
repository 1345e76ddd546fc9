"""Bought, or only put into the cart? DIN with items alone, cell by cell.

python examples/taobao.py [DIR] [ROUNDS]

DIR holds taobao-cart-buy (see docs/datasets.md); without it a part of the synthetic Alibaba log is used, which has
users and categories as well.
"""

import sys
from pathlib import Path

import fedsub as fs
from fedsub.data import datasets, twins

folder = next((Path(word) for word in sys.argv[1:] if not word.isdigit()), None)
rounds = next((int(word) for word in sys.argv[1:] if word.isdigit()), 10)

# %% The data
if folder:
    train, test = datasets.load("taobao-cart-buy", folder).split(0.8, seed=0)
else:
    clients = twins.TWINS["alibaba-like"].make(scale=0.005)
    train, test = (part.drop("holdout") for part in clients.split(by="column", column="holdout"))
print(train)


# %% Tables are found by the names of the columns
def objective(seed: int) -> fs.Objective:
    """For every seed initial values of its own."""
    return fs.models.make_objective(train, "din", max_history=20, seed=seed)


print(dict(objective(0).tables))

# %% A large population, of which few take part: the correction is large. Small gradients keep single rows from jumping
# (docs/results.md: with a norm of 5 nothing is learned here); a cap on the correction is another way.
common = dict(lr=0.3, clip_norm=0.1, clients_per_round=50, local_steps=10, batch_size=4, weighting="samples")
methods = {
    "FedAvg": fs.methods.fedavg(**common),
    "FedSubAvg": fs.methods.fedsubavg(**common),
    "FedSubAvg, capped": fs.methods.fedsubavg(max_coef=100, **common),
}
comparison = fs.compare(methods, objective, train, test=test, rounds=rounds, evaluate=fs.Evaluate(every=5))

# %% The outcome
print(comparison.table())
