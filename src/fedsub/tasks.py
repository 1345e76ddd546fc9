"""Built-in tasks: data, a model and settings under one name, for a first run and for comparing with papers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsub.errors import ConfigError, nearest

if TYPE_CHECKING:
    from fedsub.data import Clients


@dataclass(frozen=True)
class Task:
    """``make(folder, scale, options)`` gives the data; ``config`` holds defaults as in a TOML file.

    ``options`` are the data set's own choices (``[data.options]``), such as how ties are read; unknown ones are errors.
    """

    name: str
    summary: str
    make: Callable[[Path | None, float | None, dict[str, Any]], Clients]
    config: dict[str, Any] = field(default_factory=dict)


# The setting of Ding et al. (NeurIPS 2022) on MovieLens-1M: logistic regression without bias, 50 clients a
# round, 10 local steps on batches of 5.
_MOVIELENS: dict[str, Any] = {
    "split": {"by": "random", "train": 0.8, "seed": 0},
    "model": {"kind": "lr", "bias": False},
    "train": {"rounds": 200, "clients_per_round": 50, "local_steps": 10, "batch_size": 5, "lr": 0.1},
    "methods": {"fedavg": {}, "fedprox": {"mu": 0.01}, "fedsubavg": {}, "centralsgd": {}},
    "run": {"target": "train.ce<=0.65"},
    "evaluate": {"every": 10},
}


def _movielens_like(folder: Path | None, scale: float | None, options: dict[str, Any]) -> Clients:
    from fedsub.twins import movielens_like

    if folder is not None:
        raise ConfigError("The task movielens-like is generated and reads no data; leave --data (data.path) out.")
    return movielens_like(scale=1.0 if scale is None else scale)


def _movielens_1m(folder: Path | None, scale: float | None, options: dict[str, Any]) -> Clients:
    from fedsub.datasets import movielens
    from fedsub.datasets.movielens import HOME

    if scale is not None:
        raise ConfigError("The task movielens-1m has one size; leave --scale (data.scale) out.")
    if folder is None:
        raise ConfigError(
            f"The task movielens-1m needs the data: unpack {HOME} and name the folder with --data DIR. "
            "The task movielens-like has the same shape and needs no download."
        )
    return movielens(folder)


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            "movielens-like",
            "synthetic MovieLens-1M: same sizes and skew, labels from a known model",
            _movielens_like,
            _MOVIELENS,
        ),
        Task("movielens-1m", "MovieLens-1M, likes from five id columns (needs --data DIR)", _movielens_1m, _MOVIELENS),
    )
}


def get(name: str) -> Task:
    if name not in TASKS:
        raise ConfigError(f"There is no task {name!r}; {nearest(name, TASKS)}")
    return TASKS[name]
