"""Clients written block by block, for data that does not fit in memory.

    writer = ClientsWriter(folder, spaces, "label")
    for block in blocks:
        writer.add(ids, offsets, columns)        # some clients with all their samples; ids as rows of the full tables
    writer.finish()

gives the very directory that `Clients.save` writes of all blocks together (`fedsub.data.store`). The
arrays grow on disk; memory holds one block. `whole_directory` around it keeps half a save from view.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedsub.data.clients import Array, Column, Space
from fedsub.data.intact import entry
from fedsub.data.renumber import renumber
from fedsub.data.store import describe, digest, write_manifest
from fedsub.errors import DataError

NOTHING = np.empty(0, np.int64)
CHUNK = 1 << 24  # bytes read at a time for the fingerprint


@dataclass(frozen=True)
class Numbered:
    """Some clients with all their samples, ids numbered by each client's own rows."""

    client_ids: Array
    offsets: Array
    columns: list[Column]
    rows: list[tuple[Array, Array]]  # (row_offsets, rows) of every space

    @classmethod
    def of(cls, spaces: Sequence[Space], client_ids: Array, offsets: Array, columns: Sequence[Column]) -> Numbered:
        done, rows = {c.name: c for c in columns}, []
        for space in spaces:
            row_offsets, held, local = renumber(
                offsets, [done[name] for name in space.columns], space.size, padding=space.padding
            )
            done.update((c.name, c) for c in local)
            rows.append((row_offsets, held))
        return cls(client_ids, offsets, list(done.values()), rows)


class ClientsWriter:
    """One saved directory that grows by blocks of clients. ``spaces`` say size, padding, columns and vocabulary."""

    def __init__(self, folder: Path, spaces: Sequence[Space], label: str | None, *, exist_ok: bool = False) -> None:
        folder.mkdir(exist_ok=exist_ok)
        self.folder, self.spaces, self.label = folder, tuple(spaces), label
        self.columns: dict[str, Column] = {}  # without their values; the width is the longest so far
        self.clients = self.samples = 0
        self._arrays: dict[str, _GrowingArray] = {}

    def add(self, client_ids: Array, offsets: Array, columns: Sequence[Column]) -> None:
        """More clients, each with all of its samples; every block has the same columns in the same order."""
        if len(client_ids):
            self.append(Numbered.of(self.spaces, client_ids, offsets, columns))

    def append(self, block: Numbered) -> None:
        """More clients, whose ids are numbered already (`Numbered.of`)."""
        self.clients, self.samples = self.clients + len(block.client_ids), self.samples + int(block.offsets[-1])
        self._array("client_ids").append(block.client_ids)
        self._array("offsets").append_cuts(block.offsets)
        for i, column in enumerate(block.columns):
            before = self.columns.get(column.name)
            width = column.width if before is None else max(before.width, column.width)
            self.columns[column.name] = replace(column, values=column.values[:0], starts=None, width=width)
            self._array(f"column{i}").append(column.values)
            if column.starts is not None:
                self._array(f"column{i}.starts").append_cuts(column.starts)
        for i, (row_offsets, held) in enumerate(block.rows):
            self._array(f"space{i}.row_offsets").append_cuts(row_offsets)
            self._array(f"space{i}.rows").append(held)

    def state(self) -> dict[str, Any]:
        """What was written until now, which is then on the disk; `resumed` goes on from there."""
        return {
            "clients": self.clients,
            "samples": self.samples,
            "columns": [describe(None, [c], [])["columns"][0] for c in self.columns.values()],
            "arrays": {name: array.state() for name, array in self._arrays.items()},
        }

    @classmethod
    def resumed(
        cls, folder: Path, spaces: Sequence[Space], label: str | None, state: Mapping[str, Any]
    ) -> ClientsWriter:
        """A writer as it was when it told its `state`; what was written later is cut off."""
        writer = cls(folder, spaces, label, exist_ok=True)
        writer.clients, writer.samples = state["clients"], state["samples"]
        for c in state["columns"]:
            classes, feature = tuple(c.get("classes", ())), c.get("feature", True)
            column = Column(c["name"], NOTHING, c["space"], None, c["width"], classes, feature)
            writer.columns[c["name"]] = column
        for name, said in state["arrays"].items():
            writer._arrays[name] = _GrowingArray(folder / f"{name}.npy", said)
        return writer

    def finish(
        self, widths: Mapping[str, int] | None = None, *, vocabularies: Mapping[str, Iterable[Array]] | None = None,
        made: Mapping[str, Any] | None = None,
    ) -> str:  # fmt: skip
        """Write what depends on the whole, and return its fingerprint; ``widths`` of lists, if not the longest.

        ``vocabularies`` of spaces come in pieces if they are not in ``spaces``; ``made`` is for the manifest.
        """
        if not self.clients:
            raise DataError(f"{self.folder.name} would hold no client; there is nothing to save.")
        for i, space in enumerate(self.spaces):
            given = [space.vocabulary] if space.vocabulary is not None else (vocabularies or {}).get(space.name, ())
            for piece in given:
                self._array(f"space{i}.vocabulary").append(piece)
        columns = [replace(c, width=(widths or {}).get(c.name, c.width)) for c in self.columns.values()]
        names = ["client_ids", "offsets"]
        names += [f"column{i}{part}" for i in range(len(columns)) for part in ("", ".starts")]
        names += [f"space{i}.{p}" for i in range(len(self.spaces)) for p in ("row_offsets", "rows", "vocabulary")]
        arrays = {name: self._arrays[name] for name in names if name in self._arrays}  # the order of a save
        files = {name: array.close() for name, array in arrays.items()}
        about = describe(self.label, columns, self.spaces)
        mark = digest(about, ((n, a.dtype.str, a.shape, a.content()) for n, a in arrays.items()))
        said = {} if made is None else {"made": dict(made)}
        write_manifest(self.folder, mark, self.clients, self.samples, about | said, files)
        return mark

    def discard(self) -> None:
        """Let go of the files, after a failure; to remove them is the caller's."""
        for array in self._arrays.values():
            array.file.close()

    def _array(self, name: str) -> _GrowingArray:
        if name not in self._arrays:
            self._arrays[name] = _GrowingArray(self.folder / f"{name}.npy")
        return self._arrays[name]


class _GrowingArray:
    """A ``.npy`` file that is appended to. Its header says how long it is, so it is written again at the end."""

    def __init__(self, path: Path, state: Mapping[str, Any] | None = None) -> None:
        self.path, self.file = path, open(path, "wb" if state is None else "r+b")  # noqa: SIM115 - open until `close`
        self.dtype, self.tail, self.length = np.dtype(np.int64), (), 0
        self.begin = self.end = 0  # where the entries begin in the file; the last entry of a list of cuts
        if state is not None:
            self.dtype, self.tail = np.dtype(state["dtype"]), tuple(state["tail"])
            self.length, self.begin, self.end = state["length"], state["begin"], state["end"]
            if path.stat().st_size < self._bytes():
                raise ValueError(f"{path.name} is shorter than it was")
            self.file.seek(self._bytes())
            self.file.truncate()

    def state(self) -> dict[str, Any]:
        """What `__init__` goes on from, once it is on the disk."""
        self.file.flush()
        os.fsync(self.file.fileno())
        said = {"dtype": self.dtype.str, "tail": list(self.tail), "length": self.length}
        return said | {"begin": self.begin, "end": self.end}

    def _bytes(self) -> int:
        return self.begin + self.length * self.dtype.itemsize * int(np.prod(self.tail, dtype=np.int64))

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.length, *self.tail)

    def append(self, values: Array) -> None:
        if not self.begin:
            self.dtype, self.tail = values.dtype, values.shape[1:]
            self._header()
        self.length += len(values)
        self.file.write(np.ascontiguousarray(values, self.dtype).data)

    def append_cuts(self, cuts: Array) -> None:
        """Cuts of a block, which begin at 0, behind those before: [0, 2, 5] and [0, 3] become [0, 2, 5, 8]."""
        cuts = cuts.astype(np.int64, copy=False)
        self.append(cuts + self.end if not self.begin else cuts[1:] + self.end)
        self.end += int(cuts[-1])

    def close(self) -> dict[str, Any]:
        """Finish the file; its entry in the manifest."""
        self.file.seek(0)
        self._header()
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        return entry(self.path, self.dtype, self.shape)

    def content(self) -> Iterator[bytes]:
        """The entries' bytes, read, not mapped: mapped pages would count as memory in use."""
        with open(self.path, "rb") as file:
            file.seek(self.begin)
            while piece := file.read(CHUNK):
                yield piece

    def _header(self) -> None:
        # numpy leaves room for any length, so that the header is as long for every shape.
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": self.shape}
        np.lib.format.write_array_header_1_0(self.file, header)
        self.begin = self.file.tell()
