"""Federated learning of models with large sparse tables, by submodels.

import fedsub as fs

clients = fs.Clients.from_file("ratings.csv", client="user", ids=["item"], label="liked")
train, test = clients.split(0.8)
objective = fs.Objective(Scorer(clients.size("item")), fs.losses.binary("liked"), tables={"items.weight": "item"})
result = fs.run(fs.methods.fedsubavg(lr=0.1), objective, train, test=test, rounds=200)
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedsub import errors, gossip, methods, privacy, vertical
    from fedsub.data import Clients, datasets, heat, twins
    from fedsub.data.datasets import movielens
    from fedsub.data.twins import movielens_like
    from fedsub.errors import FedsubError
    from fedsub.families import asynchronous, factorisation, mixture
    from fedsub.families.asynchronous.method import Asynchronous
    from fedsub.method import codecs, sampling, schedules, servers
    from fedsub.method.average import Averaging, OverClients, OverHolders, OverSampledHolders
    from fedsub.method.engine import Ray
    from fedsub.method.local import SGD, Adam, Solver
    from fedsub.method.part import Message, Part, Start, Total, Work
    from fedsub.method.parts import (
        AnchoredSteps,
        CentralDP,
        ClipRows,
        ControlVariates,
        Dynamic,
        LocalDP,
        Multipliers,
        NormalisedSteps,
        Personal,
        Prox,
        SecureSum,
        Splitting,
    )
    from fedsub.method.sampling import Everyone, Uniform
    from fedsub.method.servers import Add
    from fedsub.method.servers.base import RowServer
    from fedsub.method.slots import Method
    from fedsub.objective import inits, losses, models
    from fedsub.objective.lazy import Lazy
    from fedsub.objective.metric import Metric, metric
    from fedsub.objective.objective import Objective
    from fedsub.privacy.budget import Budget
    from fedsub.round.clock.devices import Devices
    from fedsub.round.evaluate import Evaluate
    from fedsub.round.norms import Norms
    from fedsub.round.ranking import Ranking
    from fedsub.running.callbacks import Callback, Progress
    from fedsub.running.load import Trained, load
    from fedsub.running.result import Result, Target
    from fedsub.running.run import Interrupted, run
    from fedsub.running.trackers import MLflow, TensorBoard, WandB
    from fedsub.serving.export import Exported, export
    from fedsub.serving.predict import Predicted, predict
    from fedsub.serving.recommend import recommend
    from fedsub.study import costs, leaks, theory
    from fedsub.study import diagnostics as diagnostics
    from fedsub.study.comparing import Comparison, compare
    from fedsub.study.lambdas.choose import LambdaPath, choose_lambda
    from fedsub.study.planning import Cluster, Constants, Plan, plan
    from fedsub.study.tuning import Tuning, tune
    from fedsub.trees import Tree, add_rows, put_rows, take_rows

__version__ = "0.1.0"

__all__ = [
    "SGD",
    "Adam",
    "Add",
    "AnchoredSteps",
    "Asynchronous",
    "Averaging",
    "Budget",
    "Callback",
    "CentralDP",
    "Clients",
    "ClipRows",
    "Cluster",
    "Comparison",
    "Constants",
    "ControlVariates",
    "Devices",
    "Dynamic",
    "Evaluate",
    "Everyone",
    "Exported",
    "FedsubError",
    "Interrupted",
    "LambdaPath",
    "Lazy",
    "LocalDP",
    "MLflow",
    "Message",
    "Method",
    "Metric",
    "Multipliers",
    "NormalisedSteps",
    "Norms",
    "Objective",
    "OverClients",
    "OverHolders",
    "OverSampledHolders",
    "Part",
    "Personal",
    "Plan",
    "Predicted",
    "Progress",
    "Prox",
    "Ranking",
    "Ray",
    "Result",
    "RowServer",
    "SecureSum",
    "Solver",
    "Splitting",
    "Start",
    "Target",
    "TensorBoard",
    "Total",
    "Trained",
    "Tree",
    "Tuning",
    "Uniform",
    "WandB",
    "Work",
    "add_rows",
    "asynchronous",
    "choose_lambda",
    "codecs",
    "compare",
    "costs",
    "datasets",
    "errors",
    "export",
    "factorisation",
    "gossip",
    "heat",
    "inits",
    "leaks",
    "load",
    "losses",
    "methods",
    "metric",
    "mixture",
    "models",
    "movielens",
    "movielens_like",
    "plan",
    "predict",
    "privacy",
    "put_rows",
    "recommend",
    "run",
    "sampling",
    "schedules",
    "servers",
    "take_rows",
    "theory",
    "tune",
    "twins",
    "vertical",
]  # fmt: skip

# Where each public name lives. They are imported at first use, because torch takes seconds to load and
# `fedsub --help` has no use for it.
_HOMES = {
    "data": ("Clients",),
    "data.datasets": ("movielens",),
    "data.twins": ("movielens_like",),
    "errors": ("FedsubError",),
    "families.asynchronous.method": ("Asynchronous",),
    "method.average": ("Averaging", "OverClients", "OverHolders", "OverSampledHolders"),
    "method.engine": ("Ray",),
    "method.local": ("SGD", "Adam", "Solver"),
    "method.parts": (
        "AnchoredSteps",
        "CentralDP",
        "ClipRows",
        "ControlVariates",
        "Dynamic",
        "LocalDP",
        "Multipliers",
        "NormalisedSteps",
        "Personal",
        "Prox",
        "SecureSum",
        "Splitting",
    ),
    "method.sampling": ("Everyone", "Uniform"),
    "method.servers": ("Add",),
    "method.servers.base": ("RowServer",),
    "method.part": ("Message", "Part", "Start", "Total", "Work"),
    "method.slots": ("Method",),
    "privacy.budget": ("Budget",),
    "objective.lazy": ("Lazy",),
    "objective.metric": ("Metric", "metric"),
    "objective.objective": ("Objective",),
    "round.clock.devices": ("Devices",),
    "round.evaluate": ("Evaluate",),
    "round.norms": ("Norms",),
    "round.ranking": ("Ranking",),
    "running.callbacks": ("Callback", "Progress"),
    "running.trackers": ("MLflow", "TensorBoard", "WandB"),
    "running.load": ("Trained", "load"),
    "running.result": ("Result", "Target"),
    "running.run": ("Interrupted", "run"),
    "study.comparing": ("Comparison", "compare"),
    "study.lambdas.choose": ("LambdaPath", "choose_lambda"),
    "study.planning": ("Cluster", "Constants", "Plan", "plan"),
    "study.tuning": ("Tuning", "tune"),
    "trees": ("Tree", "add_rows", "put_rows", "take_rows"),
    "serving.export": ("Exported", "export"),
    "serving.predict": ("Predicted", "predict"),
    "serving.recommend": ("recommend",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = {
    name: f"{room}.{name}" if room else name
    for room, names in {
        "": ("errors", "gossip", "methods", "privacy", "vertical"),
        "data": ("datasets", "heat", "twins"),
        "families": ("asynchronous", "factorisation", "mixture"),
        "method": ("codecs", "sampling", "schedules", "servers"),
        "objective": ("inits", "losses", "models"),
        "study": ("costs", "diagnostics", "leaks", "theory"),
    }.items()
    for name in names
}


def __getattr__(name: str):
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"fedsub.{_MODULES[name]}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fedsub' has no attribute {name!r}")
    value = getattr(import_module(f"fedsub.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
