"""DIN, the Deep Interest Network, as in the released code of FedSubAvg and in a clean version.

Zhou et al., Deep interest network for click-through rate prediction, KDD 2018; the sizes and quirks are those of
Ding et al., Federated submodel optimization for hot and cold data features, NeurIPS 2022. The user's history is
weighed by how well each item of it goes with the one in question:

    q [B, Q]      embedding of the item (‖ of its category)        k [B, T, Q]   those of the history
    attention     concat[q, k, q−k, q∘k] → 80 σ → 40 σ → 1, softmax over T, weighted sum of k
    input         concat[user, q, Σk, q∘Σk, attention]             90 wide, 162 with categories
    network       scale and shift → 200 → Dice → 80 → Dice → 2 logits (the first is the click)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from fedsub.data.clients import Clients
from fedsub.errors import ConfigError, nearest
from fedsub.objective.losses import Batch, HalfCrossEntropy
from fedsub.objective.models.columns import Roles, other_ids
from fedsub.objective.objective import Objective

COLUMNS = {
    "user": ("user",),
    "item": ("item",),
    "history": ("history", "item_history"),
    "category": ("category",),
    "category_history": ("category_history",),
    "history_length": ("history_length",),
}
MASKED = -(2.0**32) + 1
AT_ONCE = 64  # histories of an evaluation: what attention computes for them stays in the cache
Activation = Callable[[Tensor, Tensor], Tensor]


class Dense(nn.Module):
    """x W + b with W [inputs, units], Glorot-uniform, and b = 0 at the start.

    `nn.Linear` keeps Wᵀ, whose gradient comes out transposed; with many clients a tensor that costs a copy a step.
    """

    def __init__(self, inputs: int, units: int):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(inputs, units)), nn.Parameter(torch.zeros(units))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class Dice(nn.Module):
    """p∘x + (1−p)∘α∘x with p = σ((x − mean) / (std + 1e-9)), std² = mean((x − mean)²) + 1e-9.

    Mean and std are those of the batch at hand, also in evaluation: over its real samples only (``share`` [B] is
    1/n for them and 0 for padding). A batch of one has p = ½. α, one per unit, starts at 0.
    """

    def __init__(self, units: int):
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(units))

    def forward(self, x: Tensor, share: Tensor) -> Tensor:
        share = share.unsqueeze(-1)
        centred = x - (x * share).sum(0, keepdim=True)
        variance = (centred * centred * share).sum(0, keepdim=True)
        p = (centred / ((variance + 1e-9).sqrt() + 1e-9)).sigmoid()
        return x * (p + (1 - p) * self.alpha)


class LeakyUnits(nn.Module):
    """max(x, 0) + α∘min(x, 0), one slope α per unit: a PReLU that starts at 0.25, as torch's, or a fixed ReLU."""

    def __init__(self, units: int, *, learned: bool):
        super().__init__()
        self.alpha = nn.Parameter(torch.full((units,), 0.25)) if learned else None

    def forward(self, x: Tensor, share: Tensor) -> Tensor:
        positive = x.relu()
        return positive if self.alpha is None else positive + (x - positive) * self.alpha


ACTIVATIONS: dict[str, Callable[[int], nn.Module]] = {
    "dice": Dice,
    "prelu": lambda units: LeakyUnits(units, learned=True),
    "relu": lambda units: LeakyUnits(units, learned=False),
}


class Attention(nn.Module):
    """Scores [B, T] of a history k [B, T, Q] for an item q [B, Q]: concat[q, k, q−k, q∘k] → 80 σ → 40 σ → 1."""

    def __init__(self, width: int):
        super().__init__()
        self.first, self.second, self.third = Dense(4 * width, 80), Dense(80, 40), Dense(40, 1)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        # The first layer without the concatenation [B, T, 4Q]: with W = [Wq, Wk, Wd, Wp] it is
        # q (Wq + Wd) + k (Wk − Wd + diag(q) Wp), a product of k with one small matrix a sample.
        wq, wk, wd, wp = self.first.weight.chunk(4)
        fixed = q @ (wq + wd) + self.first.bias
        matrix = (wk - wd) + q.unsqueeze(2) * wp
        hidden = (k @ matrix + fixed.unsqueeze(1)).sigmoid()
        return self.third(self.second(hidden).sigmoid()).squeeze(-1)


class ScaleShift(nn.Module):
    """γ·x/√1.001 + β: what the released batch normalisation is, whose moving mean 0 and variance 1 never change."""

    def __init__(self, width: int):
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.gamma * (1 / math.sqrt(1.001))) + self.beta


class DIN(nn.Module):
    """Two logits [B, 2], the first for the click. See the formulas at the top of the file.

    ``faithful``      as released: Σk also counts the padding up to the batch's longest history, and a sample without
                      history attends to padding (embedding row 0). The clean version masks both.
    ``activation``    "dice", "prelu" or "relu". Only Dice lets the samples of a batch affect each other.
    ``max_history``   use the last so many of a history only.

    Tables start Glorot-uniform over their full shape, ±√(6 / (rows + dim)), dense layers likewise with bias 0.
    """

    def __init__(
        self,
        users: int | None,
        items: int,
        categories: int | None = None,
        *,
        dim: int = 18,
        faithful: bool = False,
        activation: str = "dice",
        max_history: int | None = None,
        columns: Mapping[str, str] | None = None,
        padded: bool = True,
    ):
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ConfigError(f"There is no activation {activation!r}; {nearest(str(activation), ACTIVATIONS)}")
        self.faithful, self.max_history, self.padded = faithful, max_history, padded
        self.columns = {role: role for role in COLUMNS if role != "history_length"} | dict(columns or {})
        self.users = None if users is None else nn.Embedding(users, dim)
        self.items = nn.Embedding(items, dim)
        self.categories = None if categories is None else nn.Embedding(categories, dim)
        width = dim if categories is None else 2 * dim
        total = 4 * width + (0 if users is None else dim)
        self.attention, self.scale = Attention(width), ScaleShift(total)
        self.layers = nn.ModuleList([Dense(total, 200), Dense(200, 80)])
        self.activations = nn.ModuleList([ACTIVATIONS[activation](200), ACTIVATIONS[activation](80)])
        self.out = Dense(80, 2)
        for table in (self.users, self.items, self.categories):
            if table is not None:
                nn.init.xavier_uniform_(table.weight)

    def forward(self, batch: Batch) -> Tensor:
        names = self.columns
        history, categories, real = self._history(batch)
        q = self._embed(batch[names["item"]], batch[names["category"]] if self.categories is not None else None)
        k = self._embed(history, categories)
        mask = batch.get("sample_mask")
        mask = torch.ones(len(q), device=q.device) if mask is None else mask
        plain, attended = self._interest(q, k, real, mask)
        parts = [q, plain, q * plain, attended]
        if self.users is not None:
            parts.insert(0, self.users(batch[names["user"]]))
        x = self.scale(torch.cat(parts, -1))
        share = mask / mask.sum().clamp(min=1)
        for layer, activation in zip(self.layers, self.activations, strict=True):
            x = activation(layer(x), share)
        return self.out(x)

    def _history(self, batch: Batch) -> tuple[Tensor, Tensor | None, Tensor]:
        """Ids [B, T] of the items and their categories, and which of them are real."""
        ids = batch[self.columns["history"]]
        others = batch[self.columns["category_history"]] if self.categories is not None else None
        place = torch.arange(ids.shape[1], device=ids.device)
        if "history_length" in self.columns:
            length = batch[self.columns["history_length"]].long()
        elif self.padded:
            length = ((ids != 0) * (place + 1)).amax(1)
        else:
            length = torch.full_like(ids[:, 0], ids.shape[1])
        width = ids.shape[1]
        if not self._one_shape():  # an evaluation may stop at its longest history
            width = max(1, min(width, int(length.max())))
        if self.max_history is not None and self.max_history < width:
            width = self.max_history
            at = (length - width).clamp(min=0).unsqueeze(1) + place[:width]
            ids = ids.gather(1, at)
            others = None if others is None else others.gather(1, at)
            length = length.clamp(max=width)
        else:
            ids = ids[:, :width]
            others = None if others is None else others[:, :width]
        return ids, others, place[:width] < length.unsqueeze(1)

    def _one_shape(self) -> bool:
        """Whether shapes must not depend on values: in training, for engines, and in what is exported."""
        return self.training or torch.compiler.is_exporting()

    def _embed(self, items: Tensor, categories: Tensor | None) -> Tensor:
        if categories is None or self.categories is None:
            return self.items(items)
        return torch.cat([self.items(items), self.categories(categories)], -1)

    def _interest(self, q: Tensor, k: Tensor, real: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The plain and the attended sum of the history, [B, Q] each, from one product with k."""
        weights = self._scores(q, k, real).masked_fill(~real, MASKED).softmax(-1)
        counted = real.to(k.dtype)
        if self.faithful:
            # The released batch is as wide as its longest history; without any, both sums are empty.
            counted = (counted * mask.unsqueeze(1)).amax(0).expand_as(weights)
        weights = weights * (counted[:, :1] if self.faithful else counted)
        both = torch.stack([counted, weights], 1) @ k
        return both[:, 0], both[:, 1]

    def _scores(self, q: Tensor, k: Tensor, real: Tensor) -> Tensor:
        """Attention [B, T]. An evaluation goes through samples of like length together and skips the padding."""
        if self._one_shape():
            return self.attention(q, k)
        length = real.sum(1)
        out = torch.full(real.shape, MASKED, dtype=k.dtype, device=k.device)
        for some in length.argsort().split(AT_ONCE):
            width = max(1, int(length[some[-1]]))
            out[some, :width] = self.attention(q[some], k[some, :width])
        return out


def din(
    clients: Clients,
    label: str,
    *,
    dim: int = 18,
    faithful: bool = False,
    activation: str = "dice",
    max_history: int | None = None,
    columns: Mapping[str, str] | None = None,
) -> Objective:
    """The objective of kind "din": items, with users and categories if the data has them; half cross-entropy.

    Columns: item, history (or item_history), and as far as they are there user, category with category_history,
    and the plain history_length, for data whose history ids may be 0.
    """
    roles = Roles(clients, "din", COLUMNS, columns)
    found = {"item": roles.ids("item", lists=False), "history": roles.ids("history", lists=True)}
    tables: dict[str, str | tuple[str, ...]] = {"items.weight": (found["item"], found["history"])}
    users = categories = None
    if roles.find("user"):
        found["user"] = roles.ids("user", lists=False)
        tables["users.weight"], users = found["user"], clients.size(found["user"])
    if roles.find("category"):
        found["category"] = roles.ids("category", lists=False)
        found["category_history"] = roles.ids("category_history", lists=True)
        tables["categories.weight"] = (found["category"], found["category_history"])
        categories = clients.size(found["category"])
    if roles.find("history_length"):
        found["history_length"] = roles.need("history_length")
    module = DIN(
        users,
        clients.size(found["item"]),
        categories,
        dim=dim,
        faithful=faithful,
        activation=activation,
        max_history=max_history,
        columns=found,
        padded=clients.space_of(found["history"]).padding,
    )
    loss = HalfCrossEntropy(label, epsilon=1e-8 if faithful else 0.0)
    return Objective(module, loss, tables, unused=other_ids(clients, tables))
