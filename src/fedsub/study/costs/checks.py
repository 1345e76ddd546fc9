"""Refusals of arguments that make no sense, in one sentence each."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import numpy as np

from fedsub.errors import ConfigError


def whole(name: str, value: Any, least: int) -> int:
    """A whole number of at least ``least``."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} is {value!r}, expected a whole number of at least {least}; give one.")
    return int(value)


def amount(name: str, value: Any, *, zero: bool = False) -> float:
    """A finite number above 0, or from 0 on."""
    right = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if not right or value < 0 or (value == 0 and not zero):
        raise ConfigError(f"{name} is {value!r}, expected a number {'of at least' if zero else 'above'} 0; give one.")
    return float(value)


def column(name: str, values: Any, length: int | None = None, *, zero: bool = True) -> np.ndarray:
    """One finite number per client, from 0 on or above 0."""
    try:
        found = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise ConfigError(f"{name} is {values!r}, expected one number per client; give a list or an array.") from None
    if found.ndim != 1 or (length is not None and len(found) != length):
        wanted = "numbers in a row" if length is None else f"{length} numbers, one per client"
        raise ConfigError(f"{name} has the shape {found.shape}, expected {wanted}; give a list or an array.")
    bad = ~np.isfinite(found) | (found < 0 if zero else found <= 0)
    if bad.any():
        limit = "of at least 0" if zero else "above 0"
        raise ConfigError(f"{name} holds {found[bad][0]:g}, expected finite numbers {limit}; correct that client's.")
    return found
