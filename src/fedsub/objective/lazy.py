"""Tables that are too large to be kept: a row takes memory from the round on in which a client first asks for it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsub.checks import check_whole
from fedsub.errors import ObjectiveError
from fedsub.objective.directory import Directory
from fedsub.objective.inits import Init, Normal
from fedsub.trees import Tree

DENSE = 1 << 31  # values of a table that may be written out as a whole


@dataclass(frozen=True)
class Drawn:
    """A table as it is before training: rows are made when they are asked for (a `fedsub.trees.RowSource`)."""

    shape: torch.Size
    dtype: torch.dtype
    init: Init

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def take(self, rows: Tensor) -> Tensor:
        values = self.init.values(rows.cpu().numpy(), math.prod(self.shape[1:]))
        return torch.from_numpy(values).to(self.dtype).reshape(len(rows), *self.shape[1:])

    def dense(self, what: str = "A table") -> Tensor:
        """All rows, if they are not too many."""
        if math.prod(self.shape) > DENSE:
            raise ObjectiveError(
                f"{what} of {self.shape[0]:,} rows would take {math.prod(self.shape) * self.dtype.itemsize / 1e9:,.0f} "
                "GB as a whole; take some of its rows."
            )
        out = torch.empty(self.shape, dtype=self.dtype)
        step = max(1, (1 << 20) // max(1, math.prod(self.shape[1:])))
        for low in range(0, len(out), step):
            out[low : low + step] = self.take(torch.arange(low, min(low + step, len(out))))
        return out


class Lazy(nn.Module):
    """A lookup in a table of ``rows`` × ``dim`` of which memory holds only what training touched.

        self.items = fs.Lazy(1_000_000_000, 16, init=fs.inits.Normal(0.01))

    Ids [...] give vectors [..., dim], as `torch.nn.Embedding` does. The module itself has no rows: where it is asked
    outside of training, `dense` or `fedsub.predict` gives them.
    """

    def __init__(self, rows: int, dim: int, *, init: Init | None = None, dtype: torch.dtype = torch.float32):
        super().__init__()
        check_whole("rows of Lazy", rows, 1, error=ObjectiveError)
        check_whole("dim of Lazy", dim, 1, error=ObjectiveError)
        if init is not None and not isinstance(init, Init):
            raise ObjectiveError(f"init of Lazy is {init!r}, expected one of fedsub.inits, such as Normal(0.01).")
        self.rows, self.dim, self.init = rows, dim, init or Normal()
        self.weight = nn.Parameter(torch.zeros((0, dim), dtype=dtype))

    @property
    def drawn(self) -> Drawn:
        """The table before training."""
        return Drawn(torch.Size((self.rows, self.dim)), self.weight.dtype, self.init)

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight)

    def dense(self) -> nn.Embedding:
        """The same table in memory as a whole, where it is small enough."""
        return nn.Embedding.from_pretrained(self.drawn.dense("Lazy"), freeze=False)

    def extra_repr(self) -> str:
        return f"{self.rows}, {self.dim}, init={self.init}"


@dataclass(frozen=True)
class Touched:
    """A lazy table in training or after it (a `fedsub.trees.RowSource`).

    ``values`` are the rows that were touched, at places that the directory knows; ``drawn`` gives all others.
    """

    drawn: Drawn
    values: Tensor
    directory: Directory

    @property
    def shape(self) -> torch.Size:
        return self.drawn.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.drawn.dtype

    @property
    def device(self) -> torch.device:
        return self.drawn.device

    def numel(self) -> int:
        """Values in memory."""
        return self.values.numel()

    def element_size(self) -> int:
        return self.values.element_size()

    @property
    def rows(self) -> Tensor:
        """The rows that were touched, sorted, int64."""
        return self.directory.rows[: self.directory.count].sort().values

    def take(self, rows: Tensor) -> Tensor:
        place = torch.from_numpy(self.directory.find(rows.numpy()))
        there = place >= 0
        out = torch.empty((len(rows), *self.shape[1:]), dtype=self.dtype)
        out[there] = self.values[place[there]]
        out[~there] = self.drawn.take(rows[~there])
        return out

    def dense(self, what: str = "A table") -> Tensor:
        out, rows = self.drawn.dense(what), self.rows
        out[rows] = self.take(rows)
        return out


def parts_of(name: str, table: Touched) -> Tree:
    """A table as files keep it: its rows that were touched, sorted, and which they are."""
    rows = table.rows
    return {name: table.take(rows), f"rows/{name}": rows}
