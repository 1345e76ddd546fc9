"""Embeddings of all id columns, and a small network."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fedsub.data.clients import Clients
from fedsub.objective.losses import Batch
from fedsub.objective.models.columns import key, plain_columns, side_by_side, space_tables, usual_loss, width
from fedsub.objective.models.own import WithOwn, own_parts
from fedsub.objective.objective import Objective


class EmbeddingModel(WithOwn):
    """An embedding per id (mean over lists), all side by side, then a small network to one logit."""

    def __init__(
        self, clients: Clients, *, dim: int = 16, hidden: int = 32, values: tuple[str, ...] = (),
        own_bias: bool = False, taste: int = 0, item: str | None = None,
    ):  # fmt: skip
        super().__init__()
        self.columns = {c: s.name for s in clients.spaces.values() for c in s.columns}
        self.padded = {s.name for s in clients.spaces.values() if s.padding}
        self.tables = nn.ModuleDict({key(s): nn.Embedding(clients.size(s), dim) for s in clients.spaces})
        for table in self.tables.parameters():
            nn.init.normal_(table, std=0.1)
        self.value_names = values
        total = dim * len(self.columns) + sum(width(clients, v) for v in values)
        self.net = nn.Sequential(nn.Linear(total, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        self.add_own(clients, own_bias, taste, item)

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
            parts.append(side_by_side(batch, self.value_names))
        return self.plus_own(self.net(torch.cat(parts, -1)).squeeze(-1), batch)


def embedding(
    clients: Clients, label: str, *, dim: int = 16, hidden: int = 32, own_bias: bool = False, taste: int = 0,
    loss: str | None = None, columns: Mapping[str, str] | None = None,
) -> Objective:  # fmt: skip
    """The objective of kind "embedding"; plain value columns are features."""
    item, vectors, own = own_parts(clients, "embedding", own_bias, taste, columns)
    module = EmbeddingModel(
        clients, dim=dim, hidden=hidden, values=plain_columns(clients), own_bias=own_bias, taste=taste, item=item
    )
    return Objective(
        module, usual_loss(clients, label, "embedding", loss), space_tables(clients, "tables") | vectors, own=own
    )
