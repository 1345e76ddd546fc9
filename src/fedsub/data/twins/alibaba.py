"""Synthetic data in the shape of Alibaba's click log: user, item, category and the recent clicks of both.

    logit = intercept + mood[user] + quality[item] + appeal[category]
            + pull · (share of the last 20 clicks in the category)

A client browses a set of categories, some much more than others, and sees each item of them any number of
times. One category is browsed by 3,142 of 49,023 clients; no feature is hotter. Rows are as many as the
published sparsity suggests: 63,000 items and categories, held by about 240 clients each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsub.data.clients import Array, Column, Space
from fedsub.data.datasets.histories import earlier_positives, ranges
from fedsub.data.twins import draws
from fedsub.data.twins.clicks import click, holdout
from fedsub.data.twins.twin import Block, Table1, Twin, label_column, space
from fedsub.errors import DataError

CLIENTS, SAMPLES, HOTTEST, ITEMS, CATEGORIES = 49_023, 16_864_641, 3142, 58_000, 5000
LEAST = 32  # impressions: users with fewer are not in the data
POSITIVE = 0.2  # share of impressions that are clicked; not published
BREADTH = 0.17  # categories that a client browses, per impression
PULL = 4.0
RECENT = 20  # clicks in a history
BROWSED, ORDER, CATEGORY, ITEM, CLICKED = range(1, 6)  # purposes of draws


@dataclass(frozen=True)
class _Seen:
    """A block before anything is clicked; one entry per client, then one per impression."""

    sizes: Array
    owner: Array
    category: Array
    slot: Array  # the category's place among those of the client
    item: Array
    base: Array
    luck: Array


class AlibabaPlan:
    """Who browses how much, what is on the shelves, and the planted model; impressions follow block by block."""

    def __init__(self, scale: float, seed: int) -> None:
        clients, samples = round(CLIENTS * scale), round(SAMPLES * scale)
        items, categories = (round(count * scale**0.5) for count in (ITEMS, CATEGORIES))
        if clients < 4:
            raise DataError(f"alibaba-like: scale={scale} leaves {clients} clients; use 0.0001 or more.")
        draw = np.random.default_rng([seed, 3])
        self.seed, self.items, self.categories = seed, items, categories
        self.sizes = draws.sizes(draw, clients, samples, least=LEAST, most=5000, spread=1.0)
        self.breadth = np.clip(np.rint(BREADTH * self.sizes).astype(np.int64), 2, categories // 2)
        # Row 0 is padding everywhere. Numbers of items and categories are shuffled: they say nothing.
        named = 1 + draw.permutation(categories)
        popularity = _popularity(categories)
        weights = np.zeros(categories + 1)
        weights[named[1:]] = popularity[1:]
        self.weights = draws.cumulated(weights)
        hottest = draw.choice(clients, max(round(HOTTEST * clients / CLIENTS), 1), replace=False)
        self.given = draws.Given.of(hottest, np.full(len(hottest), named[0]))
        stock = np.zeros(categories + 1, np.int64)  # items of every category: at least one, more in popular ones
        stock[named] = 1 + draws.shares(popularity**0.6, items - categories)
        self.stock, self.shelf = stock, np.cumsum(stock) - stock
        self.item_at = 1 + draw.permutation(items)
        self.mood = draw.normal(0, 0.5, clients)
        self.quality = draw.normal(0, 0.6, items + 1)
        self.appeal = draw.normal(0, 0.4, categories + 1)
        seen = self._seen(0, min(clients, 512))  # users are in no order, so these stand for all
        self.intercept = draws.intercept(lambda shift: float(_click(seen, shift)[1].mean()), POSITIVE)

    @property
    def spaces(self) -> tuple[Space, ...]:
        return (
            space("user", len(self.sizes) + 1, padding=True),
            space("item", self.items + 1, "item", "item_history", padding=True),
            space("category", self.categories + 1, "category", "category_history", padding=True),
        )

    def block(self, begin: int, end: int) -> Block:
        seen = self._seen(begin, end)
        probability, label = _click(seen, self.intercept)
        positive, first, last = earlier_positives(seen.owner, label)
        clicked = {"item": seen.item[positive], "category": seen.category[positive]}
        columns = [
            Column("user", seen.owner + begin + 1, "user"),
            Column("item", seen.item, "item"),
            ranges("item_history", clicked["item"], first, last, space="item", longest=RECENT),
            Column("category", seen.category, "category"),
            ranges("category_history", clicked["category"], first, last, space="category", longest=RECENT),
            label_column(label),
            holdout(seen.sizes),
        ]
        return Block(seen.sizes, columns, probability)

    def _seen(self, begin: int, end: int) -> _Seen:
        sizes, breadth = self.sizes[begin:end], self.breadth[begin:end]
        owner = np.repeat(np.arange(end - begin), sizes)
        keys = {purpose: draws.client_keys(self.seed, purpose, begin, end) for purpose in range(1, 6)}
        _, browsed = draws.distinct(keys[BROWSED], breadth, self.weights, self.given.within(begin, end))
        # Impressions 0 … breadth - 1, before shuffling, show each category once; the others favour the first ones.
        turn, width = draws.places(sizes), breadth[owner]
        slot = np.where(turn < width, turn, (width * draws.uniforms(keys[CATEGORY], sizes) ** 2).astype(np.int64))
        slot = slot[draws.shuffled(keys[ORDER], owner, turn)]
        category = browsed[(np.cumsum(breadth) - breadth)[owner] + slot]
        inside = (self.stock[category] * draws.uniforms(keys[ITEM], sizes) ** 1.5).astype(np.int64)
        item = self.item_at[self.shelf[category] + inside]
        base = self.mood[owner + begin] + self.quality[item] + self.appeal[category]
        return _Seen(sizes, owner, category, slot, item, base, draws.uniforms(keys[CLICKED], sizes))


def _click(seen: _Seen, shift: float) -> tuple[Array, Array]:
    return click(seen.sizes, seen.base + shift, seen.slot, PULL, seen.luck, RECENT)


def _popularity(categories: int) -> Array:
    """Relative weights by rank: a power law with a long flat head, below the hottest category."""
    rank = np.arange(categories) / categories
    return (1 + 12 * rank) ** -1.0


ALIBABA = Twin(
    "alibaba-like",
    "clicks by user, item, category and recent clicks: Alibaba",
    Table1(CLIENTS, SAMPLES, HOTTEST),
    AlibabaPlan,
    "holdout",
)
