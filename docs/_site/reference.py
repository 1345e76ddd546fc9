"""The API reference, one page a room: every public name of fedsub, found by importing it.

`pages()` gives {page: Markdown}; mkdocstrings fills in signatures and docstrings from the sources.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import fedsub

# Public modules beside those of `fedsub.__all__`; that over Flower where it is installed, as for the site.
BESIDE = ("fedsub.node", *(("fedsub.flower",) if find_spec("flwr") else ()), "fedsub.testing")
GROUPS = {  # page -> (title, rooms)
    "data": ("Data", ("data",)),
    "privacy": ("Privacy", ("privacy",)),
    "objective": ("Objectives, losses and models", ("objective",)),
    "methods": (
        "Named methods",
        (
            "methods",
            "method.named",
            "families.asynchronous.named",
            "families.mixture.named",
            "families.factorisation.named",
            "gossip.named",
        ),
    ),
    "method": ("Slots and parts of a method", ("method",)),
    "round": ("Rounds and evaluation", ("round", "trees")),
    "families": ("Asynchronous rounds, mixture and factorisation", ("families",)),
    "gossip": ("Learning without a server", ("gossip",)),
    "running": ("Training, results and models", ("running", "serving")),
    "study": ("Comparing, tuning, costs, theory", ("study",)),
    "node": ("Nodes, and over Flower", ("node", "flower")),
    "vertical": ("Parties with different features", ("vertical",)),
    "testing": ("Tests of your own, and errors", ("testing", "errors")),
}


def pages() -> dict[str, str]:
    """Markdown of every page of the reference, and of its index."""
    found: dict[str, dict[str, str]] = {page: {} for page in GROUPS}
    for shown, path in names():
        found[_page(path)].setdefault(path, shown)
    out, rows = {}, []
    for page, (title, _) in GROUPS.items():
        lines = [f"# {title}", ""]
        for path, shown in found[page].items():
            lines += [f"::: {path}", "    options:", f"      heading: {shown}", ""]
        out[f"reference/{page}.md"] = "\n".join(lines)
        rows.append(f"| [{title}]({page}.md) | {', '.join(f'`{shown}`' for shown in found[page].values())} |")
    head = ["# API reference", "", "Every public name, with its docstring; `fs` is `import fedsub as fs`.", ""]
    out["reference/index.md"] = "\n".join([*head, "| page | names |", "| --- | --- |", *rows, ""])
    return out


def names() -> list[tuple[str, str]]:
    """(how a user writes it, where it is defined) of every public function and class."""
    out = []
    for name in fedsub.__all__:
        value = getattr(fedsub, name)
        if isinstance(value, ModuleType):
            out += _members(value, f"fs.{name}")
        else:
            out.append((f"fs.{name}", _defined(value, f"fedsub.{fedsub._HOME_OF[name]}", name)))
    for module in BESIDE:
        out += _members(import_module(module), module)
    return out


def _members(module: ModuleType, shown: str) -> list[tuple[str, str]]:
    """Public members: those of __all__, or the functions and classes that the module defines."""
    listed = getattr(module, "__all__", None)
    if listed is None:
        own = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__]
        listed = [n for n in own if not n.startswith("_")]
    return [(f"{shown}.{name}", _defined(getattr(module, name), module.__name__, name)) for name in listed]


def _defined(value: Any, module: str, name: str) -> str:
    """The dotted path of the definition, which is what mkdocstrings reads; of constants that of their module."""
    if inspect.isclass(value) or inspect.isfunction(value):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, ModuleType):
        return value.__name__
    return f"{module}.{name}"


def _page(path: str) -> str:
    inside = path.removeprefix("fedsub.")
    fitting = [
        (len(room), page)
        for page, (_, rooms) in GROUPS.items()
        for room in rooms
        if inside == room or inside.startswith(f"{room}.")
    ]
    if not fitting:
        raise SystemExit(f"{path} is public and in no group of the reference; add its room to GROUPS.")
    return max(fitting)[1]
