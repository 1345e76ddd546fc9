"""Methods picked by their label in a configuration, by their name in the catalogue, or as "file.py:function"."""

from __future__ import annotations

from typing import Any

from fedsub.errors import ConfigError, nearest
from fedsub.method.names import normal
from fedsub.study.experiment.making import is_own


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
        elif is_own(name):
            function = name.partition(":")[2].strip()
            out[name if function in out or normal(function) in CATALOGUE else function] = {"method": name.strip()}
        else:
            raise ConfigError(f"There is no method {name!r}; {nearest(key, {*CATALOGUE, *configured})}")
    return out
