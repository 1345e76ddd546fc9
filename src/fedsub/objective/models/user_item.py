"""Logistic regression on who and what: the baseline that a recommender has to beat."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fedsub.data.clients import Clients
from fedsub.objective.losses import Batch, Binary
from fedsub.objective.models.columns import Roles, other_ids
from fedsub.objective.objective import Objective

COLUMNS = {"user": ("user",), "item": ("item",)}


class UserItem(nn.Module):
    """The logit is b + u[user] + v[item], all zero at the start; without users b + v[item]."""

    def __init__(self, items: int, users: int | None, *, bias: bool = True, item: str = "item", user: str = "user"):
        super().__init__()
        self.columns = {"items": item} | ({} if users is None else {"users": user})
        self.items = nn.Embedding(items, 1)
        self.users = None if users is None else nn.Embedding(users, 1)
        self.bias = nn.Parameter(torch.zeros(())) if bias else None
        for weight in self.parameters():
            nn.init.zeros_(weight)

    def forward(self, batch: Batch) -> Tensor:
        total = self.items(batch[self.columns["items"]]).squeeze(-1)
        if self.users is not None:
            total = total + self.users(batch[self.columns["users"]]).squeeze(-1)
        return total if self.bias is None else total + self.bias


def user_item(
    clients: Clients, label: str, *, bias: bool = True, columns: Mapping[str, str] | None = None
) -> Objective:
    """The objective of kind "user-item"; other columns are left out, and so is the user if there is none."""
    roles = Roles(clients, "user-item", COLUMNS, columns)
    item = roles.ids("item", lists=False)
    user = roles.ids("user", lists=False) if roles.find("user") else None
    users = None if user is None else clients.size(user)
    module = UserItem(clients.size(item), users, bias=bias, item=item, user=user or "user")
    tables = {"items.weight": item} | ({} if user is None else {"users.weight": user})
    return Objective(module, Binary(label), tables, unused=other_ids(clients, tables))
