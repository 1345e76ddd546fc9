"""The three models for libraries that hand a module one tensor of ids: those of `fedsub.study.bench.workloads`."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn


class Logistic(nn.Module):
    def __init__(self, rows: int):
        super().__init__()
        self.table = nn.EmbeddingBag(rows, 1, mode="sum")
        self.bias = nn.Parameter(torch.zeros(1))
        nn.init.zeros_(self.table.weight)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids).squeeze(-1) + self.bias


class Sentiment(nn.Module):
    def __init__(self, rows: int):
        super().__init__()
        self.table = nn.Embedding(rows, 25)
        self.lstm = nn.LSTM(25, 100, num_layers=2, batch_first=True)
        self.out = nn.Linear(100, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.lstm(self.table(ids))[0][:, -1]).squeeze(-1)


class Interest(nn.Module):
    def __init__(self, rows: int, dim: int = 18):
        super().__init__()
        self.table = nn.Embedding(rows, dim)
        self.attention = perceptron(4 * dim, 80, 40, 1)
        self.head = perceptron(3 * dim, 80, 40, 1)

    def forward(self, ids: Tensor) -> Tensor:
        items = self.table(ids)
        candidate, past = items[:, 0], items[:, 1:]
        query = candidate.unsqueeze(1).expand_as(past)
        scores = self.attention(torch.cat([query, past, query - past, query * past], -1)).squeeze(-1)
        scores = scores.masked_fill(ids[:, 1:] == 0, -1e9)
        interest = (scores.softmax(-1).unsqueeze(-1) * past).sum(1)
        return self.head(torch.cat([interest, candidate, interest * candidate], -1)).squeeze(-1)


def perceptron(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.Sigmoid()]
    return nn.Sequential(*layers[:-1])


MODELS = {"w1": Logistic, "w2": Sentiment, "w3": Interest}
