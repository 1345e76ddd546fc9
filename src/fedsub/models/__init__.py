"""Small models that are made from the data alone, for when you bring no module of your own."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from fedsub.data.clients import Clients
from fedsub.errors import ConfigError
from fedsub.losses import Batch, Binary
from fedsub.objective import Objective


class LogisticRegression(nn.Module):
    """One weight per id, one per value: the logit is their sum. Starts at zero.

    Columns with several ids (lists, histories) add up the weights of their ids.
    """

    def __init__(self, clients: Clients, *, bias: bool = False, values: tuple[str, ...] = ()):
        super().__init__()
        self.columns = {c: s.name for s in clients.spaces.values() for c in s.columns}
        self.padded = {s.name for s in clients.spaces.values() if s.padding}
        self.weights = nn.ModuleDict({key(s): nn.Embedding(clients.size(s), 1) for s in clients.spaces})
        for weight in self.weights.parameters():
            nn.init.zeros_(weight)
        self.value_names = values
        width = sum(_width(clients, v) for v in values)
        self.slope = nn.Parameter(torch.zeros(width)) if width else None
        self.bias = nn.Parameter(torch.zeros(())) if bias else None

    def forward(self, batch: Batch) -> Tensor:
        total = torch.zeros(())
        for column, space in self.columns.items():
            ids = batch[column]
            weight = self.weights[key(space)](ids).squeeze(-1)
            if space in self.padded:
                weight = weight * (ids != 0)
            total = total + (weight.sum(-1) if ids.ndim > 1 else weight)
        if self.slope is not None:
            total = total + _values(batch, self.value_names) @ self.slope
        return total + self.bias if self.bias is not None else total


class EmbeddingModel(nn.Module):
    """An embedding per id (mean over lists), all side by side, then a small network to one logit."""

    def __init__(self, clients: Clients, *, dim: int = 16, hidden: int = 32, values: tuple[str, ...] = ()):
        super().__init__()
        self.columns = {c: s.name for s in clients.spaces.values() for c in s.columns}
        self.padded = {s.name for s in clients.spaces.values() if s.padding}
        self.tables = nn.ModuleDict({key(s): nn.Embedding(clients.size(s), dim) for s in clients.spaces})
        for table in self.tables.parameters():
            nn.init.normal_(table, std=0.1)
        self.value_names = values
        width = dim * len(self.columns) + sum(_width(clients, v) for v in values)
        self.net = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, batch: Batch) -> Tensor:
        parts = []
        for column, space in self.columns.items():
            ids = batch[column]
            rows = self.tables[key(space)](ids)
            if ids.ndim > 1:
                real = (ids != 0 if space in self.padded else torch.ones_like(ids)).to(rows.dtype).unsqueeze(-1)
                rows = (rows * real).sum(-2) / real.sum(-2).clamp(min=1)
            parts.append(rows)
        if self.value_names:
            parts.append(_values(batch, self.value_names))
        return self.net(torch.cat(parts, -1)).squeeze(-1)


def key(space: str) -> str:
    """A space's name as a module name, no two alike: "item" is "t_item", "movie_id" is "t_movie__id".

    Module names hold no dots, and `nn.ModuleDict` has methods such as ``items`` and ``type`` of its own.
    """
    return "t_" + re.sub(r"[^A-Za-z0-9]", lambda m: "__" if m[0] == "_" else f"_{ord(m[0]):02x}_", space)


def make_objective(clients: Clients, kind: str = "lr", *, seed: int = 0, **options) -> Objective:
    """A ready objective for binary labels: ``kind`` "lr" or "embedding"; plain value columns are features."""
    label = clients.label
    if label is None:
        raise ConfigError("The data has no label column; name one when reading it (label=…, --label).")
    values = tuple(c.name for c in clients.columns.values() if c.space is None and c.name != label)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if kind == "lr":
            module, prefix = LogisticRegression(clients, values=values, **options), "weights"
        elif kind == "embedding":
            module, prefix = EmbeddingModel(clients, values=values, **options), "tables"
        else:
            raise ConfigError(f"There is no built-in model {kind!r}; choose lr or embedding, or bring your own module.")
    tables = {f"{prefix}.{key(name)}.weight": space.columns for name, space in clients.spaces.items()}
    return Objective(module, Binary(label), tables)


def _width(clients: Clients, name: str) -> int:
    values = clients.columns[name].values
    return 1 if values.ndim == 1 else values.shape[1]


def _values(batch: Batch, names: tuple[str, ...]) -> Tensor:
    parts = [batch[n].to(torch.float32) for n in names]
    return torch.cat([p.unsqueeze(-1) if p.ndim == 1 else p for p in parts], -1)
