"""Checkpoints of tables in pieces: every piece has a folder of its own, and the checkpoint says where.

    checkpoints/round-00000010.json            meta: {"shards": {"folders": […], "seals": […], "rows": {table: rows}}}
    shards/00000010-4be0…, …                   of 3: checkpoints of rows 0, 3, 6, …; of 1, 4, 7, …; of 2, 5, 8, …

A folder belongs to one life of one piece, which begins it with a full checkpoint. The checkpoint names the seal of each
piece's, so that nothing else can be read in its place. They are read into whole tables, whatever their number.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsub.disk.checkpoint import Checkpoints, Snapshot
from fedsub.errors import CheckpointError

FOLDER, META = "shards", "shards"


@dataclass(frozen=True)
class Pieces:
    """Where the pieces of a checkpoint are, in order, and how many rows the whole tables have."""

    folders: tuple[str, ...]
    seals: tuple[str, ...]
    rows: Mapping[str, int]

    def meta(self) -> dict[str, Any]:
        return {META: {"folders": list(self.folders), "seals": list(self.seals), "rows": dict(self.rows)}}

    @classmethod
    def of(cls, meta: Mapping[str, Any]) -> Pieces | None:
        """What a checkpoint's meta says of pieces; None: its tables are whole."""
        said = meta.get(META)
        return None if said is None else cls(tuple(said["folders"]), tuple(said["seals"]), said["rows"])


def load(saved: Checkpoints, run: Path, into: Mapping[str, Tensor] | None = None) -> tuple[Snapshot, list[str]]:
    """`Checkpoints.load` of a run's directory, with whole tables wherever their pieces are."""
    if not (run / FOLDER).is_dir():
        return saved.load(into=into)
    snapshot, notes = saved.load()
    given, tables = into or {}, dict(snapshot.tables)
    if (pieces := Pieces.of(snapshot.meta)) is not None:
        for number, (folder, seal) in enumerate(zip(pieces.folders, pieces.seals, strict=True)):
            for name, values in read(run / FOLDER / folder, snapshot.round, seal).tables.items():
                if number == 0:
                    tables[name] = torch.empty((pieces.rows[name], *values.shape[1:]), dtype=values.dtype)
                    tables[name] = given.get(name, tables[name])
                tables[name][number :: len(pieces.folders)] = values
    for name, target in given.items():
        if tables[name] is not target:
            target.copy_(tables[name])
            tables[name] = target
    return Snapshot(snapshot.round, snapshot.tensors, tables, snapshot.meta, snapshot.seal), notes


def read(folder: Path, number: int, seal: str) -> Snapshot:
    """One piece of a checkpoint."""
    piece, _ = Checkpoints(folder).load(round=number)
    if piece.seal != seal:
        raise CheckpointError(
            f"{folder} holds another round {number} than the checkpoint was made with; restore the run's directory "
            "from a copy."
        )
    return piece


def clear(run: Path, keep: set[str]) -> None:
    """Delete the folders of pieces that no checkpoint will be read from again."""
    for folder in (run / FOLDER).iterdir() if (run / FOLDER).is_dir() else ():
        if folder.name not in keep:
            shutil.rmtree(folder, ignore_errors=True)
