"""Settings by parameter: ``groups={"items.*": {"lr": 0.5}, "head.*": {"weight_decay": 1e-4}}``.

A pattern is a parameter's name with ``*`` and ``?``; the first one that fits a name and has the setting wins.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Any

from fedsub.checks import check_number
from fedsub.errors import MethodError, nearest

Groups = Mapping[str, Mapping[str, float]]

# Which slot has which setting: local solver, server, average.
_SHARES = (("lr", "weight_decay", "clip_norm"), ("server_lr",), ("temper", "max_coef"))


def setting(groups: Groups | None, name: str, key: str, default: Any) -> Any:
    """The value of ``key`` for the parameter ``name``, or the default."""
    pattern = matching(groups, name, key)
    return default if groups is None or pattern is None else groups[pattern][key]


def matching(groups: Groups | None, name: str, key: str) -> str | None:
    """The pattern that decides ``key`` for the parameter ``name``."""
    return next((p for p, values in (groups or {}).items() if key in values and fnmatchcase(name, p)), None)


def check_groups(groups: Groups | None, allowed: Collection[str], what: str) -> None:
    """Refuse groups that are no mapping of patterns to known settings with finite numbers."""
    if groups is None:
        return
    example = '{"items.*": {"lr": 0.5}}'
    if not isinstance(groups, Mapping) or not all(isinstance(v, Mapping) for v in groups.values()):
        raise MethodError(f"groups of {what} must map patterns to settings, like {example}; got {groups!r}.")
    for pattern, values in groups.items():
        for key, value in values.items():
            if key not in allowed:
                raise MethodError(f"groups[{pattern!r}] of {what} sets {key!r}; {nearest(str(key), allowed)}")
            check_number(f"groups[{pattern!r}][{key!r}] of {what}", value)


def check_patterns(groups: Groups | None, names: Collection[str], what: str) -> None:
    """Refuse a pattern that fits no parameter: a typing error would silently change nothing."""
    for pattern in groups or {}:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise MethodError(
                f"groups of {what} name {pattern!r}, which fits no parameter; they are {', '.join(names)}."
            )


def share_out(groups: Any) -> tuple[Groups | None, Groups | None, Groups | None]:
    """Settings by pattern, as each slot takes them: local solver, server, average."""
    if groups is None:
        return None, None, None
    if not isinstance(groups, Mapping) or not all(isinstance(v, Mapping) for v in groups.values()):
        raise MethodError(f'groups must map patterns to settings, like {{"items.*": {{"lr": 0.5}}}}; got {groups!r}.')
    known = [key for keys in _SHARES for key in keys]
    for pattern, values in groups.items():
        for key in values:
            if key not in known:
                raise MethodError(f"groups[{pattern!r}] sets {key!r}; {nearest(key, known)}")
    solver, server, average = (
        {p: own for p, values in groups.items() if (own := {_bare(k): v for k, v in values.items() if k in keys})}
        for keys in _SHARES
    )
    return solver or None, server or None, average or None


def _bare(key: str) -> str:
    return key.removeprefix("server_")
