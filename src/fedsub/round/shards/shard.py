"""One shard: a `Keeper` of its own rows, in a process of its own. It is told and asked in plain arrays."""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

from fedsub.disk.checkpoint import Checkpoints, Snapshot
from fedsub.disk.files import write_atomic
from fedsub.disk.inshards import read
from fedsub.disk.tensorfile import Source, TensorFile
from fedsub.method.part import Part, Total
from fedsub.method.slots import BoundAverage, Server
from fedsub.round.keeper import Keeper
from fedsub.round.messages import MODEL
from fedsub.trees import Tree, take_rows

MOVED = "moved:"
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Piece:
    """What a shard begins with. Arrays are by table, of its own rows alone."""

    parts: Sequence[Part]
    rule: Server
    average: BoundAverage
    params: Arrays
    tables: dict[str, str]


@dataclass(frozen=True)
class Summed:
    """A `Total` of a shard's rows."""

    values: Arrays
    rows: Arrays
    held: Arrays
    weight: float
    count: int
    numbers: dict[str, float]
    share: float

    def total(self) -> Total:
        return Total(
            own(self.values), own(self.rows), own(self.held), self.weight, self.count, self.numbers, self.share
        )  # fmt: skip


def own(arrays: Arrays) -> Tree:
    """Tensors in memory of their own: what comes with a message must not be written to."""
    return {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}


def plain(tree: Tree) -> Arrays:
    return {name: value.numpy() for name, value in tree.items()}


class Shard:
    """What may be said to a shard. Row numbers are its own."""

    def __init__(self, piece: Piece):
        torch.set_num_threads(1)
        self.keeper = Keeper(piece.parts, piece.rule, lambda: piece.average, own(piece.params), piece.tables)
        self.saved: Checkpoints | None = None

    def do(self, what: str, *args: Any) -> Any:
        """One door, so that all that is said goes one after the other."""
        with torch.no_grad():
            return getattr(self, what)(*args)

    # Told: these change it.

    def open(self, rows: Arrays, time: int) -> None:
        self.keeper.open(own(rows), time)

    def close(self, sums: dict[str, Summed], plainly: Collection[str], number: int, time: int) -> None:
        self.keeper.close({tree: one.total() for tree, one in sums.items()}, plainly, number, time)

    def catch_up(self, time: int) -> None:
        self.keeper.catch_up(time)

    def settle(self, time: int) -> None:
        self.keeper.settle(time)

    def put(self, values: Arrays) -> None:
        """Take back what was saved."""
        for name, there in self._all().items():
            if name in values:
                there.copy_(torch.from_numpy(np.array(values[name])))

    def track(self, on: bool) -> None:
        self.keeper.tracking = on

    def moved(self) -> Arrays:
        """Which rows moved since this was last asked, by table."""
        return {name: moved.take() for name, moved in self.keeper.moved.items()}

    def load(self, path: str) -> None:
        """Go on as `dump` left it."""
        with safe_open(path, framework="numpy") as file:
            self.put({name: file.get_tensor(name) for name in file.keys() if not name.startswith(MOVED)})  # noqa: SIM118
            for name, moved in self.keeper.moved.items():
                moved.add(torch.from_numpy(file.get_tensor(f"{MOVED}{name}")))

    def restore(self, folder: str, number: int, seal: str) -> None:
        """Go on as `save` left it."""
        piece, own = read(Path(folder), number, seal), self.keeper.params
        for name, value in {**piece.tensors, **piece.tables}.items():
            (own[name] if name in own else self.keeper.kept()[name][0]).copy_(value)

    # Asked: these leave it as it is.

    def show(self, rows: Arrays) -> dict[str, Arrays]:
        """What clients may be sent: of every tree the rows of each table."""
        at = {name: torch.from_numpy(np.array(ids)) for name, ids in rows.items()}
        return {
            tree: {name: take_rows(values[name], ids).numpy() for name, ids in at.items()}
            for tree, values in self.keeper.trees.items()
        }

    def read(self, table: str, rows: np.ndarray, time: int) -> np.ndarray:
        """Rows of the model as it is evaluated after a round."""
        return self.keeper.read({table: torch.from_numpy(np.array(rows))}, time)[table].numpy()

    def take(self, name: str, rows: np.ndarray | slice) -> np.ndarray:
        """Rows of a parameter ("model/…") or of what is remembered, as they are."""
        value = self._all()[name]
        return value[rows].numpy() if isinstance(rows, slice) else take_rows(value, torch.from_numpy(rows)).numpy()

    def holds(self) -> dict[str, tuple[str | None, torch.dtype, tuple[int, ...]]]:
        """What is remembered besides the parameters: (its table, type, shape) by name."""
        return {name: (table, value.dtype, tuple(value.shape)) for name, (value, table) in self.keeper.kept().items()}

    def dump(self, path: str) -> None:
        """Write all that it is to a file, for `load`."""
        moved = self.moved()
        for name, rows in moved.items():
            self.keeper.moved[name].add(torch.from_numpy(rows))
        ids = {f"{MOVED}{name}": Source(torch.from_numpy(rows)) for name, rows in moved.items()}
        write_atomic(Path(path), TensorFile({n: Source(v) for n, v in self._all().items()} | ids).write)

    def save(self, folder: str, number: int) -> tuple[str, str]:
        """Write a checkpoint of its rows into a folder of its own in that one; returns its name, and the seal."""
        if self.saved is None:
            self.saved = Checkpoints(Path(folder) / f"{number:08d}-{secrets.token_hex(8)}")
        kept, moved = self.keeper.kept(), self.moved()
        tables = dict(self.keeper.params) | {name: value for name, (value, table) in kept.items() if table is not None}
        ids = moved | {name: moved[table] for name, (_, table) in kept.items() if table is not None}
        small = {name: value for name, (value, table) in kept.items() if table is None}
        self.saved.save(snapshot := Snapshot(number, small, tables), ids)
        return self.saved.folder.name, snapshot.seal

    def process(self) -> int:
        return os.getpid()

    def _all(self) -> Tree:
        model = {f"{MODEL}/{name}": value for name, value in self.keeper.params.items()}
        return model | {name: value for name, (value, _) in self.keeper.kept().items()}
