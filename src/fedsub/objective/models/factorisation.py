"""Matrix factorisation: a shared vector per item, a private one per user."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from fedsub.checks import check_whole
from fedsub.data.clients import Clients
from fedsub.errors import ConfigError, nearest
from fedsub.objective.losses import Batch, Squared
from fedsub.objective.models.columns import Roles, other_ids
from fedsub.objective.objective import Objective

COLUMNS = {"item": ("item", "movie"), "rating": ("rating",)}
OFFSETS = ("user", "mean", "none")


class Factorisation(nn.Module):
    """The rating is w[item] · h + offset.

    ``items`` [M, k] is shared. ``user`` [k], which starts at 0, is meant to be private: methods such as FedMAvg keep
    one for every client. ``offset`` is a parameter, private as well, or (``trained=False``) a constant.
    """

    def __init__(self, items: int, rank: int, *, item: str = "item", offset: float = 0.0, trained: bool = False):
        super().__init__()
        self.item = item
        self.items = nn.Embedding(items, rank)
        nn.init.normal_(self.items.weight, std=0.1)
        self.user = nn.Parameter(torch.zeros(rank))
        if trained:
            self.offset = nn.Parameter(torch.tensor(offset))
        else:
            self.register_buffer("offset", torch.tensor(offset))

    def forward(self, batch: Batch) -> Tensor:
        return self.items(batch[self.item]) @ self.user + self.offset


def factorisation(
    clients: Clients, label: str, *, rank: int = 8, offset: str = "user", columns: Mapping[str, str] | None = None
) -> Objective:
    """The objective of kind "factorisation": squared error of the column ``rating``, or of the label if there is none.

    ``offset``: "user" (every client's own mean, of which new clients get the mean of all ratings), "mean" (of all
    ratings, for everybody) or "none".
    """
    check_whole("rank", rank, 1, error=ConfigError)
    if offset not in OFFSETS:
        raise ConfigError(f"There is no offset {offset!r}; {nearest(str(offset), OFFSETS)}")
    roles = Roles(clients, "factorisation", COLUMNS, columns)
    ids = [c.name for c in clients.columns.values() if c.space is not None]
    item = ids[0] if len(ids) == 1 and "item" not in roles.given else roles.ids("item", lists=False)
    rating = roles.find("rating") or label
    values = np.asarray(clients.column(rating).values, float)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise ConfigError(f"Column {rating!r} must hold one finite number a sample to be factorised.")
    mean = 0.0 if offset == "none" else math.fsum(values) / max(1, len(values))
    module = Factorisation(clients.size(item), rank, item=item, offset=mean, trained=offset == "user")
    tables = {"items.weight": item}
    return Objective(module, Squared(rating), tables, unused=other_ids(clients, tables))
