"""Functions that make a method: their settings, and those of the user's own ("my_method.py:dynamic")."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, get_type_hints

from fedsub.disk.functions import function_of
from fedsub.errors import ConfigError
from fedsub.study.experiment.own import explained


def is_own(name: Any) -> bool:
    """Whether the name of a method is that of a function in a file, not one of the catalogue."""
    return isinstance(name, str) and ":" in name


@dataclass(frozen=True)
class OwnMethod:
    """A function of the user's own that makes a method, with what `fedsub.methods.CATALOGUE` says of named ones."""

    make: Callable[..., Any]
    title: str

    @property
    def defaults(self) -> dict[str, Any]:
        """The settings that have a default."""
        parameters = inspect.signature(self.make).parameters.values()
        return {p.name: p.default for p in parameters if p.default is not p.empty}

    @property
    def types(self) -> dict[str, Any]:
        """The type of every setting."""
        return types_of(self.make)

    @property
    def required(self) -> list[str]:
        """The settings that must be given."""
        parameters = inspect.signature(self.make).parameters.values()
        plain = (p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL))
        return [p.name for p in plain if p.default is p.empty]


def own_method(spec: str, base: Path, where: str) -> OwnMethod:
    """The function that a spec names, whose mistakes are named by ``where``, the setting that holds it."""
    from fedsub.method.training import Algorithm

    function = function_of(spec, base, where, "my_method.py:dynamic")

    @wraps(function)
    def make(**settings: Any) -> Algorithm:
        with explained(where, spec):
            made = function(**settings)
        if not isinstance(made, Algorithm):
            raise ConfigError(
                f"{where}: {spec} returned {type(made).__name__} {repr(made)[:60]}, expected a fedsub.Method(…)."
            )
        return made

    return OwnMethod(make, spec)


def types_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The type of every setting of a function; one with **common takes the shared ones too."""
    from fedsub.method.settings import Common

    parameters = inspect.signature(function).parameters.values()
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError):
        hints = {}
    out = {p.name: hints.get(p.name, Any) for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    return (get_type_hints(Common) if any(p.kind is p.VAR_KEYWORD for p in parameters) else {}) | out
