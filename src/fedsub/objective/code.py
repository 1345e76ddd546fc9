"""Digests of what an objective computes: the code of the module's forward and of the loss, as it runs.

Of every function two digests are taken. One is of its bytecode, without names of files, line numbers and docstrings:
it is what runs, and moving or reformatting a file does not change it. Bytecode means nothing to another version of
Python, so the other one is of the syntax tree of its source, where there is a source.

A function stands for all that it reaches: functions and numbers of its file, what it closes over, methods of its class.
Code of torch and of fedsub has versions of its own (versions.json) and is left out.
"""

from __future__ import annotations

import ast
import functools
import inspect
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from hashlib import blake2b
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsub.objective.objective import Objective

LIBRARIES = {"torch", "fedsub", "builtins", "numpy", "typing", "dataclasses", "functools"}
LARGEST = 1 << 20  # elements of an array, entries of a list: beyond, only how many there are
PYTHON, STRUCTURE = "python", "the module's layers and their settings"


def code_of(objective: Objective) -> dict[str, Any]:
    """{what it is, in words: [digest of the bytecode, digest of the source or None]}, and the version of Python."""
    module, loss = objective.module, objective.loss
    classes = {_name(type(m)): type(m) for m in module.modules() if not _library(type(m))}
    found = {f"the forward of {name}": _digest(lambda d, c=c: d.method(c, "forward")) for name, c in classes.items()}
    found[STRUCTURE] = _digest(lambda d: d.structure(module))
    found["the loss"] = _digest(lambda d: d.value(loss))
    return {PYTHON: ".".join(map(str, sys.version_info[:2])), **found}


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What of the code is not as it was, in words. What cannot be compared counts as the same."""
    same_python = before.get(PYTHON) == now.get(PYTHON)
    out = []
    for what in dict.fromkeys((*before, *now)):
        old, new = before.get(what), now.get(what)
        if what == PYTHON or old == new:
            continue
        if old is None or new is None or same_python or (old[1] != new[1] and None not in (old[1], new[1])):
            out.append(what)
    return out


class _Digester:
    """Both digests, of one thing after another."""

    def __init__(self) -> None:
        self.bytecode, self.source = blake2b(digest_size=8), blake2b(digest_size=8)
        self.readable = True  # whether there is a source of every function
        self._seen: set[int] = set()

    def fact(self, *facts: object) -> None:
        for one in facts:
            text = f"{one!r};".encode(errors="surrogatepass")
            self.bytecode.update(text)
            self.source.update(text)

    def structure(self, module: nn.Module) -> None:
        """The tree of modules, their settings, and functions that were put into them."""
        for name, part in module.named_modules():
            self.fact(name, _name(type(part)), part.extra_repr())
            self.fact(made) if isinstance(made := getattr(part, "code", None), str) else None  # scripted or traced
            for hooks in (part._forward_pre_hooks, part._forward_hooks):
                for hook in hooks.values():
                    self.value(hook)
            for key, value in sorted(vars(part).items()):
                if not key.startswith("_") and key not in ("training", "code"):
                    self.fact(key)
                    self.value(value)

    def value(self, value: object) -> None:
        if value is None or isinstance(value, bool | int | float | complex | bytes):
            self.fact(value)
        elif isinstance(value, str):
            self.fact(value if os.sep not in value else "a path")
        elif isinstance(value, Tensor | np.ndarray):
            self._array(value)
        elif isinstance(value, functools.partial):
            for part in (value.func, value.args, value.keywords):
                self.value(part)
        elif isinstance(value, MethodType):
            self.method(type(value.__self__), value.__name__)
        elif isinstance(value, FunctionType):
            self.function(value, None)
        elif isinstance(value, type | BuiltinFunctionType):
            self.fact(_name(value))
        elif isinstance(value, list | tuple | set | frozenset | dict):
            self._collection(value)
        elif isinstance(value, nn.Module):
            self.method(type(value), "forward")
            self.structure(value)
        else:
            self._object(value)

    def _array(self, value: Tensor | np.ndarray) -> None:
        self.fact(tuple(value.shape), str(value.dtype))
        if isinstance(value, Tensor) and value.numel() <= LARGEST and not value.is_meta and not value.is_sparse:
            self.fact(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(value, np.ndarray) and value.size <= LARGEST and value.dtype != object:
            self.fact(value.tobytes())

    def _collection(self, value: Any) -> None:
        self.fact(type(value).__name__, len(value))
        if id(value) in self._seen or len(value) > LARGEST:
            return
        self._seen.add(id(value))
        if isinstance(value, dict):
            for key, item in value.items():
                self.value(key)
                self.value(item)
        else:
            for item in sorted(value, key=repr) if isinstance(value, set | frozenset) else value:
                self.value(item)

    def _object(self, value: object) -> None:
        self.fact(_name(type(value)))
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if is_dataclass(value):
            for field in fields(value):
                self.value(getattr(value, field.name))
        if callable(value) and not _library(type(value)):
            self.method(type(value), "__call__")
            for key, item in sorted(getattr(value, "__dict__", {}).items()):
                self.fact(key)
                self.value(item)

    def method(self, owner: type, name: str) -> None:
        """A method as every class above defines it: an overriding one may call the one that it overrides."""
        for cls in owner.__mro__:
            found = vars(cls).get(name)
            found = getattr(found, "__func__", getattr(found, "fget", found))  # static, class method; property
            if isinstance(found, FunctionType) and not _library(cls):
                self.function(found, owner)

    def function(self, function: FunctionType, owner: type | None) -> None:
        """A function and what it reaches; ``owner`` is the class whose method it is."""
        function = inspect.unwrap(function)
        if id(function.__code__) in self._seen or function.__module__.partition(".")[0] in LIBRARIES:
            self.fact(function.__qualname__.rpartition(".")[2])
            return
        self._seen.add(id(function.__code__))
        for text in _bytecode(function.__code__, function.__doc__):
            self.bytecode.update(text)
        if (tree := _tree(function)) is None:
            self.readable = False
        else:
            self.source.update(tree.encode())
        self.value(function.__defaults__)
        self.value(function.__kwdefaults__)
        for cell in function.__closure__ or ():
            try:
                self.value(cell.cell_contents)
            except ValueError:  # not filled yet
                self.fact("empty")
        for name in sorted(set(_names(function.__code__))):
            if owner is not None:
                self.method(owner, name)
            if not name.startswith("__") and (value := function.__globals__.get(name)) is not None:
                self.fact(name)
                self.value(value)

    def pair(self) -> list[str | None]:
        return [self.bytecode.hexdigest(), self.source.hexdigest() if self.readable else None]


def _digest(fill: Any) -> list[str | None]:
    digester = _Digester()
    fill(digester)
    return digester.pair()


def _bytecode(code: CodeType, docstring: str | None) -> Iterator[bytes]:
    yield code.co_code
    yield repr((code.co_names, code.co_argcount, code.co_kwonlyargcount, code.co_flags)).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _bytecode(constant, None)
        elif isinstance(constant, frozenset):
            yield repr(sorted(map(repr, constant))).encode()
        else:
            yield b"doc" if docstring is not None and constant == docstring else repr(constant).encode()


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _tree(function: FunctionType) -> str | None:
    """The syntax tree of a function's source, without places and docstring; None if it cannot be told."""
    try:
        parsed = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    kinds = (ast.Lambda,) if function.__name__ == "<lambda>" else (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node for node in ast.walk(parsed) if isinstance(node, kinds)]
    if not found or (len(found) > 1 and kinds == (ast.Lambda,)):  # which of several, the source does not say
        return None
    node = found[0]
    if not isinstance(node, ast.Lambda) and ast.get_docstring(node, clean=False) is not None:
        node.body = node.body[1:]
    return ast.dump(node)


def _library(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in LIBRARIES


def _name(value: Any) -> str:
    """Of a class of the user's own without its module, whose name may change as its file moves."""
    place, name = getattr(value, "__module__", None) or "", getattr(value, "__qualname__", repr(value))
    return f"{place}.{name}" if place.partition(".")[0] in LIBRARIES else name.rpartition("<locals>.")[2]
