"""What a run remembers besides the model, as a checkpoint keeps it: one form for every family of methods."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from fedsub.errors import CheckpointError
from fedsub.trees import Tree


class Moved:
    """Which of ``size`` rows moved since they were last asked for. Memory is bounded, however many rounds pass.

    Rows are listed, at eight bytes each, as long as that takes less than to mark them, a byte for every row there is.
    """

    def __init__(self, size: int):
        self.size, self._listed, self._count = size, [], 0
        self._marked: np.ndarray | None = None

    def add(self, rows: Tensor) -> None:
        if self._marked is not None:
            self._marked[rows.cpu().numpy()] = True
            return
        self._listed.append(rows)
        self._count += len(rows)
        if 8 * self._count > self.size:
            self._marked, listed = np.zeros(self.size, bool), self._listed
            self._listed = []
            for some in listed:
                self.add(some)

    def grow(self, size: int) -> None:
        """There are more rows now."""
        if self._marked is not None:
            self._marked = np.concatenate([self._marked, np.zeros(size - self.size, bool)])
        self.size = size

    def take(self) -> np.ndarray:
        """The distinct rows, sorted; and begin again."""
        if self._marked is not None:
            found = np.flatnonzero(self._marked)
        else:
            rows = [r.cpu().numpy().astype(np.int64) for r in self._listed]
            found = np.unique(np.concatenate(rows)) if rows else np.zeros(0, np.int64)
        self._marked, self._listed, self._count = None, [], 0
        return found


class Remembered:
    """Named tensors that are changed in place: small ones, saved whole, and tables, saved by the rows that moved.

    ``moved`` says of every table, the model's own too, which rows those are; tables that share their rows share one
    `Moved`. With ``all_rows`` every save is a full one. ``tracking`` is switched off where nobody will ask.
    """

    def __init__(self, small: Tree, tables: Tree, moved: Mapping[str, Moved], *, all_rows: bool = False):
        self._small, self._tables, self._moved, self.all_rows = small, tables, moved, all_rows
        self.tracking = True

    def small(self) -> Tree:
        return dict(self._small)

    def tables(self) -> Tree:
        return dict(self._tables)

    def note(self, name: str, rows: Tensor) -> None:
        """These rows of a table have moved."""
        if self.tracking:
            self._moved[name].add(rows)

    def take_moved(self) -> dict[str, np.ndarray] | None:
        """The rows of every saved table that moved since the last call; None: possibly all."""
        if self.all_rows:
            return None
        once = {id(moved): moved for moved in self._moved.values()}  # `take` begins anew: ask each only once
        taken = {key: moved.take() for key, moved in once.items()}
        return {name: taken[id(moved)] for name, moved in self._moved.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back what `small` and `tables` gave to a checkpoint."""
        for name, value in {**self._small, **self.tables()}.items():
            if name not in tensors or tensors[name].shape != value.shape:
                raise CheckpointError(
                    f"The checkpoint has no {name} of the shape {tuple(value.shape)}, which the method keeps; it "
                    "belongs to another method or version. Start the run again in another directory."
                )
            value.copy_(tensors[name])
