"""What is searched: axes, who has them, and the settings that a grid or a draw makes of them.

parse_axis("lr=0.1,0.3,1")          three points
parse_axis("lr=0.01..10/7")         seven points, evenly spaced on a logarithmic scale
parse_axis("lr=0.01..10")           a range, for random search
parse_axis("fedprox.mu=0.01,0.1")   for one method only
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, get_args

import numpy as np

from fedsub import rng
from fedsub.checks import is_number
from fedsub.errors import ConfigError, MethodError, nearest
from fedsub.method.training import Algorithm
from fedsub.methods import CATALOGUE, make
from fedsub.study.experiment.making import types_of

Values = dict[str, Any]
HOW = "Write numbers like lr=0.1,0.3,1, seven between two like lr=0.01..10/7, or a range like lr=0.01..10."
MOST = 100_000  # settings of one method
EXCLUDE = {"local_steps": "local_epochs", "local_epochs": "local_steps"}


@dataclass(frozen=True)
class Axis:
    """A setting and its values; ``points`` is empty for a range. ``method`` names the only one that has it."""

    name: str
    points: tuple[float, ...]
    low: float
    high: float
    method: str | None = None

    @property
    def title(self) -> str:
        return f"{self.method}.{self.name}" if self.method else self.name

    def at(self, share: float) -> float:
        """The value a ``share`` of the way from low to high: logarithmically, or linearly if low is not positive."""
        if self.low == self.high:
            return self.low
        raw = self.low * (self.high / self.low) ** share if self.low > 0 else self.low + share * (self.high - self.low)
        return min(max(float(f"{raw:.4g}"), self.low), self.high)

    def share(self, value: float) -> float:
        """Where a value lies between low (0) and high (1): the inverse of `at`."""
        if self.low > 0:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def __str__(self) -> str:
        return f"{self.title}={','.join(f'{p:g}' for p in self.points) or f'{self.low:g}..{self.high:g}'}"


@dataclass(frozen=True)
class Candidate:
    """A method to tune: how to make it, what is fixed, and the types of all its settings."""

    label: str
    name: str
    make: Callable[..., Algorithm]
    fixed: Mapping[str, Any]
    types: Mapping[str, Any]

    def build(self, values: Values) -> Algorithm:
        """The method with these values over its fixed settings."""
        fixed = {k: v for k, v in self.fixed.items() if EXCLUDE.get(k) not in values}
        return self.make(**{**fixed, **values})

    def has(self, axis: Axis) -> bool:
        return axis.name in self.types and (axis.method is None or self.named(axis.method))

    def named(self, word: str) -> bool:
        return plain(word) in (plain(self.label), plain(self.name))

    def value(self, axis: Axis, value: float, *, exact: bool) -> Any:
        """A value in the setting's type; a number of steps is whole."""
        kinds = _kinds(self.types[axis.name])
        if not kinds & {int, float, Any}:
            raise ConfigError(
                f"{axis.title} cannot be searched: {axis.name} of {self.label} is no number; fix it with a setting."
            )
        if float in kinds:
            return float(value)
        if int not in kinds or float(value).is_integer():
            return int(value) if int in kinds else value
        if exact:
            raise ConfigError(
                f"{axis.name} of {self.label} is a whole number, the axis {axis} has {value:g}; round it."
            )
        return round(value)


def plain(name: str) -> str:
    return name.lower().replace("-", "_").replace(" ", "_")


def _kinds(hint: Any) -> set[Any]:
    return set(get_args(hint) or (hint,)) - {NoneType}


def parse_axis(text: str) -> Axis:
    """An axis as it is written on the command line."""
    name, equals, values = text.partition("=")
    if not name.strip() or not equals:
        raise ConfigError(f"Cannot read the axis {text!r}: expected NAME=VALUES. {HOW}")
    return make_axis(name.strip(), values)


def make_axis(title: str, values: Any) -> Axis:
    """An axis from its name and a text (see `parse_axis`) or a list of numbers."""
    method, _, name = title.rpartition(".")
    points, low, high = _read(title, values) if isinstance(values, str) else (_numbers(title, values), 0.0, 0.0)
    if points:
        points = tuple(dict.fromkeys(points))
        low, high = min(points), max(points)
    return Axis(name, points, low, high, method or None)


def _read(title: str, text: str) -> tuple[tuple[float, ...], float, float]:
    if ".." not in text:
        return tuple(_number(title, part) for part in text.split(",") if part.strip()) or _empty(title), 0.0, 0.0
    span, slash, count = text.partition("/")
    low, high = (_number(title, part) for part in span.split("..", 1))
    if not 0 < low < high:
        raise ConfigError(f"The range {title}={text} must rise and be positive, as 0.01..10 does.")
    if not slash:
        return (), low, high
    if not count.strip().isdigit() or not 2 <= int(count) <= 1000:
        raise ConfigError(f"The range {title}={text} has {count!r} points; give a whole number from 2 to 1000. {HOW}")
    steps = int(count) - 1
    return tuple(float(f"{low * (high / low) ** (i / steps):.4g}") for i in range(steps + 1)), low, high


def _numbers(title: str, values: Any) -> tuple[float, ...]:
    if not isinstance(values, Iterable) or isinstance(values, Mapping):
        raise ConfigError(f"The axis {title} is {values!r}, expected a list of numbers or a text. {HOW}")
    found = [v.item() if isinstance(v, np.generic) else v for v in values]
    for value in found:
        if not is_number(value):
            raise ConfigError(f"The axis {title} has the value {value!r}, expected a finite number. {HOW}")
    return tuple(found) or _empty(title)


def _number(title: str, text: str) -> float:
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if math.isfinite(value):
            return value
    raise ConfigError(f"The axis {title} has the value {text.strip()!r}, expected a finite number. {HOW}")


def _empty(title: str) -> tuple[float, ...]:
    raise ConfigError(f"The axis {title} has no values. {HOW}")


def make_axes(grid: Mapping[str, Any] | Sequence[str]) -> list[Axis]:
    """All axes, from {"lr": [0.1, 1]} or ["lr=0.1,1"]."""
    if isinstance(grid, Mapping):
        axes = [make_axis(str(name), values) for name, values in grid.items()]
    elif isinstance(grid, str) or not isinstance(grid, Sequence) or not all(isinstance(g, str) for g in grid):
        raise ConfigError(f"grid is {grid!r}, expected a dict like {{'lr': [0.1, 0.3, 1]}}.")
    else:
        axes = [parse_axis(text) for text in grid]
    if not axes:
        raise ConfigError(f"The grid is empty: give at least one axis. {HOW}")
    for axis in axes:
        if sum(other.title == axis.title for other in axes) > 1:
            raise ConfigError(f"The axis {axis.title} is given twice; put all its values into one.")
    return axes


def make_candidates(methods: Any) -> list[Candidate]:
    """From names, or from {label: name, function that makes the method, or settings with "method", one of the two}."""
    if isinstance(methods, str):
        methods = [methods]
    if isinstance(methods, Mapping):
        found = [_candidate(label, given) for label, given in methods.items()]
    elif isinstance(methods, Iterable):
        found = [_candidate(None, name) for name in methods]
    else:
        raise ConfigError(f'methods is {methods!r}, expected names such as ["fedavg", "fedsubavg"], or a dict.')
    if not found:
        raise ConfigError("There is nothing to tune: give at least one method.")
    labels = [plain(c.label) for c in found]
    if len(set(labels)) < len(labels):
        raise ConfigError(f"Two methods have the same label: {', '.join(c.label for c in found)}; rename one.")
    return found


def _candidate(label: str | None, given: Any) -> Candidate:
    if callable(given) and label is not None:
        return _of_function(str(label), given, {})
    if isinstance(given, str):
        given = {"method": given}
    if not isinstance(given, Mapping):
        raise ConfigError(f"{label or 'methods'}: got {given!r}, expected a method's name, settings, or a function.")
    fixed = {k: v for k, v in given.items() if k != "method"}
    if callable(function := given.get("method")):
        return _of_function(str(label), function, fixed)
    name = plain(str(given.get("method", label)))
    if name not in CATALOGUE:
        raise ConfigError(f"There is no method {name!r}; {nearest(name, CATALOGUE)}")
    entry = CATALOGUE[name]
    _check_settings(entry.title, fixed, entry.types)
    title = entry.title if label is None else str(label)
    return Candidate(title, name, lambda **settings: make(name, **settings), fixed, entry.types)


def _of_function(label: str, function: Callable[..., Any], fixed: Mapping[str, Any]) -> Candidate:
    """A method of one's own."""
    types = types_of(function)
    _check_settings(label, fixed, types)
    return Candidate(label, getattr(function, "__name__", label), function, fixed, types)


def _check_settings(title: str, given: Mapping[str, Any], types: Mapping[str, Any]) -> None:
    for setting in given:
        if setting not in types:
            raise ConfigError(f"{title} has no setting {setting!r}; {nearest(setting, types)}")


def assign(candidates: Sequence[Candidate], axes: Sequence[Axis]) -> tuple[dict[str, list[Axis]], list[str]]:
    """Each method's axes by label, and a sentence for every axis that a method does not have."""
    notes: list[str] = []
    for axis in axes:
        able = [c for c in candidates if c.has(axis)]
        if axis.method is not None and not any(c.named(axis.method) for c in candidates):
            hint = nearest(axis.method, [c.label for c in candidates])
            raise ConfigError(f"The axis {axis.title} is for {axis.method!r}, which is not among the methods; {hint}")
        if not able:
            known = sorted({name for c in candidates for name in c.types})
            raise ConfigError(f"No method has the setting {axis.title!r} of the grid; {nearest(axis.name, known)}")
        if axis.method is None:
            lacking = [c.label for c in candidates if not c.has(axis)]
            notes += [f"{label} has no setting {axis.name}; that axis is left out for it." for label in lacking]
    out = {}
    for candidate in candidates:
        mine = [axis for axis in axes if candidate.has(axis)]
        special = {axis.name for axis in mine if axis.method is not None}
        # An axis of its own takes the place of the general one.
        out[candidate.label] = [axis for axis in mine if axis.method is not None or axis.name not in special]
    for label, own in out.items():
        if not own:
            raise ConfigError(
                f"{label} has none of the axes {', '.join(a.title for a in axes)}; give it one, or drop it."
            )
        names = [axis.name for axis in own]
        if twice := next((n for n in names if names.count(n) > 1), None):
            raise ConfigError(f"{label} has two axes for {twice}; give one.")
    return out, notes


def size(axes: Sequence[Axis]) -> int | None:
    """How many settings the grid has; None if an axis is a range."""
    return math.prod(len(axis.points) for axis in axes) if all(axis.points for axis in axes) else None


def grid(candidate: Candidate, axes: Sequence[Axis]) -> list[Values]:
    """Every combination of the points, the last axis fastest."""
    count = size(axes)
    if count is None:
        ranges = next(axis for axis in axes if not axis.points)
        raise ConfigError(
            f"A grid needs points, and {ranges} is a range; write how many, like {ranges}/7, or search at random."
        )
    if count > MOST:
        raise ConfigError(f"The grid of {candidate.label} has {count:,} settings, at most {MOST:,} are possible.")
    columns = [[candidate.value(axis, p, exact=True) for p in axis.points] for axis in axes]
    return [dict(zip([a.name for a in axes], point, strict=True)) for point in itertools.product(*columns)]


def draw(candidate: Candidate, axes: Sequence[Axis], trials: int, seed: int) -> list[Values]:
    """``trials`` random settings. An axis has the same values for every method, trial by trial."""
    out = []
    for trial in range(trials):
        words = [rng.key(rng.OTHER, seed, trial, len(a.name), *a.name.encode()) for a in axes]
        shares = rng.uniform(np.array(words, np.uint64))
        values = zip(axes, shares, strict=True)
        out.append({a.name: candidate.value(a, a.at(float(share)), exact=False) for a, share in values})
    return out


def check(candidate: Candidate, settings: Sequence[Values], sizes: np.ndarray) -> list[str | None]:
    """Why a setting is refused by its method, or None; an error if all of them are."""
    refusals: list[str | None] = []
    for values in settings:
        try:
            method = candidate.build(values)
            method.check_population(sizes)  # too large a cohort
            refusals.append(None)
        except MethodError as error:
            refusals.append(str(error))
    if refusals and all(refusals):
        raise MethodError(f"{candidate.label}: every setting is refused; the first one: {refusals[0]}")
    return refusals
