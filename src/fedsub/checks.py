"""Refusals of numbers and flags that make no sense, in one sentence each.

Rooms differ in their error: methods raise MethodError (the default), what is asked of a run or a study ConfigError. A
``hint`` is the end of the sentence: what the limits mean, or what to do.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import wraps
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar

import numpy as np

from fedsub.errors import ConfigError, FedsubError, MethodError, nearest

P = ParamSpec("P")
R = TypeVar("R")

Error = type[FedsubError]


def is_number(value: Any) -> bool:
    """Whether it is a finite real number; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def is_whole(value: Any) -> bool:
    """Whether it is a whole number by its type (3, not 3.0); True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def named_arguments(
    *others: Callable[..., Any], but: tuple[str, ...] = ()
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function whose callers are told of wrong names as of all else, by a `ConfigError`.

    ``others`` are functions that it hands its ``**options`` to, ``but`` those of their arguments that it gives itself.
    """

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        known = {name for f in others for name in inspect.signature(f).parameters} - set(but)
        known |= {name for name, p in signature.parameters.items() if p.kind is not p.VAR_KEYWORD}
        title = function.__name__

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in known:
                    raise ConfigError(f"{title}() has no argument {name!r}; {nearest(name, known)}")
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:  # missing, twice or too many
                raise ConfigError(f"{title}(): {error}; it is called as {title}{_needed(signature)}.") from None
            return function(*args, **kwargs)

        return call

    return wrap


def _needed(signature: inspect.Signature) -> str:
    """The arguments that must be given, such as "(methods, objective, clients, rounds=…)"."""
    required = [p for p in signature.parameters.values() if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    return f"({', '.join(p.name if p.kind is not p.KEYWORD_ONLY else p.name + '=…' for p in required)}, …)"


def check_number(name: str, value: Any, *, least: float = -math.inf, error: Error = MethodError) -> float:
    """A finite number, of at least ``least``."""
    if not is_number(value) or value < least:
        limit = f" of at least {least:g}" if least > -math.inf else ""
        raise error(f"{name} must be a finite number{limit}, got {value!r}.")
    return float(value)


def check_whole(
    name: str, value: Any, least: int | None = None, most: int | None = None, *, error: Error = MethodError
) -> int:
    """A whole number, of at least ``least`` and at most ``most`` if they are given."""
    if not is_whole(value) or (least is not None and value < least) or (most is not None and value > most):
        limit = "" if least is None else f" of at least {least}"
        limit += "" if most is None or (is_whole(value) and value <= most) else f" and at most {most:,}"
        raise error(f"{name} must be a whole number{limit}, got {value!r}.")
    return int(value)


def check_positive(name: str, value: Any, *, error: Error = MethodError) -> float:
    """A finite number above 0."""
    found = check_number(name, value, error=error)
    return _within(name, value, found > 0, "positive", "", error)


def check_share(name: str, value: Any, *, hint: str = "", error: Error = MethodError) -> float:
    """0 < value ≤ 1: a part that is not empty."""
    found = check_number(name, value, error=error)
    return _within(name, value, 0 < found <= 1, "above 0 and at most 1", hint, error)


def check_mix(name: str, value: Any, *, hint: str = "", error: Error = MethodError) -> float:
    """0 ≤ value ≤ 1: a place between two ends, both of which make sense."""
    found = check_number(name, value, error=error)
    return _within(name, value, 0 <= found <= 1, "at least 0 and at most 1", hint, error)


def check_decay(name: str, value: Any, *, hint: str = "", error: Error = MethodError) -> float:
    """0 ≤ value < 1: what is kept of a running mean from step to step, or the chance of a loss."""
    found = check_number(name, value, error=error)
    return _within(name, value, 0 <= found < 1, "at least 0 and less than 1", hint, error)


def check_flag(name: str, value: Any, *, error: Error = MethodError) -> None:
    if not isinstance(value, bool):
        raise error(f"{name} must be True or False, got {value!r}.")


def check_seed(name: str, value: Any, *, bits: int = 63, error: Error = ConfigError) -> int:
    """A seed: 0 ≤ value < 2^bits."""
    if not is_whole(value) or not 0 <= value < 2**bits:
        raise error(f"{name} must be a whole number with 0 ≤ {name} < 2**{bits}, got {value!r}.")
    return int(value)


def check_column(
    name: str, values: Any, length: int | None = None, *, zero: bool = True, error: Error = ConfigError
) -> np.ndarray:
    """One finite number per client, from 0 on (``zero``) or above 0, float64 [n]."""
    try:
        found = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise error(f"{name} is {values!r}, expected one number per client; give a list or an array.") from None
    if found.ndim != 1 or (length is not None and len(found) != length):
        wanted = "numbers in a row" if length is None else f"{length} numbers, one per client"
        raise error(f"{name} has the shape {found.shape}, expected {wanted}; give a list or an array.")
    bad = ~np.isfinite(found) | (found < 0 if zero else found <= 0)
    if bad.any():
        limit = "of at least 0" if zero else "above 0"
        raise error(f"{name} holds {found[bad][0]:g}, expected finite numbers {limit}; correct that client's.")
    return found


def _within(name: str, value: Any, right: bool, limits: str, hint: str, error: Error) -> float:
    if not right:
        raise error(f"{name} must be {limits}, got {value!r}{': ' + hint if hint else ''}.")
    return float(value)
