"""Objectives of the user's own: "my_file:make_objective", from a file next to the configuration."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fedsub.errors import ConfigError, FedsubError, nearest

if TYPE_CHECKING:
    from fedsub.data import Clients
    from fedsub.objective.objective import Objective


def find(spec: str, base: Path) -> Path | None:
    """The file of a spec: next to the configuration, else in the working directory; None if there is none."""
    name = spec.partition(":")[0]
    relative = Path(name) if name.endswith(".py") else Path(*name.split(".")).with_suffix(".py")
    return next((f.resolve() for folder in (base, Path.cwd()) if (f := folder / relative).is_file()), None)


def load(spec: str, base: Path, clients: Clients) -> Callable[[int], Objective]:
    """The function of a spec as a function of the seed."""
    name, colon, attribute = spec.partition(":")
    if not (name and colon and attribute):
        raise ConfigError(f"model.objective is {spec!r}, expected file:function, such as my_file:make_objective.")
    module = _module(spec, name, base)
    make = getattr(module, attribute, None)
    if not callable(make):
        functions = [k for k, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__]
        hint = nearest(attribute, functions) if functions else "it defines no functions."
        raise ConfigError(f"model.objective: {module.__file__} has no function {attribute!r}; {hint}")
    takes = _positional(make)
    known: dict[int, Objective] = {}

    def of_seed(seed: int) -> Objective:
        if seed not in known:
            known.clear()  # a model per seed, but only one at a time
            known[seed] = _call(spec, make, (clients, seed)[:takes])
        return known[seed]

    return of_seed


def _call(spec: str, make: Callable[..., Any], arguments: tuple[Any, ...]) -> Objective:
    import torch

    from fedsub.objective.objective import Objective

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(arguments[1] if len(arguments) > 1 else 0)
        try:
            made = make(*arguments)
        except FedsubError:
            raise
        except (Exception, SystemExit) as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            raise ConfigError(
                f"model.objective: {spec} raised {type(error).__name__}: {error} ({last.filename}, line {last.lineno}; "
                "fedsub --traceback shows all of it)."
            ) from error
    if not isinstance(made, Objective):
        raise ConfigError(
            f"model.objective: {spec} returned {type(made).__name__} {repr(made)[:60]}, "
            "expected fedsub.Objective(module, loss, tables)."
        )
    return made


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


def _module(spec: str, name: str, base: Path) -> ModuleType:
    file = find(spec, base)
    try:
        if file is None:
            if name.endswith(".py"):
                raise ModuleNotFoundError(name=name)
            return importlib.import_module(name)
        module_spec = importlib.util.spec_from_file_location(f"fedsub_own_{file.stem}", file)
        assert module_spec is not None
        assert module_spec.loader is not None
        module = importlib.util.module_from_spec(module_spec)
        sys.modules[module_spec.name] = module  # dataclasses look their module up
        if str(file.parent) not in sys.path:
            sys.path.insert(0, str(file.parent))  # so that it may import its neighbours
        module_spec.loader.exec_module(module)
        return module
    except ModuleNotFoundError as error:
        if file is not None or error.name not in (name, name.partition(".")[0]):
            raise ConfigError(f"model.objective: {spec} needs the module {error.name!r}, which is missing.") from error
        wanted = name if name.endswith(".py") else f"{name.replace('.', '/')}.py"
        raise ConfigError(
            f"model.objective: there is no file {wanted} in {base} and no module {name!r} to import."
        ) from error
    except FedsubError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"model.objective: {file or name} cannot be imported: {type(error).__name__}: {error}."
        ) from error
