"""Clients' matrices, stacked for work on many clients at once.

Client p has X_p ∈ R^{M×N_p}, of which it may have seen a part only. Clients of about the same size form a
stack of padded arrays; padding has weight 0, so it changes no sum.

    x        [c, s, n]   s rows (all M, or those that the client holds), n columns
    weight   [c, s]      how often a row counts: 1, 0 for padding, 2 if a user rated an item twice (x is the mean)
    seen     [c, s, n]   1 where an entry is known; None: the whole row is, where weight > 0
    rows     [c, s]      global row of each place; None: places are rows
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsub.errors import DataError

CELLS = 1 << 22  # numbers in a stack of data at most, so that many clients do not need memory all at once


@dataclass(frozen=True)
class Stack:
    clients: Tensor  # int64 [c], positions among all clients
    x: Tensor
    weight: Tensor
    columns: Tensor  # N_p, [c]
    seen: Tensor | None = None
    rows: Tensor | None = None
    constant: Tensor | None = None  # [c] what remains of ‖X_p − WH_p‖² even at the best W: several ratings of one item

    def __len__(self) -> int:
        return len(self.clients)

    def take(self, which: Tensor) -> Stack:
        """Some of its clients."""
        picked = {
            name: None if (value := getattr(self, name)) is None else value.index_select(0, which)
            for name in ("clients", "x", "weight", "columns", "seen", "rows", "constant")
        }
        return replace(self, **picked)

    def local(self, w: Tensor) -> Tensor:
        """Every client's own copy of the shared factor, [c, s, k]."""
        if self.rows is None:
            return w.expand(len(self), *w.shape).clone()
        return w.index_select(0, self.rows.reshape(-1)).view(*self.rows.shape, -1)

    def add(self, total: Tensor, values: Tensor) -> None:
        """Add clients' values [c, s, …] to the rows of ``total``, in order. Padding must be 0."""
        if self.rows is None:
            total += values.sum(0)
        else:
            total.index_add_(0, self.rows.reshape(-1), values.reshape(-1, *values.shape[2:]))

    @property
    def per_row(self) -> Tensor:
        """Entries seen of each row, [c, s]."""
        return self.weight * (self.columns[:, None] if self.seen is None else self.seen.sum(2))

    @property
    def per_column(self) -> Tensor:
        """Entries seen of each column, [c, n]; 0 for padding."""
        if self.seen is not None:
            return torch.einsum("csn,cs->cn", self.seen, self.weight)
        real = torch.arange(self.x.shape[2], device=self.x.device) < self.columns[:, None]
        return self.weight.sum(1, keepdim=True) * real


@dataclass(frozen=True)
class Data:
    """All clients' data: stacks, M, and N_p of every client."""

    stacks: tuple[Stack, ...]
    rows: int
    columns: np.ndarray  # N_p, int64 [P]; 0: the client has nothing and is left out

    @property
    def shares(self) -> np.ndarray:
        """ω_p = N_p / N."""
        return self.columns / self.columns.sum()

    @property
    def width(self) -> int:
        """The largest N_p."""
        return int(self.columns.max())

    def holders(self) -> Tensor:
        """Ω_i = Σ ω_p over the clients that hold row i, [M]: the heat of a row, as a share."""
        like = self.stacks[0].x
        total = torch.zeros(self.rows, dtype=torch.float64, device=like.device)
        shares = torch.from_numpy(self.shares).to(like.device)
        for stack in self.stacks:
            stack.add(total, (stack.weight > 0) * shares[stack.clients][:, None])
        return total


def from_blocks(
    blocks: Sequence[Any], masks: Sequence[Any] | None = None, *, dtype: torch.dtype = torch.float64
) -> Data:
    """From dense matrices [M, N_p], one per client; ``masks`` of the same shapes say which entries are known.

    A client without columns, or without a known entry, is left out. A column without one counts for nothing.
    """
    arrays = [np.asarray(block, float) for block in blocks]
    known = None if masks is None else [np.asarray(mask, bool) for mask in masks]
    rows = _check_blocks(arrays, known)
    if known is not None:  # unknown entries may hold anything
        arrays = [np.where(mask, block, 0.0) for block, mask in zip(arrays, known, strict=True)]
    for p, block in enumerate(arrays):
        if not np.isfinite(block).all():
            raise DataError(f"Block {p} holds NaN or infinity; leave such entries out with masks=.")
    columns = np.array([block.shape[1] for block in arrays] if known is None else [mask.any(0).sum() for mask in known])
    if not columns.sum():
        raise DataError("No client has a known entry; give at least one block with data.")
    stacks = []
    for group in _groups(np.array([block.shape[1] for block in arrays]), columns > 0, rows):
        width = max(arrays[p].shape[1] for p in group)
        x, seen = np.zeros((len(group), rows, width)), np.zeros((len(group), rows, width))
        for place, p in enumerate(group):
            x[place, :, : arrays[p].shape[1]] = arrays[p]
            if known is not None:
                seen[place, :, : arrays[p].shape[1]] = known[p]
        stacks.append(
            Stack(
                torch.from_numpy(group),
                torch.from_numpy(x).to(dtype),
                torch.ones(len(group), rows, dtype=dtype),
                torch.from_numpy(columns[group]).to(dtype),
                None if known is None else torch.from_numpy(seen).to(dtype),
            )
        )
    return Data(tuple(stacks), rows, columns)


def from_ratings(
    user: Any, item: Any, value: Any, *, users: int, items: int, dtype: torch.dtype = torch.float64
) -> Data:
    """From ratings as flat arrays: client p is a user with one column, of which the rated items are known."""
    user, item, value = np.asarray(user), np.asarray(item), np.asarray(value, float)
    if not (user.ndim == item.ndim == value.ndim == 1 and len(user) == len(item) == len(value)):
        raise DataError(
            f"user, item and value must be 1-D and equally long, got {user.shape}, {item.shape}, {value.shape}."
        )
    if not len(user):
        raise DataError("There is no rating; give at least one.")
    for name, ids, count in (("user", user, users), ("item", item, items)):
        if not np.issubdtype(ids.dtype, np.integer) or ids.min() < 0 or ids.max() >= count:
            raise DataError(f"{name} must hold whole numbers from 0 to {count - 1}; number the {name}s first.")
    if not np.isfinite(value).all():
        bad = int(np.flatnonzero(~np.isfinite(value))[0])
        raise DataError(f"The rating of item {item[bad]} by user {user[bad]} is {value[bad]}; leave such ratings out.")
    pairs, place, counts = np.unique(user.astype(np.int64) * items + item, return_inverse=True, return_counts=True)
    mean = np.bincount(place, value) / counts
    rest = np.bincount(user, (value - mean[place]) ** 2, users)
    return _ragged(pairs // items, pairs % items, mean, counts, rest, items, users, dtype)


def _ragged(user, item, value, counts, rest, items: int, users: int, dtype: torch.dtype) -> Data:
    """One column per user; users with about as many rows share a stack. Arrays are sorted by user."""
    held = np.bincount(user, minlength=users)
    starts = np.cumsum(held) - held
    stacks = []
    for group in _groups(held, held > 0, 1):
        size = int(held[group].max())
        places = starts[group][:, None] + np.arange(size)
        real = np.arange(size) < held[group][:, None]
        places = np.where(real, places, starts[group][:, None])  # padding repeats a row of the client's own
        stacks.append(
            Stack(
                torch.from_numpy(group),
                torch.from_numpy(np.where(real, value[places], 0.0)[:, :, None]).to(dtype),
                torch.from_numpy(np.where(real, counts[places], 0)).to(dtype),
                torch.ones(len(group), dtype=dtype),
                rows=torch.from_numpy(item[places]),
                constant=torch.from_numpy(rest[group]).to(dtype),
            )
        )
    return Data(tuple(stacks), items, (held > 0).astype(np.int64))


def _groups(sizes: np.ndarray, wanted: np.ndarray, cells: int) -> Iterable[np.ndarray]:
    """Clients with about as many entries, in groups whose padded arrays stay small."""
    order = np.argsort(sizes, kind="stable")
    order = order[wanted[order]]
    classes = np.ceil(2 * np.log2(np.maximum(sizes[order], 1))).astype(int)  # at most √2 times the smallest
    for group in np.split(order, np.flatnonzero(np.diff(classes)) + 1):
        limit = max(1, CELLS // (int(sizes[group].max()) * cells))
        for low in range(0, len(group), limit):
            yield np.sort(group[low : low + limit])


def _check_blocks(arrays: list[np.ndarray], known: list[np.ndarray] | None) -> int:
    if not arrays:
        raise DataError("There is no block; give one matrix [M, N_p] per client.")
    for p, block in enumerate(arrays):
        if block.ndim != 2 or block.shape[0] != arrays[0].shape[0] or not block.shape[0]:
            raise DataError(
                f"Block {p} has the shape {block.shape}; expected matrices [M, N_p] with as many rows as the first."
            )
    if known is not None and [m.shape for m in known] != [b.shape for b in arrays]:
        raise DataError("masks must have the shapes of the blocks, one for each.")
    return arrays[0].shape[0]
