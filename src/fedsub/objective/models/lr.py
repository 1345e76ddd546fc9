"""Logistic regression on all id and value columns."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fedsub.data.clients import Clients
from fedsub.objective.losses import Batch
from fedsub.objective.models.columns import key, plain_columns, side_by_side, space_tables, usual_loss, width
from fedsub.objective.models.own import WithOwn, own_parts
from fedsub.objective.objective import Objective


class LogisticRegression(WithOwn):
    """One weight per id, one per value: the logit is their sum (+ ``bias`` + a client's own parts). Starts at zero.

    Columns with several ids (lists, histories) add up the weights of their ids.
    """

    def __init__(
        self, clients: Clients, *, bias: bool = False, values: tuple[str, ...] = (), own_bias: bool = False,
        taste: int = 0, item: str | None = None,
    ):  # fmt: skip
        super().__init__()
        self.columns = {c: s.name for s in clients.spaces.values() for c in s.columns}
        self.padded = {s.name for s in clients.spaces.values() if s.padding}
        self.weights = nn.ModuleDict({key(s): nn.Embedding(clients.size(s), 1) for s in clients.spaces})
        for weight in self.weights.parameters():
            nn.init.zeros_(weight)
        self.value_names = values
        total = sum(width(clients, v) for v in values)
        self.slope = nn.Parameter(torch.zeros(total)) if total else None
        self.bias = nn.Parameter(torch.zeros(())) if bias else None
        self.add_own(clients, own_bias, taste, item)

    def forward(self, batch: Batch) -> Tensor:
        total = torch.zeros(())
        for column, space in self.columns.items():
            ids = batch[column]
            weight = self.weights[key(space)](ids).squeeze(-1)
            if space in self.padded:
                weight = weight * (ids != 0)
            total = total + (weight.sum(-1) if ids.ndim > 1 else weight)
        if self.slope is not None:
            total = total + side_by_side(batch, self.value_names) @ self.slope
        return self.plus_own(total + self.bias if self.bias is not None else total, batch)


def lr(
    clients: Clients, label: str, *, bias: bool = False, own_bias: bool = False, taste: int = 0,
    loss: str | None = None, columns: Mapping[str, str] | None = None,
) -> Objective:  # fmt: skip
    """The objective of kind "lr"; plain value columns are features."""
    item, vectors, own = own_parts(clients, "lr", own_bias, taste, columns)
    module = LogisticRegression(
        clients, bias=bias, values=plain_columns(clients), own_bias=own_bias, taste=taste, item=item
    )
    return Objective(
        module, usual_loss(clients, label, "lr", loss), space_tables(clients, "weights") | vectors, own=own
    )
