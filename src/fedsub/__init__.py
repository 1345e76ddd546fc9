"""Federated learning of models with large sparse tables, by submodels.

import fedsub as fs

clients = fs.Clients.from_file("ratings.csv", client="user", ids=["item"], label="liked")
train, test = clients.split(0.8)
objective = fs.Objective(Scorer(clients.size("item")), fs.losses.binary("liked"), tables={"items.weight": "item"})
result = fs.run(fs.methods.fedsubavg(lr=0.1), objective, train, test=test, rounds=200)
"""

from fedsub import errors, heat, losses, methods, models, theory
from fedsub.average import OverClients, OverHolders, OverSampledHolders
from fedsub.callbacks import Callback, TensorBoard
from fedsub.comparing import Comparison, compare
from fedsub.core import Method, Part
from fedsub.data import Clients, movielens, movielens_like
from fedsub.errors import FedsubError
from fedsub.evaluate import Evaluate
from fedsub.local import SGD
from fedsub.objective import Objective
from fedsub.parts import Prox
from fedsub.result import Result, Target
from fedsub.running import Interrupted, run
from fedsub.samplers import Everyone, Uniform
from fedsub.server import Add

__version__ = "0.1.0"

__all__ = [
    "SGD", "Add", "Callback", "Clients", "Comparison", "Evaluate", "Everyone", "FedsubError", "Interrupted", "Method",
    "Objective", "OverClients", "OverHolders", "OverSampledHolders", "Part", "Prox", "Result", "Target", "TensorBoard",
    "Uniform", "compare", "errors", "heat", "losses", "methods", "models", "movielens", "movielens_like", "run",
    "theory",
]  # fmt: skip
