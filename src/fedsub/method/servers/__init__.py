"""Servers: how the mean update Δ of a round moves the model X.

    Add               X + lr · Δ, or with momentum b ← μ b + Δ, X + lr · b
    Adam, Yogi,       X + lr · m / (√v + τ), m a running mean of Δ and v of Δ² (FedAdam, FedYogi,
    Adagrad           FedAdagrad)
    ScaffoldHistory   X + lr · ((1−β) Δ + β h), h the history of Δ; ours
    FrequencyAware    X + lr · Δ / n^power, n the rounds in which the row was updated
    TailMean, EMA     any of these; evaluated and kept is a mean of its last iterates
    TorchOptimiser    any elementwise torch.optim.Optimizer, with −Δ for a gradient

A row that nobody sent has Δ = 0, and a server that remembers moves it all the same. fedsub's own make
these movements up when the row is next needed (`fedsub.method.servers.base`), so that a round costs what its rows
cost; ``sparse_server=True`` leaves such rows and what is remembered of them as they are.
"""

from fedsub.method.servers.adaptive import Adagrad, Adam, Yogi
from fedsub.method.servers.add import Add
from fedsub.method.servers.frequency import FrequencyAware
from fedsub.method.servers.history import ScaffoldHistory
from fedsub.method.servers.iterates import EMA, TailMean
from fedsub.method.servers.rule import ServerRule
from fedsub.method.servers.torch_optim import TorchOptimiser

__all__ = [
    "EMA",
    "Adagrad",
    "Adam",
    "Add",
    "FrequencyAware",
    "ScaffoldHistory",
    "ServerRule",
    "TailMean",
    "TorchOptimiser",
    "Yogi",
]
