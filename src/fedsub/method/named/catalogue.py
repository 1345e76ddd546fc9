"""The catalogue of named methods: what the command line lists, and how a name becomes a method."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any, TypeVar, get_args, get_type_hints

from fedsub.errors import ConfigError, nearest
from fedsub.method import spelling
from fedsub.method.compose import compose
from fedsub.method.names import normal
from fedsub.method.settings import DEFAULTS, OBJECTS, Common
from fedsub.method.slots import Average, Method
from fedsub.method.training import Algorithm

Make = TypeVar("Make", bound=Callable[..., Algorithm])


@dataclass(frozen=True)
class Entry:
    """A line of the catalogue."""

    make: Callable[..., Algorithm]
    title: str
    summary: str
    formula: str
    paper: str
    fixed: Mapping[str, Any] = field(default_factory=dict)  # what makes the method what it is; of a server, its class
    model: str | None = None  # the one built-in model that it is for; None: any model
    shared: Collection[str] = tuple(DEFAULTS)  # of the settings that methods share, those it takes with **common

    @property
    def own(self) -> dict[str, Any]:
        """The settings that are parameters of the function itself, and their defaults."""
        parameters = inspect.signature(self.make).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is not p.VAR_KEYWORD}

    @property
    def defaults(self) -> dict[str, Any]:
        """Every setting of the method and its default, as a configuration file writes them."""
        parameters, own = inspect.signature(self.make).parameters.values(), self.own
        several = any(p.kind is p.VAR_KEYWORD for p in parameters)
        common = {name: value for name, value in DEFAULTS.items() if several and name in self.shared}
        fixed = {name: spelling.word(value) for name, value in self.fixed.items()}
        return {**own, **{name: value for name, value in common.items() if name not in own}, **fixed}

    @property
    def types(self) -> dict[str, Any]:
        """The type of every setting, as far as a configuration file can write it."""
        hints = {**get_type_hints(Common), **get_type_hints(self.make)}
        return {name: _written(hints[name]) for name in self.defaults}


def _written(hint: Any) -> Any:
    """A type without the objects that stand for a word."""
    kinds = get_args(hint)
    return reduce(or_, [one for one in kinds if one not in OBJECTS]) if set(kinds) & set(OBJECTS) else hint


CATALOGUE: dict[str, Entry] = {}  # filled by `named`, in the order of `fedsub.methods`


def named(
    title: str, summary: str, formula: str, paper: str, *, fixed: Mapping[str, Any] | None = None,
    model: str | None = None, shared: Collection[str] = tuple(DEFAULTS),
) -> Callable[[Make], Make]:  # fmt: skip
    """Enter a function that makes a method into the catalogue, under its own name."""

    def enter(make: Make) -> Make:
        CATALOGUE[make.__name__] = Entry(make, title, summary, formula, paper, fixed or {}, model, shared)
        return make

    return enter


def composed(name: str, average: Average, common: Mapping[str, Any], **derived: Any) -> Method:
    """A method from the shared settings, objects or words, and those that follow from its own settings.

    This is the door at which words become objects. A shared setting that is derived may be given at its default, as
    it stands in a complete list of settings.
    """
    entry, defaults = CATALOGUE[name], dict(DEFAULTS)
    for setting in common:
        if setting not in entry.shared:
            raise ConfigError(f"{name} has no setting {setting!r}; {nearest(setting, entry.defaults)}")
    given = {k: v for k, v in common.items() if k not in derived or v != defaults[k]}
    return compose(name, average, spelling.objects(name, given, {**entry.fixed, **derived}, entry.own))


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
