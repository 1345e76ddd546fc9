"""MovieLens-1M: heat, then FedAvg against FedSubAvg at the papers' settings.

python examples/movielens.py DIR     (DIR holds ratings and users, .dat or .parquet, or a folder movielens-1m of them)
"""

import sys
from pathlib import Path

import fedsub as fs

if len(sys.argv) != 2:
    sys.exit(__doc__)
clients = fs.datasets.load("movielens-1m", Path(sys.argv[1])).drop("timestamp")
print(f"feature heat dispersion: {fs.heat.summarise(clients).overall.dispersion:,.0f}")

train, test = clients.split(0.8, seed=0)
settings = dict(lr=0.1, clients_per_round=50, local_steps=10, batch_size=5, weighting="samples")
comparison = fs.compare(
    {"FedAvg": fs.methods.fedavg(**settings), "FedSubAvg": fs.methods.fedsubavg(**settings)},
    lambda seed: fs.models.make_objective(train, seed=seed),
    train,
    test=test,
    rounds=300,
    seeds=3,
    target="train.ce<=0.650",
)
print(comparison.table())
for label, results in comparison.results.items():
    print(label, "reaches 0.650 first in round", [r.first_round("train.ce<=0.650") for r in results])
