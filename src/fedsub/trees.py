"""A model as named tensors, and copies of, writes to and sums into some rows of its tables."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Protocol

import torch
from torch import Tensor

from fedsub.errors import ObjectiveError

Tree = dict[str, Tensor]  # names as in module.named_parameters()


class RowSource(Protocol):
    """A table that is not at hand as one tensor: its rows are asked for by number."""

    @property
    def shape(self) -> torch.Size: ...  # of the whole table
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...

    def take(self, rows: Tensor) -> Tensor:
        """A copy of some rows, in their order; a row may occur more than once."""
        ...


Model = Mapping[str, Tensor | RowSource]  # a tree of which some tables are not at hand


def rows_of(table: Tensor | RowSource, rows: Tensor) -> Tensor:
    """A copy of some rows of a table, wherever they are."""
    return take_rows(table, rows) if isinstance(table, Tensor) else table.take(rows)


def whole(model: Model, what: str) -> Tree:
    """The model, if all of it is at hand; ``what`` is that which needs it so."""
    for name, value in model.items():
        if not isinstance(value, Tensor):
            raise ObjectiveError(
                f"{what} needs all {value.shape[0]:,} rows of {name!r}, which are not at hand as one tensor; ask for "
                "some of them (take), or use a table that is not lazy."
            )
    return {name: value for name, value in model.items() if isinstance(value, Tensor)}


def take_rows(table: Tensor, rows: Tensor) -> Tensor:
    """A copy of some rows of a table."""
    if table.ndim == 2 and table.shape[1] == 1:  # torch handles a vector in a tight loop, rows one call each
        return table.view(-1).index_select(0, rows).view(-1, 1)
    return table.index_select(0, rows)


def put_rows(table: Tensor, rows: Tensor, values: Tensor) -> None:
    """Replace some rows of a table."""
    rows = rows.long()
    if table.numel() == len(table):  # as in take_rows
        table.view(-1).scatter_(0, rows, values.reshape(-1))
    else:
        table.index_copy_(0, rows, values)


def add_rows(table: Tensor, rows: Tensor, values: Tensor) -> None:
    """Add values to some rows of a table, in order; a row may occur more than once."""
    if table.ndim == 2 and table.shape[1] == 1:
        table, values = table.view(-1), values.reshape(-1)
        if rows.dtype == torch.int64:  # the same sums in the same order, in half the time
            table.scatter_add_(0, rows, values)
            return
    table.index_add_(0, rows, values)


def digest_of(tree: Tree, size: int = 32) -> bytes:
    """So many bytes that name the values, to the last bit."""
    digest = blake2b(digest_size=size)
    for name, value in sorted(tree.items()):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype} ".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.digest()


def over_holders(total: Tensor, held: Tensor) -> Tensor:
    """The mean of each row over those who hold it, in place: a row's sum by what its holders weigh together.

    A row that nobody holds, or whose only holders were left out (weight 0), has the sum 0 and keeps it.
    """
    held = held.masked_fill(held == 0, 1.0)
    return total.div_(held.to(total.dtype).reshape(-1, *[1] * (total.ndim - 1)))
