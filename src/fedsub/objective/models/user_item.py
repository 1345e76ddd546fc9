"""Logistic regression on who and what: the baseline that a recommender has to beat."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fedsub.data.clients import Clients
from fedsub.objective.losses import Batch
from fedsub.objective.models.columns import Roles, other_ids, usual_loss
from fedsub.objective.models.own import WithOwn, own_parts
from fedsub.objective.objective import Objective

COLUMNS = {"user": ("user",), "item": ("item",)}


class UserItem(WithOwn):
    """The logit is b + u[user] + v[item], all zero at the start; without users b + v[item].

    `fedsub.objective.models.own` has what is added to it for every client alone.
    """

    def __init__(self, items: int, users: int | None, *, bias: bool = True, item: str = "item", user: str = "user"):
        super().__init__()
        self.columns = {"items": item} | ({} if users is None else {"users": user})
        self.items = nn.Embedding(items, 1)
        self.users = None if users is None else nn.Embedding(users, 1)
        self.bias = nn.Parameter(torch.zeros(())) if bias else None
        for weight in self.parameters():
            nn.init.zeros_(weight)
        self.own = None

    def forward(self, batch: Batch) -> Tensor:
        total = self.items(batch[self.columns["items"]]).squeeze(-1)
        if self.users is not None:
            total = total + self.users(batch[self.columns["users"]]).squeeze(-1)
        return self.plus_own(total if self.bias is None else total + self.bias, batch)


def user_item(
    clients: Clients, label: str, *, bias: bool = True, own_bias: bool = False, taste: int = 0,
    loss: str | None = None, columns: Mapping[str, str] | None = None,
) -> Objective:  # fmt: skip
    """The objective of kind "user-item"; other columns are left out, and so is the user if there is none.

    With an own bias there is no table of users: a client is its own user.
    """
    roles = Roles(clients, "user-item", COLUMNS, columns)
    item = roles.ids("item", lists=False)
    user = roles.ids("user", lists=False) if roles.find("user") and not own_bias else None
    users = None if user is None else clients.size(user)
    module = UserItem(clients.size(item), users, bias=bias, item=item, user=user or "user")
    _, vectors, own = own_parts(clients, "user-item", own_bias, taste, {"item": item})
    module.add_own(clients, own_bias, taste, item)
    tables = {"items.weight": item} | ({} if user is None else {"users.weight": user}) | vectors
    found = usual_loss(clients, label, "user-item", loss)
    return Objective(module, found, tables, unused=other_ids(clients, tables), own=own)
