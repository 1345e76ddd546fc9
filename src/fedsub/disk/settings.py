"""Nested settings by dotted name, and where two of them differ."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_ABSENT = "absent"


def leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The settings of a nested configuration by dotted name; lists are kept whole."""
    if isinstance(value, Mapping) and (value or not prefix):
        for key, item in value.items():
            yield from leaves(item, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value


def differences(before: Any, now: Any, free: Callable[[str], bool] = lambda key: False) -> list[str]:
    """A line for every setting that is not as it was when a directory was begun; those that are ``free`` may differ."""
    old, new = dict(leaves(before)), dict(leaves(now))
    return [
        f"  {key}: {_shown(old, key)} in the directory, {_shown(new, key)} now"
        for key in sorted(old.keys() | new.keys())
        if _shown(old, key) != _shown(new, key) and not free(key)
    ]


def _shown(found: Mapping[str, Any], key: str) -> str:
    """A setting as text. Text, because Python takes 1, 1.0 and true for equal."""
    return json.dumps(found[key], sort_keys=True) if key in found else _ABSENT
