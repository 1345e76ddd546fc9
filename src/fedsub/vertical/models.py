"""Modules for parties that bring none: bottoms that embed what a party has, and tops at the label party.

    Tower      all columns of a party: [b, width]
    History    a list of ids as its embeddings, [b, T, dim + 1], the last number 1 where there is an id
    Head       concat of all parts → hidden, ReLU → a logit
    Interest   DIN over two parties: the label party has the candidate, another one the history

`Interest` weighs the history by how well each of it goes with the candidate (Zhou et al., "Deep interest network for
click-through rate prediction", KDD 2018): attention as in `fedsub.objective.models.din`, then

    concat[q, Σk, q∘Σk, Σ a·k, others] → 80 → PReLU → a logit               q = the label party's own part, [b, dim]

Which rows of the history's table were looked up stays with the party that has it; the candidate, which the attention
needs, stays with the label party.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fedsub.data.clients import Clients
from fedsub.errors import ObjectiveError
from fedsub.objective.losses import Batch
from fedsub.objective.models.din import MASKED, Attention, Dense, LeakyUnits

Tables = dict[str, list[str]]


class Tower(nn.Module):
    """Embeddings of all id columns (of a list their mean) and the plain values, through one linear layer.

    ``spaces``: {space: (rows, columns, whether row 0 means nothing)}.
    """

    def __init__(
        self, spaces: Mapping[str, tuple[int, Sequence[str], bool]], values: Sequence[str], dim: int, width: int
    ):  # fmt: skip
        super().__init__()
        self.columns = {space: list(columns) for space, (_, columns, _) in spaces.items()}
        self.values = list(values)
        self.rows = nn.ModuleDict({
            _key(space): nn.Embedding(rows, dim, padding_idx=0 if padded else None)
            for space, (rows, _, padded) in spaces.items()
        })  # fmt: skip
        for table in self.rows.values():
            nn.init.normal_(table.weight, std=0.1)  # type: ignore[arg-type]
        count = sum(len(columns) for columns in self.columns.values())
        self.out = nn.Linear(dim * count + len(self.values), width)

    def forward(self, batch: Batch) -> Tensor:
        parts = []
        for space, columns in self.columns.items():
            table = self.rows[_key(space)]
            for column in columns:
                ids = batch[column]
                found = table(ids)
                if ids.ndim == 2:
                    real = (ids != 0).unsqueeze(-1).to(found.dtype)
                    found = (found * real).sum(1) / real.sum(1).clamp(min=1)
                parts.append(found)
        parts += [batch[name].to(self.out.weight.dtype).unsqueeze(-1) for name in self.values]
        return self.out(torch.cat(parts, -1))


def _key(space: str) -> str:
    """A space's name as torch allows names of modules."""
    return f"of_{space.replace('.', '_')}"


class History(nn.Module):
    """Embeddings of a list of ids and whether each is there, [b, T, dim + 1]."""

    def __init__(self, column: str, rows: int, dim: int):
        super().__init__()
        self.column, self.items = column, nn.Embedding(rows, dim, padding_idx=0)
        nn.init.normal_(self.items.weight, std=0.1)

    def forward(self, batch: Batch) -> Tensor:
        ids = batch[self.column]
        found, real = self.items(ids), (ids != 0).unsqueeze(-1)
        return torch.cat([found * real, real.to(found.dtype)], -1)


class Head(nn.Module):
    """All parts side by side, one hidden layer, a logit [b]."""

    def __init__(self, width: int, hidden: int = 32):
        super().__init__()
        self.hidden, self.out = nn.Linear(width, hidden), nn.Linear(hidden, 1)

    def forward(self, *parts: Tensor) -> Tensor:
        together = torch.cat([part.flatten(1) for part in parts], -1)
        return self.out(self.hidden(together).relu()).squeeze(-1)


class Interest(nn.Module):
    """The candidate's part [b, dim], a history [b, T, dim + 1] and other parts [b, …], which add ``others`` numbers."""

    def __init__(self, dim: int, others: int = 0):
        super().__init__()
        self.attention = Attention(dim)
        self.hidden, self.slopes = Dense(4 * dim + others, 80), LeakyUnits(80, learned=True)
        self.out = Dense(80, 1)

    def forward(self, q: Tensor, history: Tensor, *others: Tensor) -> Tensor:
        k, real = history[..., :-1], history[..., -1] > 0.5
        weights = self.attention(q, k).masked_fill(~real, MASKED).softmax(-1) * real
        plain, attended = (torch.stack([real.to(k.dtype), weights], 1) @ k).unbind(1)
        x = torch.cat([q, plain, q * plain, attended, *[part.flatten(1) for part in others]], -1)
        return self.out(self.slopes(self.hidden(x), x)).squeeze(-1)


def tower(clients: Clients, dim: int, width: int) -> tuple[nn.Module, Tables]:
    """A `Tower` over all that a party has but its label, and its tables by parameter."""
    spaces = {name: (space.size, space.columns, space.padding) for name, space in clients.spaces.items()}
    values = [n for n, c in clients.columns.items() if c.space is None and n != clients.label and c.feature]
    if not spaces and not values:
        raise ObjectiveError("A tower needs columns: give the party tables= (ids) or values=.")
    tables = {f"rows.{_key(name)}.weight": list(columns) for name, (_, columns, _) in spaces.items()}
    return Tower(spaces, values, dim, width), tables


def history(clients: Clients, dim: int) -> tuple[nn.Module, Tables]:
    """A `History` of the one list that a party has."""
    lists = [n for n, c in clients.columns.items() if c.space is not None and (c.ragged or c.values.ndim == 2)]
    if len(lists) != 1 or len(clients.spaces) != 1 or not clients.space_of(lists[0]).padding:
        raise ObjectiveError(
            f"A history is one column of lists of ids, with row 0 for nothing (padding); this party has the lists "
            f'{", ".join(lists) or "none"} and the tables {", ".join(clients.spaces) or "none"}. Take model = "tower".'
        )
    return History(lists[0], clients.size(lists[0]), dim), {"items.weight": lists}
