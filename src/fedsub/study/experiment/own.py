"""Objectives of the user's own: "my_file:make_objective", from a file next to the configuration."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsub.disk.functions import function_of
from fedsub.errors import ConfigError, FedsubError

if TYPE_CHECKING:
    from fedsub.data import Clients
    from fedsub.objective.objective import Objective


def load(spec: str, base: Path, clients: Clients) -> Callable[[int], Objective]:
    """The function of a spec as a function of the seed."""
    from fedsub.objective.recipe import of_function

    make = function_of(spec, base, "model.objective", "my_file:make_objective")
    takes = _positional(make)
    known: dict[int, Objective] = {}

    def of_seed(seed: int) -> Objective:
        if seed not in known:
            known.clear()  # a model per seed, but only one at a time
            made = _call(spec, make, (clients, seed)[:takes], seed)
            known[seed] = replace(made, recipe=of_function(clients, spec, base, takes, seed, made.module))
        return known[seed]

    return of_seed


def _call(spec: str, make: Callable[..., Any], arguments: tuple[Any, ...], seed: int) -> Objective:
    """Torch's random numbers start from the seed, whether or not the function asks for it."""
    import torch

    from fedsub.objective.objective import Objective

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        with explained("model.objective", spec):
            made = make(*arguments)
    if not isinstance(made, Objective):
        raise ConfigError(
            f"model.objective: {spec} returned {type(made).__name__} {repr(made)[:60]}, "
            "expected fedsub.Objective(module, loss, tables)."
        )
    return made


@contextmanager
def explained(where: str, spec: str) -> Iterator[None]:
    """Errors of the user's code as errors of the setting that names it, with file and line."""
    try:
        yield
    except FedsubError:
        raise
    except (Exception, SystemExit) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigError(
            f"{where}: {spec} raised {type(error).__name__}: {error} ({last.filename}, line {last.lineno}; "
            "fedsub --traceback shows all of it)."
        ) from error


def _positional(make: Callable[..., Any]) -> int:
    """1 for make(clients), 2 for make(clients, seed)."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):
        return 1
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return 2
    count = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    required = sum(p.default is p.empty for p in parameters if p.kind is not p.VAR_KEYWORD)
    if not count or required > 2:
        raise ConfigError(
            f"model.objective: {getattr(make, '__name__', make)} takes {required} arguments, "
            "expected (clients) or (clients, seed)."
        )
    return min(count, 2)
