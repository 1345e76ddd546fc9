"""Methods that are for one built-in model: the settings that go with it, unless something else was asked for."""

from __future__ import annotations

from typing import Any

from fedsub.errors import ConfigError
from fedsub.method.names import normal
from fedsub.study.experiment import tasks


def fit_model(raw: dict[str, Any]) -> dict[str, Any]:
    """The tables with the model that a method needs in place of the task's or the default one.

    Settings that the task brings for its own model (its options, its target) go with it. Ratings are kept, and in
    a file of one's own labels may be any number.
    """
    needed = _needed(raw)
    model = raw.get("model", {})
    if needed is None or not isinstance(model, dict) or "objective" in model:
        return raw
    title, kind = needed
    task = tasks.TASKS[raw["task"]].config if raw.get("task") in tasks.TASKS else {}
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
