"""Tensors in a safetensors file: written and read piece by piece, so that no table is in memory twice."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsub.disk.files import Sink
from fedsub.errors import CheckpointError
from fedsub.trees import put_rows

CHUNK = 64 << 20  # bytes of a table that are in flight at once

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}

Rows = np.ndarray | Tensor


def savable(tensor: Tensor) -> bool:
    """Whether a safetensors file can hold it: ordinary numbers, densely stored."""
    return tensor.dtype in _NAMES and tensor.layout == torch.strided


def check_savable(whole: Mapping[str, Tensor], tables: Mapping[str, Tensor]) -> None:
    for name, tensor in {**whole, **tables}.items():
        if not savable(tensor):
            raise CheckpointError(f"{name} is {tensor.dtype}, {tensor.layout}, which cannot be saved.")
    for name, table in tables.items():
        if table.dim() == 0:
            raise CheckpointError(f"Table {name} has no rows (it is a single number); save it as a tensor.")


def _row_size(tensor: Tensor) -> int:
    return tensor.element_size() * (tensor[0].numel() if len(tensor) else 0)


def row_ids(moved: Mapping[str, Rows], tables: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """Sorted ids without repetition for every table, or None if those of a table are not known."""
    if unknown := sorted(set(moved) - set(tables)):
        raise CheckpointError(f"moved names {', '.join(unknown)}; the tables are {', '.join(sorted(tables))}.")
    if set(moved) != set(tables):
        return None
    ids = {}
    for name, table in tables.items():
        rows = moved[name]
        given = np.asarray(rows.cpu() if isinstance(rows, Tensor) else rows)
        # A mask read as ids would save rows 0 and 1 only.
        if given.dtype == bool:
            given = np.flatnonzero(given)
        elif not (given[1:] > given[:-1]).all():
            given = np.unique(given)
        if given.size and (given.dtype.kind not in "iu" or given[0] < 0 or given[-1] >= len(table)):
            raise CheckpointError(f"moved[{name!r}] must hold row ids from 0 to {len(table) - 1}.")
        ids[name] = torch.from_numpy(given.astype(np.int64))
    return ids


def _pieces(rows: int, size: int) -> Iterator[slice]:
    step = max(1, CHUNK // max(1, size))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


@dataclass(frozen=True)
class Source:
    """A tensor to be written, or some of its rows, which are gathered only while they are written."""

    tensor: Tensor
    rows: Tensor | None = None

    @property
    def shape(self) -> list[int]:
        return list(self.tensor.shape) if self.rows is None else [len(self.rows), *self.tensor.shape[1:]]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.tensor.element_size()

    def pieces(self) -> Iterator[Tensor]:
        tensor = self.tensor if self.tensor.dim() else self.tensor.reshape(1)
        count = len(tensor) if self.rows is None else len(self.rows)
        for piece in _pieces(count, _row_size(tensor)) if self.nbytes else ():
            if self.rows is None:
                yield tensor[piece]
            else:
                yield tensor.index_select(0, self.rows[piece].to(tensor.device))


class TensorFile:
    """A safetensors file to be written piece by piece: at most one piece of a table is copied at a time.

    The library's own `save_file` copies nothing either, but it renames on its own, reports a full disk as
    something else than an OSError, refuses tensors that share memory and moves whole tables off a GPU.
    """

    def __init__(self, sources: Mapping[str, Source]) -> None:
        # Widest first, as the library does it, so that every tensor is aligned.
        order = sorted(sources, key=lambda name: (-sources[name].tensor.element_size(), name))
        self._sources = [sources[name] for name in order]
        header, offset = {}, 0
        for name, source in zip(order, self._sources, strict=True):
            start, offset = offset, offset + source.nbytes
            header[name] = {
                "dtype": _NAMES[source.tensor.dtype],
                "shape": source.shape,
                "data_offsets": [start, offset],
            }
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._head = len(text).to_bytes(8, "little") + text
        self.size = len(self._head) + offset

    def write(self, file: Sink) -> None:
        file.write(self._head)
        for source in self._sources:
            for piece in source.pieces():
                file.write(piece.cpu().contiguous().flatten().view(torch.uint8).numpy())


def check_targets(slices: Mapping[str, Any], into: Mapping[str, Tensor], folder: Path) -> None:
    for name, target in into.items():
        seen = (target.dtype, list(target.shape))
        saved = (_DTYPES[slices[name].get_dtype()], slices[name].get_shape()) if name in slices else None
        if saved is None:
            raise CheckpointError(f"{folder} has no table {name}; it holds {', '.join(sorted(slices)) or 'none'}.")
        if seen != saved:
            raise CheckpointError(
                f"Table {name} is {seen[0]} {seen[1]}, the checkpoint in {folder} has {saved[0]} {saved[1]}; "
                "it belongs to another model."
            )


def filled(source: Any, target: Tensor | None) -> Tensor:
    """A saved table in memory of its own, or in `target`, read piece by piece."""
    if target is None:
        target = torch.empty(source.get_shape(), dtype=_DTYPES[source.get_dtype()])
    if target.numel():
        for piece in _pieces(len(target), _row_size(target)):
            target[piece].copy_(source[piece])
    return target


def refill_rows(table: Tensor, rows: Tensor, source: Any) -> None:
    """Replace some rows of a table by saved ones, read piece by piece."""
    if table.numel():
        for piece in _pieces(len(rows), _row_size(table)):
            put_rows(table, rows[piece].to(table.device), source[piece].to(table.device))


def names(file: Any, prefix: str) -> list[str]:
    keys = file.keys()
    return [key.removeprefix(prefix) for key in keys if key.startswith(prefix)]
