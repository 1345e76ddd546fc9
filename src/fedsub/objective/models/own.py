"""What a client of a built-in model has for itself: a bias, and a vector of tastes.

    logit = … + own.bias + vectors[item] · own.taste

``own.*`` are meant to be personal parameters (`fedsub.method.parts.Personal`): every client keeps its own, which never
leave it. ``vectors`` is a shared table like any other. All begin at zero but the vectors: a client's taste is learned
from them, and they from tastes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fedsub.checks import check_flag, check_whole
from fedsub.data.clients import Clients
from fedsub.errors import ConfigError
from fedsub.objective.losses import Batch
from fedsub.objective.models.columns import Roles

OWN = "own.*"  # the parameters that are a client's own
ITEMS = {"item": ("item", "movie")}
SPREAD = 0.1  # of the vectors at first


class Own(nn.Module):
    """A client's own bias and taste."""

    def __init__(self, bias: bool, taste: int):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(())) if bias else None
        self.taste = nn.Parameter(torch.zeros(taste)) if taste else None


class WithOwn(nn.Module):
    """A model whose logit may have a client's own parts."""

    def add_own(self, clients: Clients, bias: bool, taste: int, item: str | None) -> None:
        """Make the parameters; ``item`` is the column that finds the vector."""
        self.own = Own(bias, taste) if bias or taste else None
        self.taste_column = item
        self.vectors = nn.Embedding(clients.size(item), taste) if taste and item is not None else None
        if self.vectors is not None:
            nn.init.normal_(self.vectors.weight, std=SPREAD)

    def plus_own(self, logit: Tensor, batch: Batch) -> Tensor:
        """The logit with the client's own parts."""
        if self.own is None:
            return logit
        if self.own.bias is not None:
            logit = logit + self.own.bias
        if self.vectors is not None and self.taste_column is not None:
            logit = logit + self.vectors(batch[self.taste_column]) @ self.own.taste
        return logit


def own_parts(
    clients: Clients, kind: str, bias: bool, taste: int, columns: Mapping[str, str] | None
) -> tuple[str | None, dict[str, str], tuple[str, ...]]:
    """(column of items, tables, patterns of own parameters) of a model with these settings, which are checked."""
    check_flag("own_bias", bias, error=ConfigError)
    check_whole("taste", taste, 0, error=ConfigError)
    own = (OWN,) if bias or taste else ()
    if not taste:
        if columns and kind in ("lr", "embedding"):
            raise ConfigError(f"columns of the model {kind!r} say which column tastes are of; give taste, or leave it.")
        return None, {}, own
    ids = [c.name for c in clients.columns.values() if c.space is not None]
    roles = Roles(clients, kind, ITEMS, {k: v for k, v in (columns or {}).items() if k == "item"})
    item = ids[0] if len(ids) == 1 and not columns else roles.ids("item", lists=False)
    return item, {"vectors.weight": item}, own
