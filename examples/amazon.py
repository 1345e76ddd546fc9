"""Five stars or fewer? DIN on purchases of many users, beside baselines that it should beat, cell by cell.

python examples/amazon.py [DIR] [ROUNDS]

DIR holds amazon-electronics (see docs/datasets.md); without it the synthetic twin is used.
"""

import sys
from pathlib import Path

import fedsub as fs
from fedsub.data import datasets, twins
from fedsub.objective.models.baselines import baseline_auc

folder = next((Path(word) for word in sys.argv[1:] if not word.isdigit()), None)
rounds = next((int(word) for word in sys.argv[1:] if word.isdigit()), 20)

# %% The data: one client per user; the target item and the items it liked before share a table
clients = datasets.load("amazon-electronics", folder) if folder else twins.TWINS["amazon-like"].make(scale=0.2)
print(clients)

# %% The last fifth of every user's purchases is held out
train, test = (part.drop("holdout") for part in clients.split(by="column", column="holdout"))
for name, auc in baseline_auc(train, test).items():
    print(f"{name}: AUC {auc['auc']:.3f}, on items seen in training {auc['auc_seen']:.3f}")


# %% The network of the paper; faithful=True repeats the quirks of its released code
def objective(seed: int) -> fs.Objective:
    """For every seed initial values of its own."""
    return fs.models.make_objective(train, "din", max_history=20, seed=seed)


# %% Settings of the released code. The tempered correction does not overfit the rarest items as fast.
common = dict(
    lr=0.1, schedule=fs.schedules.Exponential(0.999), clip_norm=5.0, clients_per_round=100, local_steps=10,
    batch_size=4, weighting="samples",
)  # fmt: skip
methods = {
    "FedAvg": fs.methods.fedavg(**common),
    "FedSubAvg": fs.methods.fedsubavg(**common),
    "FedSubAvg, tempered": fs.methods.fedsubavg(temper=0.75, **common),
}
comparison = fs.compare(
    methods, objective, train, test=test, rounds=rounds, target="test.auc>=0.6", evaluate=fs.Evaluate(every=5)
)

# %% The outcome
print(comparison.table())
