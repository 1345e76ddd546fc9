"""Modules of every kind that the engines are tried on, over the same three tables."""

from __future__ import annotations

import torch
from torch import nn
from worlds import click_data

import fedsub as fs

DATA = click_data(length=3)

ITEMS, PLACES, SLOTS = DATA.size("item"), DATA.size("place"), DATA.size("slot")

LOSS = fs.losses.binary("label")

ALL = {"items.weight": ["item", "history"], "places.weight": "place", "slots.weight": "slot"}


class Base(nn.Module):
    """Tables for all three spaces; a subclass says what to do with the history's embeddings [B, L, 6]."""

    def __init__(self, dim: int = 6, **options):
        super().__init__()
        self.items = nn.Embedding(ITEMS, dim, **options)
        self.places = nn.Embedding(PLACES, 2)
        self.slots = nn.Embedding(SLOTS, 1)
        self.out = nn.Linear(2 * dim + 5, 1)

    def forward(self, batch):
        ids = batch["history"]
        seen = self.encode(self.items(ids), ids, batch)
        parts = [
            seen,
            self.items(batch["item"]),
            self.places(batch["place"]).flatten(1),
            self.slots(batch["slot"]),
        ]
        return self.out(torch.cat(parts, -1)).squeeze(-1)

    def encode(self, x, ids, batch):
        return (x * (ids != 0).unsqueeze(-1)).sum(1)


class LSTM(Base):
    def __init__(self, **options):
        super().__init__()
        self.rnn = nn.LSTM(6, 6, num_layers=2, batch_first=True, **options)

    def encode(self, x, ids, batch):
        return self.rnn(x)[0][:, -1]


class GRU(Base):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(6, 6)  # time first, no batch_first

    def encode(self, x, ids, batch):
        return self.rnn(x.transpose(0, 1))[1][0]


class Bidirectional(Base):
    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(6, 3, bidirectional=True, batch_first=True, nonlinearity="relu")

    def encode(self, x, ids, batch):
        return self.rnn(x)[0].mean(1)


class Cells(Base):
    def __init__(self):
        super().__init__()
        self.lstm, self.gru = nn.LSTMCell(6, 6), nn.GRUCell(6, 6)

    def encode(self, x, ids, batch):
        h, c = torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0])
        g = h
        for t in range(x.shape[1]):
            h, c = self.lstm(x[:, t], (h, c))
            g = self.gru(h, g)
        return g


class Transformer(Base):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(6, 2, 12, dropout=0.1, batch_first=True)

    def encode(self, x, ids, batch):
        # A first place that is never masked keeps samples without history finite.
        x = torch.cat([self.items(batch["item"]).unsqueeze(1), x], 1)
        mask = torch.cat([torch.zeros_like(ids[:, :1], dtype=torch.bool), ids == 0], 1)
        return self.layer(x, src_key_padding_mask=mask)[:, 0]


class Attention(Base):
    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(6, 3, batch_first=True)

    def encode(self, x, ids, batch):
        query = self.items(batch["item"]).unsqueeze(1)
        return self.attend(query, x, x, need_weights=True)[0].squeeze(1)


class DIN(Base):
    """Attention of the candidate over the history, as in a deep interest network."""

    def __init__(self):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(24, 8), nn.PReLU(), nn.Linear(8, 1, bias=False))

    def encode(self, x, ids, batch):
        q = self.items(batch["item"]).unsqueeze(1).expand_as(x)
        s = self.score(torch.cat([q, x, q - x, q * x], -1)).squeeze(-1)
        a = s.masked_fill(ids == 0, -1e9).softmax(-1) * (ids != 0)
        return (a.unsqueeze(-1) * x).sum(1)


class Dropped(Base):
    def __init__(self):
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(6), nn.Dropout(0.3)

    def encode(self, x, ids, batch):
        return self.drop(self.norm(super().encode(x, ids, batch)))


class Indexed(Base):
    def __init__(self):
        super().__init__()
        self.slots = nn.Embedding(SLOTS, 1)

    def forward(self, batch):
        seen = self.items.weight[batch["history"]].sum(1)
        places = torch.index_select(self.places.weight, 0, batch["place"].reshape(-1)).reshape(-1, 4)
        parts = [seen, self.items.weight[batch["item"]], places, self.slots.weight[batch["slot"]]]
        return self.out(torch.cat(parts, -1)).squeeze(-1)


class Padded(Base):
    def __init__(self):
        super().__init__(padding_idx=0)

    def encode(self, x, ids, batch):
        return x.mean(1)  # the padding row is read, but must not be trained


class SeveralTables(Base):
    """A second table over the space of items, and the plain value."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Embedding(ITEMS, 1)
        self.slope = nn.Parameter(torch.tensor(0.3))

    def forward(self, batch):
        extra = self.bias(batch["history"]).squeeze(-1).sum(1) + self.bias(batch["item"]).squeeze(-1)
        return super().forward(batch) + extra + self.slope * batch["value"]


class Narrow(Base):
    """Layers whose results begin at odd places in memory, one client after the other."""

    def __init__(self):
        super().__init__(dim=18)
        self.layers = nn.Sequential(nn.Linear(18, 11), nn.Tanh(), nn.Linear(11, 9), nn.Tanh(), nn.Linear(9, 18))

    def encode(self, x, ids, batch):
        return self.layers(x.mean(1))


MODULES = {
    "base": Base,
    "narrow": Narrow,
    "lstm": LSTM,
    "lstm_dropout": lambda: LSTM(dropout=0.4),
    "gru": GRU,
    "bidirectional": Bidirectional,
    "cells": Cells,
    "transformer": Transformer,
    "attention": Attention,
    "din": DIN,
    "dropout_layernorm": Dropped,
    "indexed": Indexed,
    "padding_idx": Padded,
    "several_tables": SeveralTables,
}


def objective(kind, *, seed: int = 0) -> fs.Objective:
    torch.manual_seed(seed)
    module = MODULES[kind]() if isinstance(kind, str) else kind()
    tables = dict(ALL)
    if hasattr(module, "bias") and isinstance(module.bias, nn.Embedding):
        tables["bias.weight"] = ["item", "history"]
    return fs.Objective(module, LOSS, tables)


class Noisy(Base):
    def encode(self, x, ids, batch):
        return super().encode(x, ids, batch) + 0.3 * torch.rand(len(x), 6)
