"""Methods picked by their label in a configuration or by their name in the catalogue."""

from __future__ import annotations

from typing import Any

from fedsub.errors import ConfigError, nearest
from fedsub.method.names import normal


def select(configured: dict[str, Any], chosen: list[str]) -> dict[str, Any]:
    from fedsub.methods import CATALOGUE  # which loads torch

    labels = {normal(label): label for label in configured}
    out: dict[str, Any] = {}
    for name in chosen:
        key = normal(name)
        if key in labels:
            out[labels[key]] = configured[labels[key]]
        elif key in CATALOGUE:
            out[key] = {}
        else:
            raise ConfigError(f"There is no method {name!r}; {nearest(key, {*CATALOGUE, *configured})}")
    return out
