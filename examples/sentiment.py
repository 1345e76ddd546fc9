"""Whose mood is it? An LSTM on short texts by many authors, cell by cell.

python examples/sentiment.py [DIR] [ROUNDS]

DIR holds sentiment140 or rotten-tomatoes-critics (see docs/datasets.md); without it the synthetic twin is used.
"""

import sys
from pathlib import Path

import fedsub as fs
from fedsub.data import datasets, twins

folder = next((Path(word) for word in sys.argv[1:] if not word.isdigit()), None)
rounds = next((int(word) for word in sys.argv[1:] if word.isdigit()), 20)

# %% The data: one client per author, one table of words
real = next((n for n in ("sentiment140", "rotten-tomatoes-critics") if folder and datasets.find(n, folder)), None)
clients = datasets.load(real, folder, max_len=30) if real else twins.TWINS["sentiment-like"].make(scale=0.2)
print(clients)
spread = fs.heat.summarise(clients).overall.dispersion
print(f"{real or 'sentiment-like'}: {spread:,.0f} times as many authors use the commonest word as the rarest")

# %% The model: an ordinary nn.Module with nn.LSTM inside, and its objective
train, test = clients.split(0.8, seed=0)


def objective(seed: int) -> fs.Objective:
    """For every seed initial values of its own."""
    return fs.models.make_objective(train, "lstm", seed=seed)


print(objective(0).module)

# %% The paper's setting, and what an adaptive server adds. tau is small: words of few authors must be able to move.
common = dict(clients_per_round=50, local_steps=10, batch_size=5)
methods = {
    "FedAvg": fs.methods.fedavg(lr=0.1, weighting="samples", **common),
    "FedSubAvg": fs.methods.fedsubavg(lr=0.1, weighting="samples", **common),
    "FedAdam": fs.methods.fedadam(lr=0.1, server_lr=0.02, tau=1e-7, **common),
}
comparison = fs.compare(
    methods, objective, train, test=test, rounds=rounds, target="train.ce<=0.45", evaluate=fs.Evaluate(every=5)
)

# %% The outcome, as a table; comparison.save("DIR") writes plots and a page as well
print(comparison.table())
