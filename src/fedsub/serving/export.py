"""`export`: a trained model as a folder that needs no fedsub.

model.safetensors        the state dict under plain names
vocabulary/NAME.parquet  the original id of every row of a table: columns row, id; and as NAME.json, a list, which
                         Python reads without a package
config.json              what the columns are, how the output is meant, and the configuration of the run
score.py                 scores a CSV file, or lists in Python, with torch and safetensors only
model.onnx               where the module allows and the package onnx is there
constants.safetensors    what else the module computes with, if it is not in its state dict
personal.safetensors, held.safetensors, clients.json
                         what every client has of its own, the rows that each holds, and the clients' ids
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from torch import Tensor, nn

from fedsub import __version__
from fedsub.disk.files import dump, write_atomic, writing
from fedsub.disk.tensorfile import Source, TensorFile
from fedsub.errors import ConfigError, MissingExtra
from fedsub.method.described import describe
from fedsub.objective.lazy import Touched
from fedsub.objective.objective import Objective
from fedsub.running.keep import write_ids
from fedsub.running.load import Trained
from fedsub.running.result import Result
from fedsub.serving import standalone
from fedsub.serving.asked import (
    MASK,
    Asked,
    Run,
    asked,
    classes_of,
    example,
    loss_of,
    run_directory,
    state_of,
    width_of,
)  # fmt: skip
from fedsub.serving.graph import NotTraced, Traced, trace, write_onnx
from fedsub.trees import Tree

FORMAT, VERSION = "fedsub-export", 1
CONFIG, MODEL, SCORE, ONNX = "config.json", "model.safetensors", "score.py", "model.onnx"
CONSTANTS, PERSONAL, HELD, CLIENTS = "constants.safetensors", "personal.safetensors", "held.safetensors", "clients.json"


@dataclass(frozen=True)
class Exported:
    """Where the folder is, the files in it, and what a user of it must know."""

    path: Path
    files: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass
class _Folder:
    path: Path
    files: list[str] = field(default_factory=list)

    def tensors(self, name: str, values: Mapping[str, Tensor]) -> None:
        write_atomic(self.path / name, TensorFile({key: Source(value) for key, value in values.items()}).write)
        self.files.append(name)

    def text(self, name: str, content: bytes) -> None:
        write_atomic(self.path / name, content)
        self.files.append(name)


def export(
    run: Run,
    folder: str | os.PathLike[str],
    *,
    module: nn.Module | Objective | None = None,
    client: Any = None,
    onnx: bool | None = None,
) -> Exported:
    """Write a trained model into a new folder that needs no fedsub.

    run       what `fedsub.run` returned, a run's directory, or what `fedsub.load` made of it
    folder    one that is not there yet, or is empty
    module    the module that was trained, or its Objective, where fedsub cannot make it again (`fedsub.load`)
    client    the model of one client, whose own parameters take the place of the shared ones. By default those of all
              clients are written beside the shared model
    onnx      True: fail if model.onnx cannot be written; False: leave it out; None: say why in ``notes``

    The module is written down as `torch.export` traces it. One that it cannot trace is exported without: score.py
    then asks for the module.
    """
    found = _written_out(asked(run, module))
    if client is not None:
        found = found.of_client(client)
    notes: list[str] = []
    traced = _traced(found, notes)
    if onnx and traced is None:
        raise NotTraced(notes[-1])
    out = _Folder(_new(folder))
    state = state_of(found)
    out.tensors(MODEL, state)
    _vocabularies(found, out)
    if traced is not None and traced.constants:
        out.tensors(CONSTANTS, traced.constants)
    if (own := found.personal) is not None:
        out.tensors(PERSONAL, {name: own.kept.tensors[f"{own.slot}/{name}"] for name in own.names})
        tables = {found.problem.tables[name].name for name in own.names if name in found.problem.tables}
        held = {f"rows/{s}": found.like.spaces[s].rows for s in sorted(tables)}
        held |= {f"offsets/{s}": found.like.spaces[s].row_offsets for s in sorted(tables)}
        if held:
            out.tensors(HELD, {key: torch.from_numpy(np.array(value)) for key, value in held.items()})
        out.text(CLIENTS, dump(found.like.client_ids.tolist()))
        notes.append(
            f"{PERSONAL} holds what all {len(found.like.client_ids):,} clients have of their own; the model of one "
            "alone is written by client=… (--client)."
        )
    out.text(CONFIG, dump(_config(found, state, run, notes), indent=2))
    out.text(SCORE, _score(traced).encode())
    if onnx is not False and traced is not None:
        _onnx(found, traced, out, notes, required=bool(onnx))
    return Exported(out.path, tuple(out.files), tuple(notes))


def _written_out(found: Asked) -> Asked:
    """Lazy tables as a whole, where they are small enough."""
    lazy = {name: one.dense(f"The table {name!r}") for name, one in found.shared.items() if isinstance(one, Touched)}
    shared = {**found.shared, **lazy}
    return replace(found, model=shared if found.personal is None else replace(found.personal, shared=shared))


def _traced(found: Asked, notes: list[str]) -> Traced | None:
    def make(count: int) -> dict[str, Tensor]:
        batch = example(found.like, count)
        mask = {MASK: torch.ones(count)} if found.masked else {}
        return {name: batch[name] for name in found.columns} | mask

    inputs = found.problem.objective.inputs
    try:
        return trace(found.scorer().full(found.shared).module, None if inputs is None else tuple(inputs), make)
    except NotTraced as error:
        notes.append(
            f"{error} So {SCORE} has no code for the model and there is no {ONNX}: give the module, from score import "
            "Model; Model(module=…)."
        )
        return None


def _new(folder: str | os.PathLike[str]) -> Path:
    path = Path(folder)
    with writing(path):
        if path.is_file() or (path.is_dir() and any(path.iterdir())):
            raise ConfigError(f"{path} is there already; name a folder that is new or empty.")
        path.mkdir(parents=True, exist_ok=True)
    return path


def _vocabularies(found: Asked, out: _Folder) -> None:
    for name, file in _files(found).items():
        ids = found.like.spaces[name].vocabulary
        if ids is not None and file is not None:
            with writing(out.path):
                (out.path / "vocabulary").mkdir(exist_ok=True)
            parquet = file.removesuffix(".json") + ".parquet"
            write_ids(out.path / parquet, ids)
            out.files.append(parquet)
            out.text(file, dump(ids.tolist()))


def _files(found: Asked) -> dict[str, str | None]:
    """The vocabulary that score.py reads, by space."""
    used = {found.like.columns[name].space for name in found.columns} - {None}
    out: dict[str, str | None] = {}
    for number, (name, space) in enumerate(found.like.spaces.items()):
        if name in used:
            plain = quote(name, safe="")
            known = space.vocabulary is not None
            out[name] = f"vocabulary/{plain if len(plain) <= 100 else number}.json" if known else None
    return out


def _config(found: Asked, state: Tree, run: Run, notes: list[str]) -> dict[str, Any]:
    like = found.like
    inputs = found.problem.objective.inputs
    own = found.personal
    return {
        "format": FORMAT,
        "version": VERSION,
        "fedsub": __version__,
        "columns": {name: _column(found, name) for name in found.columns},
        "spaces": {name: _space(found, name, file, state) for name, file in _files(found).items()},
        "inputs": list(inputs) if inputs is not None else None,
        "sample_mask": found.masked,
        "output": found.kind,
        "label": getattr(loss_of(found), "label", None),
        "classes": list(classes_of(found)),
        "client": like.reading.get("client"),
        "separator": like.reading.get("separator"),
        "encoding": like.reading.get("encoding"),
        "personal": None if own is None else {
            "names": list(own.names),
            "tables": {n: found.problem.tables[n].name for n in own.names if n in found.problem.tables},
        },
        "notes": notes,
        "run": _of_run(run),
    }  # fmt: skip


def _column(found: Asked, name: str) -> dict[str, Any]:
    column = found.like.columns[name]
    shape = column.values.shape[1:]
    kind = "list" if column.ragged else "fixed" if shape else "one"
    width = width_of(found.like, name) if column.ragged else int(np.prod(shape))
    dtype = "int64" if column.space is not None else column.values.dtype.name
    return {"space": column.space, "kind": kind, "width": width, "dtype": dtype}


def _space(found: Asked, name: str, file: str | None, state: Tree) -> dict[str, Any]:
    space = found.like.spaces[name]
    tables = found.tables_of(name)
    same = {id(state[t]) for t in tables}  # tied parameters are the same tensor under other names
    return {
        "size": space.size,
        "padding": space.padding,
        "spare": found.spare_row(space),
        "tables": [n for n, value in state.items() if id(value) in same],
        "whole": any(t in found.problem.objective.whole for t in tables),
        "vocabulary": file,
        "ids": "text" if space.vocabulary is not None and space.vocabulary.dtype.kind == "U" else "int",
    }


def _of_run(run: Run) -> dict[str, Any]:
    """The configuration of the run, or what is known of one that has no directory."""
    if isinstance(run, Result) and run.path is None:
        problem = run.problem
        return {"method": run.method, "seed": run.seed, "loss": describe(problem.objective.loss) if problem else None}
    from fedsub.running.load import load

    path = run.path if isinstance(run, Result) else run
    return dict((path if isinstance(path, Trained) else load(run_directory(str(path)))).config)


def _score(traced: Traced | None) -> str:
    """The standalone file, with the model's function in it."""
    source = Path(standalone.__file__).read_text(encoding="utf-8")
    if traced is None:
        return source
    before, _, rest = source.partition("# <compute>\n")
    _, _, after = rest.partition("# </compute>\n")
    return before + "# the model, as torch.export traced it\n" + traced.code + after


def _onnx(found: Asked, traced: Traced, out: _Folder, notes: list[str], *, required: bool) -> None:
    if found.personal is not None:
        notes.append(f"{ONNX} is the shared model; that of one client is written by client=… (--client).")
    inputs = found.problem.objective.inputs
    names = list(inputs) if inputs is not None else [*found.columns, *([MASK] if found.masked else [])]
    try:
        write_onnx(out.path / ONNX, traced, names)
    except (MissingExtra, NotTraced) as error:
        if required:
            raise
        notes.append(f"There is no {ONNX}: {error}")
        return
    out.files += sorted(p.name for p in out.path.glob(f"{ONNX}*"))
