"""The model that goes with what was asked for: another kind than the task's, or a method that is for one model."""

from __future__ import annotations

from typing import Any

from fedsub.errors import ConfigError
from fedsub.method.names import normal
from fedsub.study.experiment import tasks


def fit_model(raw: dict[str, Any]) -> dict[str, Any]:
    """The tables with a model whose options are its own, and which the methods can train."""
    return _for_methods(_of_its_kind(raw))


def _of_its_kind(raw: dict[str, Any]) -> dict[str, Any]:
    """Without the options that the task brings for its own kind of model, where another one was asked for."""
    model, usual = raw.get("model"), _usual(raw).get("model", {})
    if not isinstance(model, dict):
        return raw
    if "objective" not in model and model.get("kind", usual.get("kind")) == usual.get("kind"):
        return raw
    return raw | {"model": {name: value for name, value in model.items() if usual.get(name) != value}}


def _usual(raw: dict[str, Any]) -> dict[str, Any]:
    """What the task brings."""
    name = raw.get("task")
    return tasks.TASKS[name].config if isinstance(name, str) and name in tasks.TASKS else {}


def _for_methods(raw: dict[str, Any]) -> dict[str, Any]:
    """The tables with the model that a method needs in place of the task's or the default one.

    Settings that the task brings for its own model (its options, its target) go with it. Ratings are kept, and in
    a file of one's own labels may be any number.
    """
    needed = _needed(raw)
    model = raw.get("model", {})
    if needed is None or not isinstance(model, dict) or "objective" in model:
        return raw
    title, kind = needed
    task = _usual(raw)
    usual = task.get("model", {})
    given = model.get("kind", usual.get("kind", "lr"))
    if given not in (kind, usual.get("kind", "lr")):
        raise ConfigError(f"{title} is for the model {kind!r}, and model.kind is {given!r}; leave the model out.")
    own = model if given == kind else {k: v for k, v in model.items() if k not in usual}
    data = {"values": ["rating"]} if "task" in raw else {"binary_label": False}
    run = {k: v for k, v in raw.get("run", {}).items() if k != "target" or v != task.get("run", {}).get("target")}
    return raw | {"model": own | {"kind": kind}, "data": data | raw.get("data", {}), "run": run}


def _needed(raw: dict[str, Any]) -> tuple[str, str] | None:
    """(title, model) of the first method that is for one model."""
    from fedsub.methods import CATALOGUE

    methods = raw.get("methods")
    for label, given in methods.items() if isinstance(methods, dict) else ():
        name = given.get("method", label) if isinstance(given, dict) else label
        entry = CATALOGUE.get(normal(name)) if isinstance(name, str) else None
        if entry is not None and entry.model is not None:
            return entry.title, entry.model
    return None
