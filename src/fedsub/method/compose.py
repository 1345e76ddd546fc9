"""From settings to slots: what every named federated method understands.

Any method may be told to use another local solver, server, sampler or codec, a proximal term, clipping or a schedule:
``fedsubavg(server=Adam(tau=1e-5), mu=0.01, codec=TopK(0.05))``. Here these are objects; the words that stand for them
(``server="adam"``, ``codec="topk:0.05"``) are read at the door, by `fedsub.method.spelling`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsub.checks import check_number
from fedsub.errors import MethodError
from fedsub.method.part import Part
from fedsub.method.parts import ClipRows, NormalisedSteps, Personal, Prox
from fedsub.method.sampling import Everyone, InTurns
from fedsub.method.settings import DEFAULTS
from fedsub.method.slots import Average, Method


def compose(name: str, average: Average, settings: Mapping[str, Any]) -> Method:
    """A method from settings with objects: solver, server and sampler, and whatever else is not at its default."""
    s: dict[str, Any] = {**DEFAULTS, **settings}
    if s["groups"]:
        average = average.grouped(name, s["groups"])
    parts, sampler = _parts(s), s["sampler"]
    turns = max((part.turns for part in parts), default=1)
    if turns > 1 and not isinstance(sampler, Everyone | InTurns):
        sampler = InTurns(sampler, turns)
    return Method(local=s["solver"], parts=parts, average=average, server=s["server"], sampler=sampler, name=name)


def _parts(s: Mapping[str, Any]) -> tuple[Part, ...]:
    """In the order in which they act on a client: the codec, which writes down what the others made, is the last."""
    parts: list[Part] = []
    if s["personal"] is not None:
        names = s["personal"]
        parts.append(Personal((names,) if isinstance(names, str) else tuple(names), init=s["personal_init"]))
    elif s["personal_init"] != DEFAULTS.get("personal_init"):
        raise MethodError(f"personal_init={s['personal_init']!r} means nothing without personal parameters.")
    check_number("mu", s["mu"])
    if s["mu"]:
        parts.append(Prox(s["mu"]))
    if s["variates"] is not None:
        parts.append(s["variates"])
    if s["normalise"]:
        parts.append(NormalisedSteps())
    if s["clip_rows"] is not None:
        parts.append(ClipRows(s["clip_rows"]))
    if s["dp"] is not None:
        parts.append(s["dp"])
    if s["secure"] is not None:
        parts.append(s["secure"])
    if s["codec"] is not None:
        parts.append(s["codec"])
    return tuple(parts)
