"""What a run is made of, for its versions.json: the data, by path and fingerprint, and files of the user's own."""

from __future__ import annotations

import inspect
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedsub.data.clients import Clients
from fedsub.disk.functions import loaded
from fedsub.disk.provenance import HERE, provenance
from fedsub.method.training import Algorithm
from fedsub.objective.objective import Objective
from fedsub.round.evaluate import Evaluate


def origin(
    method: Algorithm, objective: Objective, clients: Clients, splits: Mapping[str, Clients], plan: Evaluate
) -> dict[str, Any]:
    """See `fedsub.disk.provenance`, with the data besides."""
    named = {"train": clients} | {name: part for name, part in splits.items() if part is not clients}
    if "train" in splits and splits["train"] is not clients:
        named = {"trained on": clients, **splits}
    return {**provenance(own_files(method, objective, plan)), "data": {n: _data(part) for n, part in named.items()}}


def _data(part: Clients) -> dict[str, str]:
    path = Path(part.source) if part.source else None
    here = path is not None and path.exists()
    return {"path": str(path.absolute()) if path is not None and here else part.source, "fingerprint": part.fingerprint}


def own_files(method: Algorithm, objective: Objective, plan: Evaluate) -> list[Path]:
    """The files in which the user wrote module, loss, metrics, the method's parts, and the script that is running.

    Those that a configuration names ("file.py:function") are known by having been imported.
    """
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    found = [*([Path(main).resolve()] if main else []), *loaded().values()]
    found += [file for thing in _things(method, objective, plan) if (file := _file(thing)) is not None]
    return [file for file in dict.fromkeys(found) if file.is_file() and not _of_others(file)]


def _things(method: Algorithm, objective: Objective, plan: Evaluate) -> Iterator[Any]:
    yield from {type(module): None for module in objective.module.modules()}
    yield objective.loss
    yield from (metric.function for metric in plan.own)
    yield type(method)
    for value in vars(method).values() if hasattr(method, "__dict__") else ():
        yield from map(type, value if isinstance(value, tuple) else (value,))


def _file(thing: Any) -> Path | None:
    thing = inspect.unwrap(thing) if callable(thing) else thing
    if not (inspect.isclass(thing) or inspect.isroutine(thing)):
        thing = type(thing)
    try:
        name = inspect.getsourcefile(thing)
    except (TypeError, OSError):  # built in, or typed into an interpreter
        return None
    return Path(name).resolve() if name else None


def _of_others(file: Path) -> bool:
    """Whether a file is fedsub's, Python's or an installed package's."""
    known = sysconfig.get_paths()
    roots = [HERE, *(Path(known[name]).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts"))]
    return any(file.is_relative_to(root) for root in roots)
