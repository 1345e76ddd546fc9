"""A run: one piece of the data, sorted by client, on disk.

    meta.json                  what was found in the piece; types and widths of its columns
    clients.ids                the clients that occur in it, sorted (strings: a Parquet file)
    clients.starts             int64 [clients + 1], where the rows of each begin
    column0  column0.starts    values; of lists all entries, and where each list begins
    space0.ids                 the distinct ids of a space, sorted; its columns hold positions in them

Positions become table rows once the vocabulary is known (`Run.translate`): ``column0`` is then ``column0.rows``.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedsub.data.cells import ranked
from fedsub.data.clients import Array, Column
from fedsub.data.large.arrays import get, order_of, put
from fedsub.data.pieces import Found, Piece
from fedsub.data.plan import Plan
from fedsub.data.renumber import distinct, reorder
from fedsub.disk.reading import read_json

META = "meta.json"
CLIENTS = "clients"


@dataclass(frozen=True)
class Run:
    folder: Path
    meta: dict[str, Any]

    @classmethod
    def write(cls, folder: Path, piece: Piece, plan: Plan, kept: bool) -> Run:
        """Appears whole or not at all. ``kept``: the positions of rows that are left, for those that have marks."""
        part = folder.with_name(folder.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        meta: dict[str, Any] = {"found": _as_json(piece.found), "ids": {}, "columns": [], "marks": 0}
        if piece.owners is not None:
            _sorted_by_client(part, piece, plan, meta)
        if piece.marks is not None:
            put(part / "marks", piece.marks)
            meta["marks"] = len(piece.marks)
            if kept and piece.places.rows is not None:
                put(part / "kept", piece.places.rows.astype(np.int64))
        sizes = {path.name: path.stat().st_size for path in part.iterdir()}
        (part / META).write_text(json.dumps(meta | {"files": sizes}), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
        return cls(folder, meta)

    @classmethod
    def open(cls, folder: Path) -> Run | None:
        """What was written there, or None if it is not whole (a file system may lose what was written last)."""
        try:
            meta = read_json(folder / META)
            for name, size in meta["files"].items():
                path, moved = folder / name, folder / f"{name}.rows"
                if not (path.exists() and path.stat().st_size == size) and not moved.exists():
                    return None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return cls(folder, meta)

    @property
    def found(self) -> Found:
        return _from_json(self.meta["found"])

    @property
    def rows(self) -> int:
        return int(self.meta["found"]["kept"])

    @property
    def starts(self) -> Array:
        return get(self.folder / "clients.starts", "i8")

    def ids(self, name: str, begin: int, end: int) -> pl.Series:
        """Some of the distinct ids of a space, or of the clients."""
        if self.meta["ids"][name]["kind"] == "String":
            read = pl.scan_parquet(self.folder / f"{name}.ids", glob=False).slice(begin, end - begin)
            return read.collect().to_series().alias("")
        return pl.Series("", get(self.folder / f"{name}.ids", "i8", begin, end))

    def translate(self, plan: Plan, sizes: Sequence[int]) -> None:
        """Positions in the run's own ids to table rows; ``sizes`` are those of the spaces, in order."""
        for i, (space, names) in enumerate(plan.spaces.items()):
            if space in plan.sizes or f"space{i}" not in self.meta["ids"]:
                continue
            missing = [n for n in names if not self._file(plan, n).with_suffix(".rows").exists()]
            ranks = get(self.folder / f"space{i}.ranks", "i8") if missing else None
            for name in missing:
                assert ranks is not None
                codes = get(self._file(plan, name), "i4")
                done = self._file(plan, name).with_suffix(".part")
                put(done, ranks[codes].astype(row_type(sizes[i])))
                done.rename(self._file(plan, name).with_suffix(".rows"))
                self._file(plan, name).unlink()

    def columns(self, plan: Plan, sizes: Sequence[int], begin: int, end: int) -> list[Column]:
        """Rows ``begin`` to ``end`` of every column, ids as table rows."""
        kinds = {name: row_type(sizes[i]) for i, names in enumerate(plan.spaces.values()) for name in names}
        return [self._column(plan, about, kinds, begin, end) for about in self.meta["columns"]]

    def _column(self, plan: Plan, about: dict[str, Any], kinds: dict[str, str], begin: int, end: int) -> Column:
        path, name, starts = self._file(plan, about["name"]), about["name"], None
        dtype, tail = about["dtype"], about["width"] if about["fixed"] else 0
        if about["ragged"]:
            starts = get(path.with_suffix(".starts"), "i8", begin, end + 1)
            begin, end = int(starts[0]), int(starts[-1])
            starts -= begin
        if name in kinds and (moved := path.with_suffix(".rows")).exists():
            path, dtype = moved, kinds[name]
        values = get(path, dtype, begin, end, tail)
        return Column(name, values, about["space"], starts, about["width"])

    def _file(self, plan: Plan, name: str) -> Path:
        return self.folder / f"column{plan.names.index(name)}"


def row_type(size: int) -> str:
    return "i4" if size < 2**31 else "i8"


def _sorted_by_client(folder: Path, piece: Piece, plan: Plan, meta: dict[str, Any]) -> None:
    assert piece.owners is not None
    ids, (codes,) = ranked([piece.owners])
    order = order_of(codes)
    counts = np.bincount(codes, minlength=len(ids))
    put(folder / "clients.starts", np.concatenate([[0], np.cumsum(counts)]))
    _put_ids(folder, CLIENTS, ids, meta)
    columns = dict(piece.columns)
    for i, (space, members) in enumerate(piece.members.items()):
        if space in plan.sizes:
            kind = row_type(plan.sizes[space])
            columns |= {m.name: m.column(space, np.asarray(m.ids).astype(kind)) for m in members}
            used = distinct(np.concatenate([np.asarray(m.ids) for m in members]))
            _put_ids(folder, f"used{i}", pl.Series("", used), meta)
            continue
        kind = piece.found.kind(plan, space)
        ids, places = ranked([pl.Series(m.ids).cast(kind) for m in members])
        _put_ids(folder, f"space{i}", ids, meta)
        columns |= {m.name: m.column(space, p.astype(np.int32)) for m, p in zip(members, places, strict=True)}
    for i, name in enumerate(plan.names):
        column = reorder(columns[name], order)
        put(folder / f"column{i}", column.values)
        if column.starts is not None:
            put(folder / f"column{i}.starts", column.starts.astype(np.int64))
        about = {"name": name, "dtype": column.values.dtype.str, "space": column.space, "width": int(column.width)}
        meta["columns"].append(about | {"fixed": column.values.ndim > 1, "ragged": column.ragged})


def _put_ids(folder: Path, name: str, ids: pl.Series, meta: dict[str, Any]) -> None:
    words = ids.dtype == pl.String
    longest = int(ids.str.len_chars().max() or 0) if words else 0  # type: ignore[arg-type]
    about = {"kind": "String" if words else "Int64", "count": len(ids), "longest": max(longest, 1)}
    meta["ids"][name] = about | {"bytes": int(ids.estimated_size())}
    if words:
        ids.alias("id").to_frame().write_parquet(folder / f"{name}.ids", compression="lz4", row_group_size=1 << 17)
    else:
        put(folder / f"{name}.ids", ids.to_numpy())


def _as_json(found: Found) -> dict[str, Any]:
    assert not found.problems
    return {
        "rows": found.rows, "blank": found.blank, "kept": found.kept, "lacking": dict(found.lacking),
        "own": dict(found.own), "kinds": found.kinds, "label": found.label,
    }  # fmt: skip


def _from_json(said: dict[str, Any]) -> Found:
    label = tuple(said["label"]) if said["label"] is not None else None
    return replace(Found(**{**said, "label": label}), lacking=Counter(said["lacking"]), own=Counter(said["own"]))
