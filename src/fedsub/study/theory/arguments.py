"""What the arguments of these functions may be: a name means the same in all of them, and is checked in one place."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from fedsub.checks import check_column, check_number, check_positive
from fedsub.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")

POSITIVE = {"mu", "smoothness", "lr", "accuracy", "effective", "local_steps"}
FROM_0 = {"variance", "gradient_bound", "distance", "gap", "elementwise", "squared"}
FROM_1 = {  # counts; a theorem may ask for whole ones by itself
    "horizon", "workers", "n_clients", "clients_per_round", "n_min", "interval", "period", "batch_size",
}  # fmt: skip
FINITE = {"heterogeneity", "optimum"}  # rounding may leave a Γ just below 0
BY_CLIENT = {"shares", "deviations", "weights", "steps"}


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The function, whose arguments of these names are finite and within bounds; None stands for nothing given."""
    signature = inspect.signature(function)
    kinds = {name: p.default for name, p in signature.parameters.items()}

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            if value is None and kinds[name] is None:
                continue
            if name in POSITIVE:
                check_positive(name, value, error=ConfigError)
            elif name in FROM_0 | FROM_1:
                check_number(name, value, least=float(name in FROM_1), error=ConfigError)
            elif name in FINITE:
                check_number(name, value, error=ConfigError)
            elif name in BY_CLIENT and not len(check_column(name, value)):
                raise ConfigError(f"{name} is empty; give a number for each client.")
        return function(*args, **kwargs)

    return call
