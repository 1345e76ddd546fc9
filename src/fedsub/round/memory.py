"""What clients keep between rounds: control variates, residuals, personal values.

One store for all of it. A slot of a table holds one entry per row of every S(i), client after client, in the
order of the data (`Space.rows`); a slot of a dense parameter holds one entry per client. So the state of a
client has the layout of its submodel, and nothing is stored for rows that it does not hold. A client that
never took part has zeros, which cost neither memory nor disk as long as nobody writes them.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedsub import rng
from fedsub.data.clients import Space
from fedsub.data.renumber import concatenated
from fedsub.method.part import Part, Start
from fedsub.objective.lazy import Drawn
from fedsub.objective.problem import Problem
from fedsub.round.remembered import Moved
from fedsub.trees import Model, RowSource, Tree, rows_of, take_rows

MAPPED_FROM = 1 << 30  # bytes from which a slot lives in a file instead of in memory
FILLED = 1 << 16  # entries that are given their first values at once

Origin = Callable[[str, np.ndarray], Start]  # (parameter, clients) -> what their first values are made from


def origin_in(problem: Problem, params: Model, seed: int) -> Origin:
    """The first values of clients whose shared model is at hand, as in a simulation."""

    def origin(name: str, clients: np.ndarray) -> Start:
        shared, space = params[name], problem.tables.get(name)
        words = first_words(seed, name, clients)
        mean, spread = moments(shared)
        if space is None:
            assert isinstance(shared, Tensor)
            return Start(shared.expand(len(clients), *shared.shape), np.ones_like(clients), words, mean, spread)
        counts = space.counts[clients]
        rows = space.rows[concatenated(space.row_offsets[clients], counts)].astype(np.int64)
        values = rows_of(shared, torch.from_numpy(rows).to(shared.device))
        return Start(values, counts, words, mean, spread, padded=space.padding)

    return origin


def first_words(seed: int, name: str, clients: np.ndarray) -> np.ndarray:
    """A random word of each client's own for the first values of a parameter."""
    return rng.key(rng.key(seed, rng.PERSONAL, *name.encode()).view(np.int64), clients)


def moments(values: Tensor | RowSource) -> tuple[float, float]:
    """Mean and standard deviation of all values of a parameter, of a lazy table those of its initialiser."""
    if not isinstance(values, Tensor):
        assert isinstance(values, Drawn)
        return values.init.moments
    return float(values.mean()), float(values.double().std()) if values.numel() > 1 else 0.0


class Memory(Protocol):
    """What clients keep between rounds: all of them in a simulation, one on its own disk."""

    def read(self, slot: str, clients: np.ndarray) -> Tree: ...
    def write(self, slot: str, clients: np.ndarray, values: Tree, *, note: bool = True) -> None: ...


class ClientState:
    """Slots of all clients. ``tensors`` are named "slot/parameter" and go into checkpoints by moved rows."""

    def __init__(
        self,
        problem: Problem,
        params: Tree,
        slots: Sequence[str] | Mapping[str, Sequence[str]],
        *,
        folder: Path | None = None,
    ):
        """``slots`` names them, or says for which parameters each is kept."""
        named = slots if isinstance(slots, Mapping) else dict.fromkeys(slots, problem.names)
        self.problem, self.folder = problem, folder
        self.slots: dict[str, tuple[str, ...]] = {slot: tuple(names) for slot, names in named.items()}
        self.device = next(iter(params.values())).device
        self.tensors: Tree = {}
        for slot, names in self.slots.items():
            for name in names:
                self.tensors[f"{slot}/{name}"] = self._zeros(name, params[name])
        self.moved = {key: Moved(len(stored)) for key, stored in self.tensors.items()}

    @classmethod
    def of(cls, parts: Sequence[Part], problem: Problem, params: Tree, folder: Path | None = None) -> ClientState:
        """The slots of a method's parts, zero."""
        slots = {f"{p.key}.{slot}": p.kept_names(slot, problem.names) for p in parts for slot in p.client_slots}
        return cls(problem, params, slots, folder=folder)

    def fill(self, parts: Sequence[Part], origin: Origin) -> None:
        """Before the first round: what parts want clients to begin with."""
        for part in parts:
            for slot in part.client_slots:
                for name in part.kept_names(slot, self.problem.names):
                    self._fill(part, slot, name, origin)

    def _fill(self, part: Part, slot: str, name: str, origin: Origin) -> None:
        stored, space = self.tensors[f"{part.key}.{slot}/{name}"], self.problem.tables.get(name)
        count = len(self.problem.clients)
        edges = space.row_offsets if space is not None else np.arange(count + 1)
        low = 0
        while low < count:  # not the whole arena at once: it may be a file
            high = max(low + 1, int(np.searchsorted(edges, edges[low] + FILLED, side="right")) - 1)
            values = part.first(slot, name, origin(name, np.arange(low, high)))
            if values is None:
                return
            stored[int(edges[low]) : int(edges[high])] = values.to(stored.device)
            low = high

    def _zeros(self, name: str, like: Tensor) -> Tensor:
        if name in self.problem.tables:
            shape = (len(self.problem.tables[name].rows), *like.shape[1:])
        else:
            shape = (len(self.problem.clients), *like.shape)
        size = math.prod(shape) * like.dtype.itemsize
        if size < MAPPED_FROM:
            return torch.zeros(shape, dtype=like.dtype, device=self.device)
        # A file full of holes, already unlinked: it takes the space of what is written and vanishes with the process.
        with tempfile.TemporaryFile(dir=_existing(self.folder)) as file:
            file.truncate(size)
            mapped = np.memmap(file, np.uint8, "r+", shape=(size,))
        return torch.from_numpy(mapped).view(like.dtype).reshape(shape)

    def read(self, slot: str, clients: np.ndarray) -> Tree:
        """A slot of some clients, stacked: their rows one behind the other, dense [c, …]."""
        out: Tree = {}
        for name in self.slots[slot]:
            stored, space = self.tensors[f"{slot}/{name}"], self.problem.tables.get(name)
            if space is not None and _by_runs(stored):
                values = stored.numpy()
                out[name] = torch.from_numpy(np.concatenate([values[run] for run in _runs(space, clients)]))
            else:
                out[name] = take_rows(stored, self._places(space, clients).to(stored.device))
            out[name] = out[name].to(self.device)
        return out

    def write(self, slot: str, clients: np.ndarray, values: Tree, *, note: bool = True) -> None:
        """Store what `read` would give back. Parameters missing from ``values`` keep what they have.

        ``note`` remembers what moved, for the next checkpoint.
        """
        for name, value in values.items():
            key = f"{slot}/{name}"
            stored, space = self.tensors[key], self.problem.tables.get(name)
            value = value.to(stored.device)
            if space is not None and _by_runs(stored):
                target, source, begin = stored.numpy(), value.numpy(), 0
                for run in _runs(space, clients):
                    end = begin + run.stop - run.start
                    target[run], begin = source[begin:end], end
            else:
                stored.index_copy_(0, self._places(space, clients).to(stored.device), value)
            if note:
                self.moved[key].add(self._places(space, clients))

    def _places(self, space: Space | None, clients: np.ndarray) -> Tensor:
        """Where the entries of some clients lie, int64."""
        if space is None:
            return torch.from_numpy(clients)
        return torch.from_numpy(concatenated(space.row_offsets[clients], space.counts[clients]))


def _by_runs(stored: Tensor) -> bool:
    """A client's rows lie together: copying runs is several times as fast as gathering rows, where numpy can."""
    return stored.device.type == "cpu" and stored.dtype != torch.bfloat16


def _runs(space: Space, clients: np.ndarray) -> list[slice]:
    """Where the rows of some clients lie; those of clients who follow each other are one run."""
    first = np.flatnonzero(np.diff(clients, prepend=-2) != 1)
    last = np.append(first[1:], len(clients))[: len(first)] - 1
    begins, ends = space.row_offsets[clients[first]], space.row_offsets[clients[last] + 1]
    return [slice(a, b) for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]


def _existing(folder: Path | None) -> Path | None:
    """The folder, or the nearest one above it that is there already."""
    while folder is not None and not folder.is_dir():
        folder = folder.parent if folder != folder.parent else None
    return folder
