"""Small data cut by columns: a label party, up to two feature parties, and the same network in one place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fedsub as fs
from fedsub.vertical import Joined, LabelParty, Party

SAMPLES, BATCH, STEPS, ROUNDS = 60, 13, 3, 4  # 46 are to train on: a pass is 4 batches, the last of 7
OPTIONS: dict[str, Any] = {"rounds": ROUNDS, "steps": STEPS, "batch_size": BATCH}


class Shop(nn.Module):
    """A table and values: z [b, 3]."""

    def __init__(self, items: int):
        super().__init__()
        self.items, self.out = nn.Embedding(items, 4), nn.Linear(5, 3)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        return torch.tanh(self.out(torch.cat([self.items(batch["item"]), batch["price"][:, None].double()], -1)))


class Paper(nn.Module):
    """Lists of ids with padding: z [b, 2]."""

    def __init__(self, topics: int):
        super().__init__()
        self.topics, self.out = nn.Embedding(topics, 2, padding_idx=0), nn.Linear(2, 2)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        return self.out(self.topics(batch["read"]).mean(1))


class Own(nn.Module):
    def __init__(self, towns: int):
        super().__init__()
        self.towns = nn.Embedding(towns, 2)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        return self.towns(batch["town"])


class Top(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.hidden, self.out = nn.Linear(width, 4), nn.Linear(4, 1)

    def forward(self, *parts: Tensor) -> Tensor:
        return self.out(torch.tanh(self.hidden(torch.cat(parts, -1)))).squeeze(-1)


def columns() -> dict[str, Any]:
    draw = np.random.default_rng(5)
    return {
        "id": [f"p{n:03d}" for n in draw.permutation(SAMPLES)],
        "item": draw.integers(0, 30, SAMPLES), "price": draw.normal(size=SAMPLES),
        "read": [draw.integers(1, 9, draw.integers(0, 4)).tolist() for _ in range(SAMPLES - 1)] + [[1, 2, 3]],
        "town": draw.integers(0, 5, SAMPLES), "label": draw.integers(0, 2, SAMPLES),
    }  # fmt: skip


def clients(names: tuple[str, ...], ids: dict[str, list[str]], **options: Any) -> tuple[fs.Clients, fs.Clients]:
    """(train, test), cut alike for everybody who has the same ids."""
    data = columns()
    found = fs.Clients.from_arrays({n: data[n] for n in ("id", *names)}, client="id", ids=ids, **options)
    return found.split(0.8, seed=1)


def shop(optimiser: Any = 0.5) -> Party:
    train, test = clients(("item", "price"), {"item": ["item"]}, values=["price"])
    torch.manual_seed(1)
    return Party("shop", Shop(train.size("item")).double(), train, {"test": test}, {"items.weight": "item"}, optimiser)


def paper(optimiser: Any = 0.3) -> Party:
    train, test = clients(("read",), {"read": ["read"]})
    torch.manual_seed(2)
    return Party(
        "paper", Paper(train.size("read")).double(), train, {"test": test}, {"topics.weight": "read"}, optimiser
    )


def label(width: int, names: tuple[str, ...], optimiser: Any = 0.2, **more: Any) -> LabelParty:
    train, test = clients(("town", "label"), {"town": ["town"]}, label="label")
    torch.manual_seed(3)
    module = Joined(Own(train.size("town")), Top(2 + width), names).double()
    return LabelParty(
        module, fs.losses.binary("label"), train, {"test": test}, {"bottom.towns.weight": "town"}, optimiser, **more
    )


def world(parties: int, **more: Any) -> tuple[LabelParty, list[Party]]:
    others = [shop(), paper()][:parties]
    return label((0, 3, 5)[parties], tuple(p.name for p in others), **more), others
