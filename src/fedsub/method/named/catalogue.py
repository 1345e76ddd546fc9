"""The catalogue of named methods: what the command line lists, and how a name becomes a method."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_type_hints

from fedsub.errors import ConfigError, MethodError, nearest
from fedsub.method.compose import DEFAULTS, Common, compose
from fedsub.method.names import normal
from fedsub.method.slots import Algorithm, Average, Method

Make = TypeVar("Make", bound=Callable[..., Algorithm])


@dataclass(frozen=True)
class Entry:
    """A line of the catalogue."""

    make: Callable[..., Algorithm]
    title: str
    summary: str
    formula: str
    paper: str
    fixed: Mapping[str, Any] = field(default_factory=dict)  # shared settings that make the method what it is
    model: str | None = None  # the one built-in model that it is for; None: any model

    @property
    def defaults(self) -> dict[str, Any]:
        """Every setting of the method and its default."""
        own = inspect.signature(self.make).parameters.values()
        common = DEFAULTS if any(p.kind is p.VAR_KEYWORD for p in own) else {}
        own = {p.name: p.default for p in own if p.kind is not p.VAR_KEYWORD}
        return {**own, **{name: value for name, value in common.items() if name not in own}, **self.fixed}

    @property
    def types(self) -> dict[str, Any]:
        """The type of every setting."""
        hints = {**get_type_hints(Common), **get_type_hints(self.make)}
        return {name: hints[name] for name in self.defaults}


CATALOGUE: dict[str, Entry] = {}  # filled by `named`, in the order of `fedsub.methods`


def named(
    title: str, summary: str, formula: str, paper: str, *, fixed: Mapping[str, Any] | None = None,
    model: str | None = None,
) -> Callable[[Make], Make]:  # fmt: skip
    """Enter a function that makes a method into the catalogue, under its own name."""

    def enter(make: Make) -> Make:
        CATALOGUE[make.__name__] = Entry(make, title, summary, formula, paper, fixed or {}, model)
        return make

    return enter


def composed(name: str, average: Average, common: Mapping[str, Any], **derived: Any) -> Method:
    """A method from the shared settings, and those that make it what it is or follow from its own settings."""
    fixed = {**CATALOGUE[name].fixed, **derived}
    for setting, value in fixed.items():
        if common.get(setting, value) not in (value, DEFAULTS[setting] if setting in derived else value):
            raise MethodError(
                f"{name} is what it is by {setting}={value!r}, and was given {common[setting]!r}; "
                "start from fedavg or fedsubavg for other combinations."
            )
    return compose(name, average, {**common, **fixed}, CATALOGUE[name].defaults)


def make(name: str, **arguments: Any) -> Algorithm:
    """A named method with arguments; those it does not take are an error that names the nearest one."""
    key = normal(name)
    if key not in CATALOGUE:
        raise ConfigError(f"There is no method {name!r}; {nearest(key, CATALOGUE)}")
    entry = CATALOGUE[key]
    for argument in arguments:
        if argument not in entry.defaults:
            raise ConfigError(f"{entry.title} has no setting {argument!r}; {nearest(argument, entry.defaults)}")
    return entry.make(**arguments)
