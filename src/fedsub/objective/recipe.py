"""How a module was made, as JSON, so that it can be made again without the data.

A recipe names a built-in kind with its options, or a function of the user's own ("file.py:function"), and the shape
of the data: which columns there are and how large every space is. Such a maker reads no more than that of the data;
what it computes from samples (a mean) is overwritten by the values that were saved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedsub.data.clients import Clients, Column, Space
from fedsub.disk.files import digest
from fedsub.disk.functions import find, function_of

Recipe = Mapping[str, Any]


def built_in(clients: Clients, kind: str, options: Mapping[str, Any], seed: int, module: nn.Module) -> Recipe:
    """The recipe of `fedsub.models.make_objective`."""
    return {"kind": kind, "options": dict(options), "seed": seed, **_common(clients, module)}


def of_function(clients: Clients, spec: str, base: Path, arguments: int, seed: int, module: nn.Module) -> Recipe:
    """The recipe of a function of the user's own, which takes (clients) or (clients, seed)."""
    file = find(spec, base)
    own = {"function": spec, "base": str(base), "arguments": arguments, "digest": digest(file) if file else None}
    return {**own, "seed": seed, **_common(clients, module)}


def fits(recipe: Recipe | None, module: nn.Module) -> bool:
    """Whether a recipe still makes this module: another one may have been put into the objective since."""
    return recipe is not None and recipe["class"] == _class(module)


def make(recipe: Recipe) -> nn.Module:
    """The module, with values as at the start of training or any others."""
    clients, seed = shell(recipe["data"]), int(recipe["seed"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _maker(recipe)(clients, seed).module


def changed(recipe: Recipe) -> Path | None:
    """The file of the user's function, if it is not what it was."""
    file = find(recipe["function"], Path(recipe["base"])) if "function" in recipe else None
    return file if file is not None and digest(file) != recipe["digest"] else None


def _maker(recipe: Recipe) -> Callable[[Clients, int], Any]:
    if "kind" in recipe:
        from fedsub.objective.models import make_objective

        return lambda clients, seed: make_objective(clients, recipe["kind"], seed=seed, **recipe["options"])
    own = function_of(recipe["function"], Path(recipe["base"]), "model.objective", "my_file:make_objective")
    return lambda clients, seed: own(*(clients, seed)[: recipe["arguments"]])


def _common(clients: Clients, module: nn.Module) -> dict[str, Any]:
    return {"class": _class(module), "data": shape_of(clients)}


def _class(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def shape_of(clients: Clients) -> dict[str, Any]:
    """What a model may ask of data besides its samples; of the labels the largest, which says how many classes."""
    label = clients.columns.get(clients.label) if clients.label is not None else None
    numbers = label is not None and label.values.size and label.values.dtype.kind in "biuf"
    return {
        "label": clients.label,
        "reading": dict(clients.reading),
        "largest_label": float(np.max(label.values)) if label is not None and numbers else 0.0,
        "spaces": {
            s.name: {"size": int(s.size), "columns": list(s.columns), "padding": bool(s.padding)}
            for s in clients.spaces.values()
        },
        "columns": {
            c.name: {
                "space": c.space,
                "ragged": c.ragged,
                "width": int(c.width),
                "shape": [int(n) for n in c.values.shape[1:]],
                "dtype": c.values.dtype.str,
                **({"classes": list(c.classes)} if c.classes else {}),
                **({} if c.feature else {"feature": False}),
            }
            for c in clients.columns.values()
        },
    }


def shell(shape: Mapping[str, Any]) -> Clients:
    """Data of that shape: one client with one sample of zeros and the largest label."""
    one = np.array([0, 1], np.int64)
    columns = {}
    for name, c in shape["columns"].items():
        values = np.zeros((1, *c["shape"]), np.dtype(c["dtype"]))
        if name == shape["label"] and values.dtype.kind in "biuf":
            values[:] = shape["largest_label"]
        starts, classes, feature = one if c["ragged"] else None, tuple(c.get("classes", ())), c.get("feature", True)
        columns[name] = Column(name, values, c["space"], starts, c["width"], classes, feature)
    spaces = {
        name: Space(name, s["size"], tuple(s["columns"]), one, np.zeros(1, np.int64), s["padding"])
        for name, s in shape["spaces"].items()
    }
    return Clients(np.zeros(1, np.int64), one, columns, spaces, shape["label"], reading=shape.get("reading", {}))
