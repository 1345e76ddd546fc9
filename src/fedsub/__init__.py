"""Federated learning of models with large sparse tables, by submodels.

import fedsub as fs

clients = fs.Clients.from_file("ratings.csv", client="user", ids=["item"], label="liked")
train, test = clients.split(0.8)
objective = fs.Objective(Scorer(clients.size("item")), fs.losses.binary("liked"), tables={"items.weight": "item"})
result = fs.run(fs.methods.fedsubavg(lr=0.1), objective, train, test=test, rounds=200)
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedsub import (
        codecs,
        costs,
        datasets,
        errors,
        factorisation,
        heat,
        losses,
        methods,
        mixture,
        models,
        sampling,
        schedules,
        servers,
        theory,
        twins,
    )
    from fedsub import diagnostics as diagnostics
    from fedsub.average import OverClients, OverHolders, OverSampledHolders
    from fedsub.callbacks import Callback, Progress, TensorBoard
    from fedsub.comparing import Comparison, compare
    from fedsub.core import Method, Part
    from fedsub.data import Clients
    from fedsub.datasets import movielens
    from fedsub.errors import FedsubError
    from fedsub.evaluate import Evaluate
    from fedsub.local import SGD, Adam
    from fedsub.objective import Objective
    from fedsub.parts import ClipRows, ControlVariates, NormalisedSteps, Prox
    from fedsub.result import Result, Target
    from fedsub.running import Interrupted, run
    from fedsub.sampling import Everyone, Uniform
    from fedsub.servers import Add
    from fedsub.tuning import Tuning, tune
    from fedsub.twins import movielens_like

__version__ = "0.1.0"

__all__ = [
    "SGD",
    "Adam",
    "Add",
    "Callback",
    "Clients",
    "ClipRows",
    "Comparison",
    "ControlVariates",
    "Evaluate",
    "Everyone",
    "FedsubError",
    "Interrupted",
    "Method",
    "NormalisedSteps",
    "Objective",
    "OverClients",
    "OverHolders",
    "OverSampledHolders",
    "Part",
    "Progress",
    "Prox",
    "Result",
    "Target",
    "TensorBoard",
    "Tuning",
    "Uniform",
    "codecs",
    "compare",
    "costs",
    "datasets",
    "errors",
    "factorisation",
    "heat",
    "losses",
    "methods",
    "mixture",
    "models",
    "movielens",
    "movielens_like",
    "run",
    "sampling",
    "schedules",
    "servers",
    "theory",
    "tune",
    "twins",
]  # fmt: skip

# Where each public name lives. They are imported at first use, because torch takes seconds to load and
# `fedsub --help` has no use for it.
_HOMES = {
    "average": ("OverClients", "OverHolders", "OverSampledHolders"),
    "callbacks": ("Callback", "Progress", "TensorBoard"),
    "comparing": ("Comparison", "compare"),
    "core": ("Method", "Part"),
    "data": ("Clients",),
    "datasets": ("movielens",),
    "errors": ("FedsubError",),
    "evaluate": ("Evaluate",),
    "local": ("SGD", "Adam"),
    "objective": ("Objective",),
    "parts": ("ClipRows", "ControlVariates", "NormalisedSteps", "Prox"),
    "result": ("Result", "Target"),
    "running": ("Interrupted", "run"),
    "sampling": ("Everyone", "Uniform"),
    "servers": ("Add",),
    "tuning": ("Tuning", "tune"),
    "twins": ("movielens_like",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = (
    "codecs", "costs", "datasets", "diagnostics", "errors", "factorisation", "heat", "losses", "methods", "mixture",
    "models", "sampling", "schedules", "servers", "theory", "twins",
)  # fmt: skip


def __getattr__(name: str):
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"fedsub.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fedsub' has no attribute {name!r}")
    value = getattr(import_module(f"fedsub.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
