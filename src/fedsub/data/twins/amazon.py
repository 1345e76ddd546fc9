"""Synthetic data in the shape of Amazon Electronics: user, item, and the user's earlier liked items.

    logit = intercept + mood[user] + quality[item] + pull · (share of liked items in the item's cluster)

Users rate each item at most once and mostly from a few favourite clusters. As in the real data, one item is
rated by 232 of 1,870 users and nearly half of all items by a single one.
"""

from __future__ import annotations

import numpy as np

from fedsub.data.clients import Array, Column, Space
from fedsub.data.datasets.histories import earlier_positives, ranges
from fedsub.data.twins import draws
from fedsub.data.twins.clicks import click, holdout
from fedsub.data.twins.twin import Block, Table1, Twin, label_column, space
from fedsub.errors import DataError

CLIENTS, SAMPLES, HOTTEST, ITEMS = 1870, 123_147, 232, 33_135
LEAST = 40  # ratings: users with fewer are not in the data
POSITIVE = 0.555  # share of five stars
CLUSTERS, FAVOURITES, STRAY = 24, 4, 0.08  # STRAY: chance that an item outside the favourites is taken
PULL = 6.0
BOUGHT, FAVOURED, LIKED = 1, 2, 3  # purposes of draws


class AmazonPlan:
    """Who rates how much, which items there are, and the planted model; the ratings follow block by block."""

    def __init__(self, scale: float, seed: int) -> None:
        clients, samples, items = round(CLIENTS * scale), round(SAMPLES * scale), round(ITEMS * scale**0.5)
        if clients < 2:
            raise DataError(f"amazon-like: scale={scale} leaves {clients} clients; use 0.001 or more.")
        draw = np.random.default_rng([seed, 2])
        self.seed, self.items = seed, items
        self.sizes = draws.sizes(draw, clients, samples, least=LEAST, most=min(480, items // 2), spread=0.55)
        # Row 0 is padding. Which item is the hottest one says nothing about it.
        ids = 1 + draw.permutation(items)
        weights = np.zeros(items + 1)
        weights[ids[1:]] = _popularity(items)[1:]
        self.weights = draws.cumulated(weights)
        self.given = self._given(draw, ids)
        self.cluster = draw.integers(0, CLUSTERS, items + 1)
        self.mood = draw.normal(0, 0.9, clients)
        self.quality = draw.normal(0, 0.8, items + 1)
        first = min(clients, 1024)  # users are in no order, so these stand for all
        parts = self._parts(0, first)
        self.intercept = draws.intercept(lambda shift: float(self._click(parts, shift)[1].mean()), POSITIVE)

    def _given(self, draw: np.random.Generator, ids: Array) -> draws.Given:
        """Exactly so many raters of the hottest item, and a first rater for the others while samples last."""
        hottest = draw.choice(len(self.sizes), max(round(HOTTEST * len(self.sizes) / CLIENTS), 1), replace=False)
        single = ids[1 : 1 + min(len(ids) - 1, int(0.3 * self.sizes.sum()))]
        rest = draws.anywhere(draw, self.sizes - 1, draw.permutation(single))  # one place is kept for the hottest
        client = np.concatenate([hottest, rest.client])
        return draws.Given.of(client, np.concatenate([np.full(len(hottest), ids[0]), rest.row]))

    @property
    def spaces(self) -> tuple[Space, ...]:
        return (
            space("user", len(self.sizes) + 1, padding=True),
            space("item", self.items + 1, "item", "history", padding=True),
        )

    def block(self, begin: int, end: int) -> Block:
        parts = self._parts(begin, end)
        sizes, owner, item = parts[:3]
        probability, label = self._click(parts, self.intercept)
        positive, first, last = earlier_positives(owner, label)
        columns = [
            Column("user", owner + begin + 1, "user"),
            Column("item", item, "item"),
            ranges("history", item[positive], first, last, space="item"),
            label_column(label),
            holdout(sizes),
        ]
        return Block(sizes, columns, probability)

    def _parts(self, begin: int, end: int) -> tuple[Array, Array, Array, Array, Array]:
        """Sizes; owner, item, logit without intercept and history, and luck of every sample."""
        sizes = self.sizes[begin:end]
        wish = draws.uniforms(draws.client_keys(self.seed, FAVOURED, begin, end), np.full(end - begin, CLUSTERS))
        favourite = np.argsort(np.argsort(wish.reshape(-1, CLUSTERS), axis=1), axis=1) < FAVOURITES

        def accept(owner: Array, item: Array, chance: Array) -> Array:
            return favourite[owner, self.cluster[item]] | (chance < STRAY)

        keys = draws.client_keys(self.seed, BOUGHT, begin, end)
        owner, item = draws.distinct(keys, sizes, self.weights, self.given.within(begin, end), accept)
        luck = draws.uniforms(draws.client_keys(self.seed, LIKED, begin, end), sizes)
        return sizes, owner, item, self.mood[owner + begin] + self.quality[item], luck

    def _click(self, parts: tuple[Array, Array, Array, Array, Array], shift: float) -> tuple[Array, Array]:
        sizes, _, item, base, luck = parts
        return click(sizes, base + shift, self.cluster[item], PULL, luck, None)


def _popularity(items: int) -> Array:
    """Relative weights by rank, fitted by eye to the heat of the real items."""
    rank = np.arange(items) / items
    return (1 + 400 * rank) ** -0.8 * np.exp(-2 * rank)


AMAZON = Twin(
    "amazon-like",
    "five-star ratings by user, item and earlier five-star items: Amazon Electronics",
    Table1(CLIENTS, SAMPLES, HOTTEST),
    AmazonPlan,
    "holdout",
)
