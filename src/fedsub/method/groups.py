"""Clients of a round: who takes part, and those whose local work is done together."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedsub import rng


@dataclass(frozen=True)
class Cohort:
    """Who takes part in a round, in a fixed order. A client drawn twice has repeats 0 and 1."""

    clients: np.ndarray  # int64 [K]
    repeats: np.ndarray  # int64 [K]

    @classmethod
    def of(cls, clients: np.ndarray, *, may_repeat: bool = False) -> Cohort:
        repeats = np.zeros(len(clients), np.int64)
        if may_repeat:
            seen: dict[int, int] = {}
            for k, c in enumerate(clients.tolist()):
                repeats[k] = seen.get(c, 0)
                seen[c] = seen.get(c, 0) + 1
        return cls(clients, repeats)

    def __len__(self) -> int:
        return len(self.clients)

    def words(self, *parts: int) -> np.ndarray:
        """One random word per client: a function of ``parts`` and the client, not of who else takes part."""
        words = rng.key(*parts, self.clients)
        again = self.repeats > 0
        if again.any():
            words[again] = rng.key(words[again].view(np.int64), self.repeats[again])
        return words

    def take(self, which: np.ndarray | slice) -> Cohort:
        return Cohort(self.clients[which], self.repeats[which])


@dataclass(frozen=True)
class Stretches:
    """The rows of each client in a table of many, for numpy: it is several times as fast on short arrays as torch."""

    lengths: np.ndarray  # int64 [c]
    starts: np.ndarray  # int64 [c]
    filled: bool  # whether every client has rows: np.add.reduceat knows no empty stretch

    def of(self, k: int) -> slice:
        """The rows of client k."""
        start = self.starts[k]
        return slice(start, start + self.lengths[k])


@dataclass(frozen=True)
class Group:
    """Clients whose local work is done by the same tensor operations.

    A serial engine works on one client (``stacked`` False): tables are [|S(i)|, d] and dense parameters
    have their own shape. A batched engine stacks c clients: their rows lie one behind the other in one
    table [Σ|S(i)|, d], dense parameters are [c, …]. Elementwise code serves both; what differs by client
    goes through `spread`, and what reduces over one client's values through `total`.
    """

    count: int
    stacked: bool
    counts: dict[str, Tensor] = field(default_factory=dict)  # table -> rows of each client, int64 [c]
    _owners: dict[str, Tensor] = field(default_factory=dict, repr=False)
    _stretches: dict[str, Stretches] = field(default_factory=dict, repr=False)

    def owners(self, name: str) -> Tensor:
        """The position in the group of each row's client, [rows]; made when first asked for."""
        if name not in self._owners:
            counts = self.counts[name]
            self._owners[name] = torch.repeat_interleave(torch.arange(self.count, device=counts.device), counts)
        return self._owners[name]

    def spread(self, values: Tensor, name: str, like: Tensor) -> Tensor:
        """One number per client, [c], shaped to multiply the parameter ``name``."""
        if not self.stacked:
            return values[0]
        if name in self.counts:
            stretches = self.stretches
            if stretches is None:
                values = values.index_select(0, self.owners(name))
            else:
                values = torch.from_numpy(np.repeat(values.numpy(), stretches[name].lengths))
        return values.reshape(-1, *[1] * (like.ndim - 1))

    @property
    def stretches(self) -> dict[str, Stretches] | None:
        """Where each client's rows of every table lie, for numpy; None where it cannot be used."""
        if torch.compiler.is_compiling():
            return None
        if not self._stretches:
            if not self.stacked or any(counts.device.type != "cpu" for counts in self.counts.values()):
                return None
            for name, counts in self.counts.items():
                lengths = counts.numpy()
                self._stretches[name] = Stretches(lengths, np.cumsum(lengths) - lengths, bool(lengths.all()))
        return self._stretches

    def total(self, name: str, values: Tensor) -> Tensor:
        """Sum of one client's values of a parameter, per client, [c]."""
        if not self.stacked:
            return values.sum().reshape(1)
        if name in self.counts:
            flat = values.reshape(len(values), -1)
            flat = flat.reshape(-1) if flat.shape[1] == 1 else flat.sum(1)
            stretches = self.stretches
            if stretches is not None and stretches[name].filled:
                return torch.from_numpy(np.add.reduceat(flat.numpy(), stretches[name].starts))
            return torch.zeros(self.count, dtype=flat.dtype, device=flat.device).index_add_(0, self.owners(name), flat)
        return values.reshape(self.count, -1).sum(1)
