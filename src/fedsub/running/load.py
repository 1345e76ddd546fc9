"""`load`: the trained model of a run directory, with its vocabularies and its configuration."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from fedsub.disk.checkpoint import Checkpoints, Snapshot
from fedsub.disk.files import digest
from fedsub.disk.inshards import load as load_whole
from fedsub.disk.rundir import RunDir
from fedsub.disk.seal import read_sealed
from fedsub.errors import CheckpointError, FedsubError, ObjectiveError
from fedsub.objective.directory import Directory
from fedsub.objective.inits import made
from fedsub.objective.lazy import Drawn, Touched
from fedsub.objective.numbering import Ids, stamped
from fedsub.objective.objective import Objective
from fedsub.objective.recipe import changed, make
from fedsub.round.keeper import RESIDENT
from fedsub.running import keep
from fedsub.running.fill import filled
from fedsub.running.personal import PersonalParams, in_file, in_snapshot
from fedsub.trees import Model, Tree

OWES = (
    "Rows of tables are as they were last sent: the server still owes them the rounds since. Go on with the run to its "
    "end, which brings them up to date."
)


@dataclass(frozen=True)
class Trained:
    """A run that was read back.

    ``params`` are the trained parameters by name; ``vocabulary`` the original id of every row by space, None where
    ids were rows already; ``personal`` gives the parameters that each client has of its own, None if there are none.
    ``round`` is the last one that they saw. ``notes`` say what is not as in a finished run.
    """

    path: Path
    config: dict[str, Any] = field(repr=False)
    round: int
    finished: bool
    values: Tree = field(repr=False)  # parameters and buffers, as far as they were saved
    vocabulary: Mapping[str, np.ndarray | None] = field(repr=False)
    personal: PersonalParams | None = field(default=None, repr=False)
    recipe: Mapping[str, Any] | None = field(default=None, repr=False)
    data: Mapping[str, Any] | None = field(default=None, repr=False)  # its shape (`fedsub.objective.recipe`)
    notes: tuple[str, ...] = ()

    @property
    def ids(self) -> dict[str, Ids]:
        """The original id of every row by table, where it is known."""
        named = self.config.get("numbering", {})
        return {table: self.vocabulary[space] for table, (space, _) in named.items() if space in self.vocabulary}

    @cached_property
    def params(self) -> Tree:
        return {name: self.values[name] for name in self.config["parameters"]}

    def module(self, module: nn.Module | Objective | None = None, *, client: Any = None) -> nn.Module:
        """An ordinary nn.Module in eval mode with the trained values, which it shares with ``params``.

        fedsub makes built-in models again, and those of a configuration that names a function ("file.py:function",
        whose file is executed). Of any other the ``module`` that was trained is copied, or its `Objective`'s.
        ``client``: with that client's own parameters, where the run has personal ones.
        """
        model = self.given(module)
        values = self.values if client is None else self.values | self._own(client)
        lazy = {n: v.dense(f"The table {n!r} of {self.path}") for n, v in values.items() if isinstance(v, Touched)}
        return stamped(filled(model, values | lazy, self.config, self.path), self.ids)

    def bare(self, module: nn.Module | Objective | None = None) -> nn.Module:
        """`module` with lazy tables empty, for those that ask the tables for rows."""
        empty = {n: v.values[:0] for n, v in cast(Model, self.values).items() if isinstance(v, Touched)}
        return stamped(filled(self.given(module), self.values | empty, self.config, self.path), self.ids)

    def given(self, module: nn.Module | Objective | None) -> nn.Module:
        """The module that was trained, as it is given or made again."""
        model = self._made() if module is None else module.module if isinstance(module, Objective) else module
        if not isinstance(model, nn.Module):
            raise ObjectiveError(f"module must be a torch.nn.Module or an Objective, got {module!r}.")
        return model

    def _own(self, client: Any) -> Tree:
        """A client's own parameters; of a table the shared one with the client's rows in it."""
        if self.personal is None:
            raise CheckpointError(f"Clients of {self.path} have no parameters of their own; leave client out.")
        out = self.personal.params(client)
        for name, rows in self.personal.rows(client).items():
            out[name] = self.values[name].index_copy(0, rows, out[name])
        return out

    def _made(self) -> nn.Module:
        how = f"load({str(self.path)!r}).module(the module that was trained, or its Objective)"
        if self.recipe is None:
            raise ObjectiveError(f"The module of {self.path} was written in Python; pass it: {how}.")
        if (file := changed(self.recipe)) is not None:
            warnings.warn(f"{file} has changed since {self.path} was trained with it.", stacklevel=3)
        try:
            return make(self.recipe)
        except (Exception, SystemExit) as error:
            raise ObjectiveError(
                f"The module of {self.path} cannot be made again ({type(error).__name__}: {error}); pass it: {how}."
            ) from error


def load(path: str | os.PathLike[str]) -> Trained:
    """The trained model of a run directory; of an unfinished run that of its newest intact checkpoint."""
    folder = Path(path)
    _check(folder)
    config, about, result = (_json(folder / name) for name in ("config.json", keep.ABOUT, "result.json"))
    if config is None or not isinstance(config.get("parameters"), dict):
        raise CheckpointError(f"{folder} does not hold the configuration of a trained model; name a run's directory.")
    if about is not None and about.get("version", 0) > keep.VERSION:
        raise CheckpointError(f"{folder / keep.ABOUT} was written by a newer fedsub; install that one.")
    notes: list[str] = []
    if about is None:
        notes.append(f"{folder} was written by an older fedsub: without vocabularies and personal parameters.")
    about = about or {}
    files, kept = ((result or {}).get(name, {}) for name in ("files", "kept"))
    _check_digest(folder / keep.ABOUT, files.get(keep.ABOUT))
    _check_digest(folder / "config.json", kept.get("config.json"))
    if result is not None and (folder / keep.MODEL).exists():
        values, number, snapshot = _tensors(folder / keep.MODEL, files.get(keep.MODEL)), result["rounds"], None
    else:
        snapshot, sentences = _snapshot(folder)
        if snapshot.meta.get("config") not in (None, RunDir(folder).identity()):
            raise _damaged(folder / "config.json", "it was changed since the checkpoint was taken")
        values, number = _trained(snapshot, config, folder), snapshot.round
        notes += [*sentences, f"{folder} has no {keep.MODEL}: read from the checkpoint of round {number}."]
        notes += [OWES] if about.get("owes") else []
    values |= _lazy(values, config, snapshot)
    digests = files | about.get("files", {})
    return Trained(
        folder, config, number, result is not None, values, _vocabulary(folder, about),
        _personal(folder, about.get("personal"), digests, snapshot), about.get("recipe"),
        about.get("data") or (about.get("recipe") or {}).get("data"), tuple(notes),
    )  # fmt: skip


def _check(folder: Path) -> None:
    """Refuse what is no run's directory, and say where the runs are."""
    if not folder.is_dir():
        raise CheckpointError(f"There is no directory {folder}; name the one of a run (out=…, --out).")
    if not (folder / "config.json").exists():
        runs = sorted(p.parent.name for p in folder.glob("*/config.json"))
        inside = f"one of its runs, such as {folder / runs[0]}" if runs else "a run's directory (out=…, --out)"
        raise CheckpointError(f"{folder} holds no run of its own; name {inside}.")
    try:
        RunDir(folder)
    except FedsubError as error:
        raise CheckpointError(f"{folder} cannot be loaded: {error}") from error


def _json(path: Path) -> dict[str, Any] | None:
    """What a JSON file holds; None if there is none."""
    try:
        return read_sealed(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); restore it from a copy.") from error


def _tensors(path: Path, expected: str | None) -> Tree:
    """Everything in a file whose content is what was written, in memory of its own."""
    try:
        _check_digest(path, expected)
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118, not a dict
    except (OSError, CheckpointError, SafetensorError) as error:
        raise CheckpointError(
            f"{path} is damaged ({error}); restore it from a copy, or delete it to have the newest checkpoint read "
            "in its place."
        ) from error


def _snapshot(folder: Path) -> tuple[Snapshot, list[str]]:
    """The newest intact checkpoint, and what is wrong with newer ones."""
    try:
        return load_whole(Checkpoints(folder / "checkpoints"), folder)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"The checkpoints of {folder} cannot be read ({error}); if it is being trained right now, try again."
        ) from error


def _trained(snapshot: Snapshot, config: Mapping[str, Any], folder: Path) -> Tree:
    saved = {**snapshot.tensors, **snapshot.tables}
    if lacking := [name for name in config["parameters"] if name not in saved]:
        raise CheckpointError(f"The checkpoint in {folder} lacks {', '.join(lacking)}; restore it from a copy.")
    return {name: saved[name] for name in config["parameters"]}


def _lazy(values: Tree, config: Mapping[str, Any], snapshot: Snapshot | None) -> Tree:
    """The lazy tables, which give rows by number; ``values`` has their touched rows and loses which they are."""
    out: dict[str, Touched] = {}
    for name, init in config.get("lazy", {}).items():
        shape, dtype = config["parameters"][name]
        if snapshot is None:
            rows = values.pop(f"rows/{name}")
        else:
            rows = snapshot.tables[f"{RESIDENT}{config['numbering'][name][0]}"]
        drawn = Drawn(torch.Size(shape), getattr(torch, dtype), made(init))
        out[name] = Touched(drawn, values[name], Directory(rows))
    return cast(Tree, out)


def _check_digest(path: Path, expected: str | None) -> None:
    """Refuse a file that is not what was written; an older fedsub did not say what that was."""
    try:
        if expected is None or digest(path) == expected:
            return
    except OSError as error:
        raise _damaged(path, str(error)) from error
    raise _damaged(path, "its content does not match its digest")


def _damaged(path: Path, why: str) -> CheckpointError:
    return CheckpointError(f"{path} is missing or damaged ({why}); restore it from a copy.")


def _ids(path: Path, expected: str | None) -> np.ndarray:
    _check_digest(path, expected)
    try:
        found = pl.read_parquet(path)["id"]
    except (OSError, pl.exceptions.PolarsError) as error:
        raise _damaged(path, str(error)) from error
    return np.array(found.to_list(), np.str_) if found.dtype == pl.String else found.to_numpy()


def _vocabulary(folder: Path, about: Mapping[str, Any]) -> dict[str, np.ndarray | None]:
    named, files = about.get("vocabulary", {}), about.get("files", {})
    where = {s: None if file is None else f"{keep.VOCABULARY}/{file}" for s, file in named.items()}
    return {s: None if file is None else _ids(folder / file, files.get(file)) for s, file in where.items()}


def _personal(
    folder: Path, about: Mapping[str, Any] | None, files: Mapping[str, str], snapshot: Snapshot | None
) -> PersonalParams | None:
    if about is None:
        return None
    tables: dict[str, str] = about["tables"]
    held = _tensors(folder / keep.HELD, files.get(keep.HELD)) if tables else {}
    in_files = in_file(folder / keep.PERSONAL, files.get(keep.PERSONAL))
    read = in_files if snapshot is None else in_snapshot(snapshot, about["slot"])
    clients = _ids(folder / keep.CLIENTS, files.get(keep.CLIENTS))
    return PersonalParams(folder, tuple(about["names"]), clients, tables, held, read)
