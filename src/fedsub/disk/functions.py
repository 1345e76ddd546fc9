"""Functions of the user's own, named "my_file.py:function" or "my_package.module:function"."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any

from fedsub.disk.files import digest
from fedsub.errors import ConfigError, FedsubError, nearest


def find(spec: str, base: Path) -> Path | None:
    """The file of a spec: next to the configuration, else in the working directory; None if there is none."""
    name = spec.partition(":")[0]
    relative = Path(name) if name.endswith(".py") else Path(*name.split(".")).with_suffix(".py")
    return next((f.resolve() for folder in (base, Path.cwd()) if (f := folder / relative).is_file()), None)


def function_of(spec: str, base: Path, where: str, example: str) -> Callable[..., Any]:
    """The function that a spec names; ``where`` is the setting that holds it, ``example`` one that is right."""
    name, _, attribute = spec.partition(":")
    if not (name and attribute):
        raise ConfigError(f"{where} is {spec!r}, expected file:function, such as {example}.")
    module = _module(spec, name, base, where)
    found = getattr(module, attribute, None)
    if not callable(found):
        functions = [k for k, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__]
        hint = nearest(attribute, functions) if functions else "it defines no functions."
        raise ConfigError(f"{where}: {module.__file__} has no function {attribute!r}; {hint}")
    return found


_LOADED: dict[Path, tuple[str, ModuleType]] = {}  # file -> the digest of its content and what it defines


def loaded() -> dict[str, Path]:
    """The files that this process imported, by module name, for another one that is to get objects of their classes."""
    return {module.__name__: file for file, (_, module) in _LOADED.items() if file.is_file()}


def import_file(file: Path, name: str | None = None) -> ModuleType:
    """A file as a module of its own; executed again only if its content has changed, so that classes stay the same."""
    content = digest(file)
    known = _LOADED.get(file)
    if known is not None and known[0] == content:
        return known[1]
    if name is None:
        name = known[1].__name__ if known is not None else f"fedsub_own_{file.stem}"
        while known is None and name in sys.modules:  # another folder's file of that name
            name += "_"
    module_spec = importlib.util.spec_from_file_location(name, file)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module  # dataclasses look their module up
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))  # so that it may import its neighbours
    try:
        module_spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_spec.name]
        _LOADED.pop(file, None)
        raise
    _LOADED[file] = content, module
    return module


def _module(spec: str, name: str, base: Path, where: str) -> ModuleType:
    file = find(spec, base)
    try:
        if file is None:
            if name.endswith(".py"):
                raise ModuleNotFoundError(name=name)
            return importlib.import_module(name)
        return import_file(file)
    except ModuleNotFoundError as error:
        if file is not None or error.name not in (name, name.partition(".")[0]):
            raise ConfigError(f"{where}: {spec} needs the module {error.name!r}, which is missing.") from error
        wanted = name if name.endswith(".py") else f"{name.replace('.', '/')}.py"
        raise ConfigError(f"{where}: there is no file {wanted} in {base} and no module {name!r} to import.") from error
    except FedsubError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{where}: {file or name} cannot be imported: {type(error).__name__}: {error}.") from error


def code_digest(function: Callable[..., Any]) -> str:
    """A digest of a function's text and of the values it closes over, so that a changed one is noticed.

    What it calls is not looked into. Without its text (typed into an interpreter) its byte code stands for it.
    """
    function = inspect.unwrap(function)
    bound = [function.func, *function.args, *function.keywords.items()] if isinstance(function, partial) else []
    if bound:
        return _digest([code_digest(one) if callable(one) else repr(one) for one in bound])
    plain = function if hasattr(function, "__code__") or inspect.isclass(function) else type(function)
    try:
        text = inspect.getsource(plain)
    except (OSError, TypeError):
        code = getattr(plain, "__code__", None)
        text = repr(plain) if code is None else f"{code.co_code!r} {code.co_consts!r} {code.co_names!r}"
    code = getattr(plain, "__code__", None)
    if code is not None and code.co_name == "<lambda>":  # the text is the whole line, which may hold several
        text += f"{[c for c in code.co_consts if not inspect.iscode(c)]!r} {code.co_names!r} {code.co_varnames!r}"
    held = [_held(cell) for cell in getattr(plain, "__closure__", None) or ()]
    fields = sorted(vars(function).items()) if plain is type(function) else []
    return _digest([text, *map(repr, getattr(plain, "__defaults__", None) or ()), *held, *map(repr, fields)])


def _held(cell: Any) -> str:
    try:
        value = cell.cell_contents
    except ValueError:  # not set yet
        return ""
    return code_digest(value) if inspect.isfunction(value) else repr(value)


def _digest(parts: Sequence[str]) -> str:
    # An address in a repr would differ from process to process.
    return blake2b(re.sub(r" at 0x[0-9a-f]+", "", "\n".join(parts)).encode(), digest_size=8).hexdigest()
