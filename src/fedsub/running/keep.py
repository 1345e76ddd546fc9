"""What a run directory keeps so that its model comes back without the data (`fedsub.load` reads it).

At the start:
    model.json            how the module is made again, what the data looked like, which vocabulary is where, what is
                          personal; with digests
    vocabulary/*.parquet  the original id of every row of a space: columns row, id
    clients.parquet       the clients' ids, and
    held.safetensors      the rows that each holds of a personal table; both for personal parameters only
At the end:
    model.safetensors     all parameters and buffers under their plain names, trained values in place; of a lazy table
                          the rows that were touched, and which they are: rows/<name>
    personal.safetensors  personal parameters: [clients, …], of a table the clients' rows one behind the other
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from fedsub.disk.files import digest, write_atomic, writing
from fedsub.disk.seal import read_sealed, write_sealed
from fedsub.disk.tensorfile import Source, TensorFile, savable
from fedsub.method.training import Algorithm
from fedsub.objective.lazy import Touched, parts_of
from fedsub.objective.problem import Problem
from fedsub.objective.recipe import fits, shape_of
from fedsub.round.predict import Evaluated, PersonalModel
from fedsub.trees import Tree

FORMAT, VERSION = "fedsub-model", 1
ABOUT, MODEL, PERSONAL = "model.json", "model.safetensors", "personal.safetensors"
VOCABULARY, CLIENTS, HELD = "vocabulary", "clients.parquet", "held.safetensors"


def begin(folder: Path, problem: Problem, method: Algorithm, model: Evaluated) -> bool:
    """Write what is known before the first round; ``model`` is what is evaluated. What is there and intact stays.

    Returns whether something was there that was not what had been written.
    """
    if (there := (folder / ABOUT).exists()) and _intact(folder):
        return False
    objective = problem.objective
    names = model.names if isinstance(model, PersonalModel) else ()
    about: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "recipe": objective.recipe if fits(objective.recipe, objective.module) else None,
        "data": shape_of(problem.clients),
        "vocabulary": _write_vocabularies(folder / VOCABULARY, problem),
        "personal": None,
        "owes": (played := method.composition) is not None and bool(played.server.lazy),
    }
    if isinstance(model, PersonalModel):
        tables = {name: problem.tables[name].name for name in names if name in problem.tables}
        about["personal"] = {"slot": model.slot, "names": list(names), "tables": tables}
        write_ids(folder / CLIENTS, problem.clients.client_ids)
        held = {s: problem.spaces[s] for s in sorted(set(tables.values()))}
        arrays = {f"rows/{s}": space.rows for s, space in held.items()}
        arrays |= {f"offsets/{s}": space.row_offsets for s, space in held.items()}
        if arrays:
            _write(folder / HELD, {key: torch.from_numpy(np.array(value)) for key, value in arrays.items()})
    named = [f"{VOCABULARY}/{file}" for file in about["vocabulary"].values() if file is not None]
    named += [name for name in (CLIENTS, HELD) if about["personal"] is not None and (folder / name).exists()]
    about["files"] = {name: digest(folder / name) for name in named}
    write_sealed(folder / ABOUT, about)  # last: once it is there, so is all that it names
    return there


def _intact(folder: Path) -> bool:
    try:
        files = read_sealed(folder / ABOUT).get("files", {})
        return all(digest(folder / name) == expected for name, expected in files.items())
    except (OSError, ValueError):
        return False


def end(folder: Path, problem: Problem, params: Tree, model: Evaluated) -> dict[str, str]:
    """Write the trained values, and return the digest of each file that was written."""
    tables = {name: value for name, value in params.items() if isinstance(value, Touched)}
    values = values_of(problem.objective.module, {n: v for n, v in params.items() if n not in tables})
    for name, table in tables.items():
        values |= parts_of(name, table)
    written = {ABOUT: digest(folder / ABOUT), MODEL: _write(folder / MODEL, values)}
    if isinstance(model, PersonalModel):
        own = {name: model.kept.tensors[f"{model.slot}/{name}"] for name in model.names}
        written[PERSONAL] = _write(folder / PERSONAL, own)
    return written


def values_of(module: nn.Module, params: Mapping[str, Tensor]) -> Tree:
    """Parameters and buffers by their names in the state dict; trained ones as ``params`` has them.

    What no file can hold, such as complex buffers, is left out.
    """
    first = {id(p): name for name, p in module.named_parameters()}  # tied parameters are trained under one name
    out: Tree = {}
    for name, value in module.state_dict(keep_vars=True).items():
        if isinstance(value, Tensor):
            trained = params.get(first.get(id(value), ""))
            out[name] = value.detach() if trained is None else trained
    return {name: value for name, value in {**out, **params}.items() if savable(value)}


def constants(module: nn.Module) -> str:
    """A digest of what the module keeps fixed: frozen parameters and buffers."""
    found = hashlib.blake2b(digest_size=8)
    fixed = [(n, p) for n, p in module.named_parameters() if not p.requires_grad]
    for name, value in [*fixed, *module.named_buffers()]:
        found.update(f"{name} {tuple(value.shape)} {value.dtype} ".encode())
        found.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()


def write_ids(path: Path, ids: np.ndarray) -> None:
    """Ids, whole numbers or text, as a Parquet file with the columns row and id."""
    frame = pl.DataFrame({"row": np.arange(len(ids)), "id": ids.tolist() if ids.dtype.kind == "U" else np.array(ids)})
    raw = io.BytesIO()
    frame.write_parquet(raw)
    write_atomic(path, raw.getvalue())


def _write_vocabularies(folder: Path, problem: Problem) -> dict[str, str | None]:
    """The file of every space that a table uses; None where ids were rows already."""
    out: dict[str, str | None] = {}
    for number, space in enumerate(problem.spaces.values()):
        out[space.name] = None
        if space.vocabulary is not None:
            with writing(folder):
                folder.mkdir(exist_ok=True)
            plain = quote(space.name, safe="")
            out[space.name] = f"{plain if len(plain) <= 100 else number}.parquet"
            write_ids(folder / f"{out[space.name]}", space.vocabulary)
    return out


def _write(path: Path, tensors: Mapping[str, Tensor]) -> str:
    return write_atomic(path, TensorFile({name: Source(value) for name, value in tensors.items()}).write)[1]
