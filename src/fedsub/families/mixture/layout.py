"""How the personal models of all clients lie in memory: the layout of what clients keep (`fedsub.round.memory`).

tables   [Σ|S(i)|, d], client after client        dense   [n, …]
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedsub.data.heat import row_heat
from fedsub.objective.problem import Problem
from fedsub.trees import Tree, add_rows, over_holders, take_rows


class Layout:
    """Operations across clients on trees of this layout."""

    def __init__(self, problem: Problem, params: Tree):
        self.problem, self.params = problem, params
        self.n = len(problem.clients)

    @cached_property
    def rows(self) -> dict[str, Tensor]:
        """The global row of every row of a space, int64 [Σ|S(i)|]."""
        return {s.name: torch.from_numpy(s.rows.astype(np.int64)) for s in self.problem.spaces.values()}

    @cached_property
    def _holders(self) -> dict[str, Tensor]:
        return {s.name: torch.from_numpy(row_heat(s)) for s in self.problem.spaces.values()}

    def everybody(self, shared: Tree) -> Tree:
        """A copy of the shared model for every client."""
        out: Tree = {}
        for name in self.problem.names:
            space = self.problem.tables.get(name)
            if space is not None:
                out[name] = take_rows(shared[name], self.rows[space.name])
            else:
                out[name] = shared[name].expand(self.n, *shared[name].shape).clone()
        return out

    def shared(self, x: Tree, into: Tree) -> None:
        """The mean of the clients' models; a row's is over those that hold it. Rows that nobody holds stay."""
        for name in self.problem.names:
            space = self.problem.tables.get(name)
            if space is None:
                into[name].copy_(x[name].mean(0))
                continue
            rows, heat = self.rows[space.name], self._holders[space.name]
            total = torch.zeros_like(into[name])
            add_rows(total, rows, x[name])
            over_holders(total, heat)
            into[name].copy_(torch.where(self._held[space.name].view(-1, *[1] * (total.ndim - 1)), total, into[name]))

    @cached_property
    def _held(self) -> dict[str, Tensor]:
        return {s.name: torch.from_numpy(row_heat(s) > 0) for s in self.problem.spaces.values()}

    def mean(self, x: Tree) -> Tree:
        """x̄, laid out like x."""
        shared = {name: torch.zeros_like(self.params[name]) for name in self.problem.names}
        self.shared(x, shared)
        return self.everybody(shared)

    def dot(self, x: Tree, y: Tree) -> np.ndarray:
        """Inner products by client, float64 [n]."""
        out = np.zeros(self.n)
        for name, leaf in x.items():
            product = leaf.to(torch.float64, copy=True).mul_(y[name]).reshape(len(leaf), -1).sum(1).numpy()
            space = self.problem.tables.get(name)
            out += product if space is None else _by_client(product, space.row_offsets)
        return out

    def spread(self, values: np.ndarray) -> Tree:
        """One number per client in the shape that multiplies the leaves."""
        out: Tree = {}
        for name, like in self.params.items():
            if name not in self.problem.names:
                continue
            space = self.problem.tables.get(name)
            own = values if space is None else np.repeat(values, space.counts)
            out[name] = (
                torch.from_numpy(np.asarray(own))
                .to(like.dtype)
                .view(-1, *[1] * (like.ndim if space is None else like.ndim - 1))
            )
        return out


def _by_client(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Sums of stretches; empty ones are 0."""
    some = np.flatnonzero(np.diff(offsets))  # reduceat knows no empty stretch
    out = np.zeros(len(offsets) - 1)
    if len(some):
        out[some] = np.add.reduceat(values, offsets[some])
    return out
