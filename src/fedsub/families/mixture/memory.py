"""The last gradient of every term of every client, J_i[:, l].

A batch has a gradient only in the table rows that it names, and those are known beforehand. So of tables only these
are stored: as many numbers as the data have ids at most. With an l2 term a gradient has all rows of the client, and
all are stored. Dense parameters take one copy for every term.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedsub.data.renumber import concatenated, distinct
from fedsub.errors import MethodError
from fedsub.families.mixture.functions import Rows
from fedsub.trees import Tree, put_rows, take_rows

if TYPE_CHECKING:
    from fedsub.families.mixture.modules import ModuleFunctions

LARGEST = 16 << 30  # bytes


class TermMemory:
    """`fedsub.families.mixture.functions.Memory` for modules."""

    def __init__(self, functions: ModuleFunctions):
        self.functions = functions
        problem, terms = functions.problem, functions.terms
        self._first = np.cumsum(terms) - terms  # number of each client's first term
        self._rows: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # space -> offsets by term, rows of the layout
        for space in problem.spaces.values():
            self._rows[space.name] = self._all_rows(space.name) if functions.l2 else self._named_rows(space.name)
        shapes = {}
        for name in problem.names:
            like, space = functions.params[name], problem.tables.get(name)
            rows = int(terms.sum()) if space is None else len(self._rows[space.name][1])
            shapes[name] = (rows, *(like.shape if space is None else like.shape[1:]))
        size = sum(int(np.prod(shape)) * functions.params[name].element_size() for name, shape in shapes.items())
        if size > LARGEST:
            raise MethodError(
                f"The gradients of all {int(terms.sum()):,} terms take {size / 2**30:.0f} GiB. Larger batches make "
                "fewer terms (batch_size), without l2 only rows that a batch names are stored, L2SGD2 stores none."
            )
        self.stored: Tree = {n: torch.zeros(shape, dtype=functions.params[n].dtype) for n, shape in shapes.items()}

    def _all_rows(self, space: str) -> tuple[np.ndarray, np.ndarray]:
        held, terms = self.functions.problem.spaces[space], self.functions.terms
        counts = np.repeat(held.counts, terms)
        rows = concatenated(np.repeat(held.row_offsets[:-1], terms), counts)
        return np.concatenate([[0], np.cumsum(counts)]), rows

    def _named_rows(self, space: str) -> tuple[np.ndarray, np.ndarray]:
        """The distinct rows that the samples of each term name."""
        functions, clients = self.functions, self.functions.problem.clients
        held = functions.problem.spaces[space]
        samples = np.arange(clients.samples)
        owners = clients.clients_of(samples)
        term = self._first[owners] + (samples - clients.offsets[owners]) // functions.batch
        size = len(held.rows)
        keys = []
        for column in (c for c in held.columns if c in functions.plan.columns):
            ids = clients.gather(samples, [column], local=True, owners=owners)[column].reshape(len(samples), -1)
            keys.append(distinct(((term * size + held.row_offsets[owners])[:, None] + ids).reshape(-1)))
        found = distinct(np.concatenate(keys)) if keys else np.zeros(0, np.int64)
        offsets = np.searchsorted(found, np.arange(int(functions.terms.sum()) + 1) * size)
        return offsets, found % size

    @property
    def tensors(self) -> Tree:
        return self.stored

    @property
    def mean(self) -> Tree:
        functions = self.functions
        out: Tree = {}
        shares = functions.spread(1 / functions.terms)
        for name, stored in self.stored.items():
            space = functions.problem.tables.get(name)
            if space is None:
                owners = torch.from_numpy(np.repeat(np.arange(functions.clients), functions.terms))
                total = stored.new_zeros((functions.clients, *stored.shape[1:])).index_add_(0, owners, stored)
            else:
                total = stored.new_zeros((len(space.rows), *stored.shape[1:]))
                total.index_add_(0, torch.from_numpy(self._rows[space.name][1]), stored)
            out[name] = total.mul_(shares[name])
        return out

    def swap(self, which: np.ndarray, gradient: Tree) -> dict[str, Tensor | Rows]:
        out: dict[str, Tensor | Rows] = {}
        terms = self._first + which
        places: dict[str, tuple[Tensor, Tensor]] = {}
        for name, value in gradient.items():
            space = self.functions.problem.tables.get(name)
            if space is None:
                at = torch.from_numpy(terms)
                before = self.stored[name].index_select(0, at)
                self.stored[name].index_copy_(0, at, value)
                out[name] = value.sub_(before)
                continue
            if space.name not in places:
                offsets, rows = self._rows[space.name]
                stored = concatenated(offsets[terms], offsets[terms + 1] - offsets[terms])
                places[space.name] = torch.from_numpy(stored), torch.from_numpy(rows[stored])
            stored_at, row = places[space.name]
            before = take_rows(self.stored[name], stored_at)
            now = take_rows(value, row)
            put_rows(self.stored[name], stored_at, now)
            out[name] = Rows(row, now.sub_(before))
        return out
