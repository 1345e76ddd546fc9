"""Three reference workloads on synthetic data: shapes of published experiments, nothing to download.

    w1   logistic regression: gender, age, movie and both crosses, a table 38,839 x 1   (MovieLens)
    w2   sentiment of 30 words: table 10,000 x 25, two-layer LSTM of 100                (Sent140)
    w3   click-through with attention over 50 past items: table 63,001 x 18             (Amazon, DIN)

Ids follow a Zipf law and sizes of clients a log-normal one. The modules are written as a user would write
them for one batch; nothing in them knows of clients. Labels follow a planted model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from fedsub.data.clients import Array, Clients
from fedsub.objective.losses import Batch, Binary
from fedsub.objective.objective import Objective

SEED = 7


@dataclass(frozen=True)
class Workload:
    """The work of a round: ``cohort`` (K) clients, each ``steps`` (I) steps on batches of ``batch`` (B)."""

    name: str
    title: str
    clients: int
    rows: int
    cohort: int
    make_data: Callable[[np.random.Generator, int, int], tuple[Array, Array, Array]] = field(repr=False)
    make_module: Callable[[int], nn.Module] = field(repr=False)
    table: str = "table.weight"
    padding: bool = False
    batch: int = 5
    steps: int = 10
    lr: float = 0.1
    compiles: bool = True  # False: compiling takes longer than the benchmark

    @cached_property
    def data(self) -> Data:
        return _data(self.make_data, self.clients, self.rows, self.padding)

    def objective(self) -> Objective:
        """The same initial parameters at every call."""
        with torch.random.fork_rng():
            torch.manual_seed(SEED)
            module = self.make_module(self.rows)
        return Objective(module, Binary("label"), tables={self.table: "ids"})

    def scaled(self, clients: int, rows: int, **changes) -> Workload:
        """The same law in small, for tests."""
        return replace(self, clients=clients, rows=rows, **changes)


@dataclass(frozen=True, eq=False)
class Data:
    """Plain arrays (global ids) for the loops without fedsub, and the same samples as `Clients`."""

    ids: Array  # int32 [samples, width]
    labels: Array  # float32 [samples]
    offsets: Array  # int64 [clients + 1]
    clients: Clients


@lru_cache(maxsize=4)
def _data(make, clients: int, rows: int, padding: bool) -> Data:
    ids, labels, sizes = make(np.random.default_rng(SEED), clients, rows)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    ids, labels = ids.astype(np.int32, copy=False), labels.astype(np.float32)
    built = Clients.from_arrays(
        {"ids": ids, "label": labels},
        offsets=offsets,
        ids=["ids"],
        label="label",
        sizes={"ids": rows},
        padding=("ids",) if padding else (),
    )
    return Data(ids, labels, offsets, built)


# Data ------------------------------------------------------------------------------------------------


def _zipf(n: int, power: float) -> Array:
    weights = np.arange(1, n + 1, dtype=np.float64) ** -power
    return weights / weights.sum()


def _draw(rng: np.random.Generator, chances: Array, shape: int | tuple[int, ...]) -> Array:
    """Independent draws by chance."""
    return np.searchsorted(np.cumsum(chances)[:-1], rng.random(shape, np.float32)).astype(np.int32)


def _distinct(rng: np.random.Generator, chances: Array, counts: Array) -> Array:
    """For every entry of ``counts`` that many distinct draws, one behind the other.

    The k smallest of Exponential / chance are k draws without replacement (Efraimidis, Spirakis 2006).
    """
    chances = chances.astype(np.float32)
    found = []
    for count in counts:
        keys = rng.standard_exponential(len(chances), np.float32) / chances
        found.append(np.argpartition(keys, count - 1)[:count].astype(np.int32))
    return np.concatenate(found)


def _sizes(rng: np.random.Generator, n: int, mean: float, sigma: float, low: int, high: int) -> Array:
    return np.clip(rng.lognormal(mean, sigma, n), low, high).astype(np.int64)


def _coin(rng: np.random.Generator, logits: Array) -> Array:
    return rng.random(len(logits)) < 1 / (1 + np.exp(-logits))


def movies(rng: np.random.Generator, clients: int, rows: int) -> tuple[Array, Array, Array]:
    """Five one-hot features a sample; rows are 2 genders, 7 ages, and (1 + 2 + 7) numbers a movie."""
    n = (rows - 9) // 10
    sizes = _sizes(rng, clients, 4.615, 1.02, min(20, n // 2), int(0.6 * n))
    user = np.repeat(np.arange(clients), sizes)
    gender, age = rng.integers(0, 2, clients)[user], rng.integers(0, 7, clients)[user]
    movie = _distinct(rng, _zipf(n, 0.8), sizes)
    ids = np.stack([gender, 2 + age, 9 + movie, 9 + n + gender * n + movie, 9 + 3 * n + age * n + movie], axis=1)
    return ids, _coin(rng, rng.normal(0, 0.5, rows)[ids].sum(1)), sizes


def sentences(rng: np.random.Generator, clients: int, rows: int, words: int = 30) -> tuple[Array, Array, Array]:
    """Sentences of ``words`` words."""
    sizes = _sizes(rng, clients, 4.2, 0.6, 40, 500)
    ids = _draw(rng, _zipf(rows, 1.0), (int(sizes.sum()), words))
    return ids, _coin(rng, 3 * rng.normal(0, 1, rows)[ids].mean(1)), sizes


def clicks(rng: np.random.Generator, clients: int, rows: int) -> tuple[Array, Array, Array]:
    """A candidate and 5 to 50 past items (then padding, id 0), all from the client's own pool of items.

    The candidate comes from the pool if it was clicked, and from all items if not.
    """
    chances = _zipf(rows - 1, 0.8)
    sizes = _sizes(rng, clients, 5.5, 0.7, 64, 2000)
    pools = _sizes(rng, clients, 4.3, 0.5, 20, min(400, rows // 4))
    pool = 1 + _draw_distinct_sparse(rng, chances, pools)
    first, count = np.repeat(np.cumsum(pools) - pools, sizes), np.repeat(pools, sizes)
    samples = len(first)
    label = rng.random(samples) < 0.5
    place = rng.random((samples, 51), np.float32)
    place *= count[:, None].astype(np.float32) * np.float32(1 - 1e-6)  # rounding must not reach the next pool
    ids = pool[place.astype(np.int32) + first[:, None].astype(np.int32)]
    other = 1 + _draw(rng, chances, samples)
    ids[:, 0] = np.where(label, ids[:, 0], other)
    ids[:, 1:][np.arange(50) >= rng.integers(5, 51, samples)[:, None]] = 0
    return ids, label, sizes


def _draw_distinct_sparse(rng: np.random.Generator, chances: Array, counts: Array) -> Array:
    """`_distinct` for counts small beside the number of items: draw too many, keep the first distinct ones."""
    many = 3 * int(counts.max()) + 20
    drawn = _draw(rng, chances, (len(counts), many))
    found = []
    for row, count in zip(drawn, counts, strict=True):
        first = np.sort(np.unique(row, return_index=True)[1])[:count]
        one = row[first]
        if len(one) < count:  # only where items are few
            one = _distinct(rng, chances, np.array([count]))
        found.append(one)
    return np.concatenate(found)


# Modules ---------------------------------------------------------------------------------------------


class Logistic(nn.Module):
    def __init__(self, rows: int):
        super().__init__()
        self.table = nn.EmbeddingBag(rows, 1, mode="sum")
        self.bias = nn.Parameter(torch.zeros(1))
        nn.init.zeros_(self.table.weight)

    def forward(self, batch: Batch) -> Tensor:
        return self.table(batch["ids"]).squeeze(-1) + self.bias


class Sentiment(nn.Module):
    def __init__(self, rows: int, dim: int = 25, hidden: int = 100):
        super().__init__()
        self.table = nn.Embedding(rows, dim)
        self.lstm = nn.LSTM(dim, hidden, num_layers=2, batch_first=True)
        self.out = nn.Linear(hidden, 1)

    def forward(self, batch: Batch) -> Tensor:
        states, _ = self.lstm(self.table(batch["ids"]))
        return self.out(states[:, -1]).squeeze(-1)


class Interest(nn.Module):
    """Attention of the candidate (first id) over the past items; id 0 is padding."""

    def __init__(self, rows: int, dim: int = 18):
        super().__init__()
        self.table = nn.Embedding(rows, dim)
        self.attention = _perceptron(4 * dim, 80, 40, 1)
        self.head = _perceptron(3 * dim, 80, 40, 1)

    def forward(self, batch: Batch) -> Tensor:
        items = self.table(batch["ids"])  # [B, 51, dim]
        candidate, past = items[:, 0], items[:, 1:]
        query = candidate.unsqueeze(1).expand_as(past)
        scores = self.attention(torch.cat([query, past, query - past, query * past], -1)).squeeze(-1)
        scores = scores.masked_fill(batch["ids"][:, 1:] == 0, -1e9)
        interest = (scores.softmax(-1).unsqueeze(-1) * past).sum(1)
        return self.head(torch.cat([interest, candidate, interest * candidate], -1)).squeeze(-1)


def _perceptron(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.Sigmoid()]
    return nn.Sequential(*layers[:-1])


_W3 = Workload("w3", "attention over 50 items, K=20", 1870, 63_001, 20, clicks, Interest, padding=True, batch=32)
WORKLOADS = {
    "w1": Workload("w1", "logistic regression, K=50", 6040, 38_839, 50, movies, Logistic),
    "w2": Workload("w2", "two-layer LSTM, K=50", 1473, 10_000, 50, sentences, Sentiment, compiles=False),
    "w3": _W3,
    "w3-100": replace(_W3, name="w3-100", title="attention over 50 items, K=100", cohort=100),
}
