"""Whether a saved `Clients` directory is what was saved: its parts fit together, its files have not changed, and every
id is one that its client holds.

Without that damage would not show: other data would be trained on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from fedsub.checks import is_whole
from fedsub.data.clients import Array, Clients, Column, Space

BLOCK = 1 << 22  # bytes read at a time: read, not mapped, as mapped pages would count as memory in use
RACY = 2e9  # ns: a file as young as this may change again without a change of its time

_known: dict[str, tuple] = {}  # folder -> how its files were when they were looked over in this process


def entry(path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> dict[str, Any]:
    """What the manifest says of a file."""
    return {"dtype": dtype.str, "shape": list(shape), "bytes": path.stat().st_size, "crc32": checksum(path)}


def checksum(path: Path) -> int:
    """CRC-32: against accidents, and as fast as a disk (fingerprints are for identity)."""
    found = 0
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(BLOCK):
            found = crc32(piece, found)
    return found


def looked_over(folder: Path, files: Mapping[str, Any]) -> bool:
    """Whether this process has found these very files intact before (`remember`)."""
    return _known.get(str(folder.resolve())) == _state(folder, files)


def remember(folder: Path, files: Mapping[str, Any]) -> None:
    """They are intact; not noted if they have just been written."""
    state = _state(folder, files)
    if time.time_ns() - max(max(times) for _, _, *times in state) > RACY:
        _known[str(folder.resolve())] = state


def _state(folder: Path, files: Mapping[str, Any]) -> tuple:
    seen = (os.stat(folder / name) for name in ("manifest.json", *(f"{name}.npy" for name in files)))
    return tuple((s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in seen)


def fault_of_files(folder: Path, files: Mapping[str, Any]) -> str:
    """Which file is not what was written, or ""; of those whose checksum is known."""
    for name, about in files.items():
        if "crc32" in about and checksum(folder / f"{name}.npy") != about["crc32"]:
            return f"{name}.npy was changed since it was written: its content does not match its checksum"
    return ""


def fault_of_ids(clients: Clients) -> str:
    """Which id is out of bounds, or ""."""
    for space in clients.spaces.values():
        if fault := _rows_fault(space):
            return fault
        for name in space.columns:
            column = clients.columns[name]
            cuts = clients.offsets if column.starts is None else column.starts[clients.offsets]
            for client, most, least in _extremes(column.values, cuts):
                bad = (least < 0) | (most >= space.counts[client])
                if bad.any():
                    return f"column {name!r} has an id that is none of the rows of its client {client[bad][0]:,}"
    return ""


def _rows_fault(space: Space) -> str:
    cuts, name = space.row_offsets, f"space {space.name!r}"
    for client, most, least in _extremes(space.rows, cuts):
        bad = (least < 0) | (most >= space.size)
        if bad.any():
            return f"client {client[bad][0]:,} holds a row of {name} that is not one of its {space.size:,}"
    begins = np.zeros(len(space.rows) + 1, bool)
    begins[cuts] = True
    step = BLOCK // 8
    for begin in range(0, len(space.rows) - 1, step):
        rows = stretch(space.rows, begin, min(begin + step + 1, len(space.rows)))
        falls = (rows[1:] <= rows[:-1]) & ~begins[begin + 1 : begin + len(rows)]
        if falls.any():
            return f"the rows of {name} fall within a client, expected them to rise"
    if space.padding and not (space.counts.all() and (space.rows[cuts[:-1]] == 0).all()):
        return f"a client lacks row 0 of {name}, which is its padding"
    return ""


def _extremes(values: Array, cuts: Array) -> Iterator[tuple[Array, Array, Array]]:
    """(clients, their largest entry, their smallest) for those that have entries, in blocks."""
    step = max(1, BLOCK // max(1, values[:1].nbytes))
    who = np.flatnonzero(cuts[1:] > cuts[:-1])
    ends = cuts[who + 1]
    place = 0
    while place < len(who):
        begin = int(cuts[who[place]])
        last = int(np.searchsorted(ends, begin + step, side="right"))
        if last <= place:  # a client with more than a block of its own
            for start in range(begin, int(ends[place]), step):
                block = stretch(values, start, min(start + step, int(ends[place])))
                yield who[place : place + 1], block.max(keepdims=True).ravel(), block.min(keepdims=True).ravel()
            place += 1
            continue
        some = who[place:last]
        block = stretch(values, begin, int(ends[last - 1])).reshape(int(ends[last - 1]) - begin, -1)
        at = cuts[some] - begin
        yield some, np.maximum.reduceat(block, at).max(axis=1), np.minimum.reduceat(block, at).min(axis=1)
        place = last


def stretch(array: Array, begin: int, end: int) -> Array:
    """Some entries; of a mapped file they are read, not mapped."""
    if not isinstance(array, np.memmap) or array.filename is None or not array.flags.c_contiguous:
        return array[begin:end]
    size = array[:1].size
    where = array.offset + begin * size * array.itemsize
    found = np.fromfile(array.filename, array.dtype, (end - begin) * size, offset=where)
    return found.reshape(end - begin, *array.shape[1:])


def fault_of_parts(clients: Clients, manifest: Mapping[str, Any]) -> str:
    """What makes the parts not fit together, or ""."""
    if len(clients.columns) < len(manifest["columns"]) or len(clients.spaces) < len(manifest["spaces"]):
        return "the manifest names a column or a space twice"
    if not isinstance(clients.fingerprint, str):
        return f"the fingerprint is {clients.fingerprint!r}, expected text"
    if clients.label is not None and clients.label not in clients.columns:
        return f"the label {clients.label!r} is not a column"
    if clients.client_ids.ndim != 1 or clients.client_ids.dtype.kind not in "iuU":
        return f"client_ids holds {clients.client_ids.dtype}, expected integers or strings"
    samples = int(clients.offsets[-1])
    if fault := _cut_fault("offsets", clients.offsets, len(clients.client_ids), samples):
        return fault
    faults = [_column_fault(c, clients, samples) for c in clients.columns.values()]
    faults += [_space_fault(s, clients) for s in clients.spaces.values()]
    return next(filter(None, faults), "")


def _column_fault(column: Column, clients: Clients, samples: int) -> str:
    name, values = f"column {column.name!r}", column.values
    if not isinstance(column.name, str) or not _positive(column.width):
        return f"{name} has width {column.width!r}, expected a name and a whole number, 1 or more"
    if values.ndim not in (1, 2) or values.dtype.kind not in ("iuf" if column.space is None else "iu"):
        return f"{name} holds {values.dtype} in {values.ndim} dimensions, expected numbers (integers for ids)"
    if values.ndim == 2 and (column.ragged or values.shape[1] != column.width):
        return f"{name} has shape {values.shape}, which does not fit its width {column.width}"
    if column.space is not None:
        space = clients.spaces.get(column.space)
        if space is None or column.name not in space.columns:
            return f"{name} is not in the space {column.space!r} that it names"
    if column.starts is not None:
        return _cut_fault(f"the starts of {name}", column.starts, samples, len(values))
    if len(values) != samples:
        return f"{name} has {len(values):,} entries, expected {samples:,}, one per sample"
    return ""


def _space_fault(space: Space, clients: Clients) -> str:
    name = f"space {space.name!r}"
    if not isinstance(space.name, str) or not _positive(space.size) or not isinstance(space.padding, bool):
        return f"{name} has size {space.size!r} and padding {space.padding!r}, expected 1 or more, and true or false"
    for column in space.columns:
        if column not in clients.columns or clients.columns[column].space != space.name:
            return f"{name} names {column!r}, which is not a column of it"
    if space.rows.ndim != 1 or space.rows.dtype.kind not in "iu":
        return f"the rows of {name} are {space.rows.dtype}, expected integers"
    if space.vocabulary is not None and not (space.vocabulary.ndim == 1 and len(space.vocabulary) <= space.size):
        return f"the vocabulary of {name} has shape {space.vocabulary.shape}, expected up to {space.size:,} entries"
    return _cut_fault(f"the row_offsets of {name}", space.row_offsets, len(clients.client_ids), len(space.rows))


def _cut_fault(name: str, cuts: Array, parts: int, length: int) -> str:
    if cuts.ndim != 1 or cuts.dtype.kind != "i" or len(cuts) != parts + 1:
        return f"{name} has shape {cuts.shape} of {cuts.dtype}, expected {parts + 1:,} integers"
    if cuts[0] != 0 or cuts[-1] != length:
        return f"{name} runs from {cuts[0]} to {cuts[-1]}, expected 0 to {length}"
    return f"{name} falls somewhere, expected it to rise" if (cuts[1:] < cuts[:-1]).any() else ""


def _positive(number: Any) -> bool:
    return is_whole(number) and 1 <= number <= 1 << 62
