"""Taobao's carts and purchases, a small public stand-in for an industrial click log: was this item bought?

A sample is a pair (client, item) that was in the cart, bought, or both. Label 1: bought (``buy_train``); label 0:
only in the cart. ``history`` are the client's other items, bought or in the cart, without saying which. That is the
same set for every sample of a client but for the target, so nothing in it tells the target's label. (Only the other
items of the cart, ``history="cart"``, would: a client's longest histories belong to items that were never in the
cart, so were bought.)

``buy_test`` is one held-out purchase per client. It has no unbought counterpart, so it is no test set for this task
and is left out. 8,326 of these purchases are pairs that lie in the cart and have label 0 here though they were
bought later; ``held_out="dropped"`` leaves those pairs out. Split at random: there are no times.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import polars as pl

from fedsub.data.clients import Array, Clients, Column
from fedsub.data.datasets.histories import clients_from, ranges
from fedsub.data.datasets.options import Says
from fedsub.data.datasets.source import Source
from fedsub.data.datasets.tables import Schema, Text, parquet
from fedsub.data.renumber import concatenated
from fedsub.errors import DataError

HOME = "https://github.com/chenchongthu/EHCF (folder data/Taobao)"
EVENTS = {"cart": "cart.csv", "buy_train": "buy.train.txt", "buy_test": "buy.test.txt"}
INTERACTIONS: Schema = {"client_id": pl.Int64, "item_id": pl.Int64, "event": pl.String}
PAIRS: Schema = {"uid": pl.Int64, "sid": pl.Int64}


def taobao_cart_buy(
    path: str | os.PathLike[str],
    *,
    history: Annotated[
        Literal["others", "cart"], Says("the client's other items; or those in the cart only, which hints at the label")
    ] = "others",
    max_history: Annotated[int | None, Says("items kept of a history")] = None,
    held_out: Annotated[
        Literal["kept", "dropped"], Says("pairs in the cart that are the client's held-out purchase")
    ] = "kept",
) -> Clients:
    """From ``interactions.parquet``, or a folder with EHCF's ``cart.csv``, ``buy.train.txt`` and ``buy.test.txt``."""
    with Source(path) as source:
        events = _events(source)
    if len(strange := events.filter(~pl.col("event").is_in(list(EVENTS)))):
        raise DataError(f"{path}: an event is {strange['event'][0]!r}, expected one of {', '.join(EVENTS)}.")
    rows = events.select(user="client_id", item=pl.col("item_id") + 1, event="event")
    pairs = (
        rows.filter(pl.col("event") != "buy_test")
        .group_by("user", "item")
        .agg(label=(pl.col("event") == "buy_train").any(), cart=(pl.col("event") == "cart").any())
    )
    if held_out == "dropped":
        bought = rows.filter(pl.col("event") == "buy_test").select("user", "item")
        pairs = pairs.join(bought, on=["user", "item"], how="anti")
    if not len(pairs):
        raise DataError(f"{path} holds neither carts nor purchases (events cart, buy_train); copy it again.")
    pairs = pairs.sort("user", "item")
    owner, item = pairs["user"].to_numpy(), pairs["item"].to_numpy()
    listed = pairs["cart"].to_numpy() if history == "cart" else np.ones(len(pairs), bool)
    columns = [
        Column("item", item, "item"),
        _others(owner, item, listed, max_history),
        Column("label", pairs["label"].to_numpy().astype(np.float32)),
    ]
    size = int(rows["item"].to_numpy().max()) + 1
    return clients_from(owner, columns, {"item": size}, padding=("item",), source=str(path))


def _others(owner: Array, item: Array, listed: Array, longest: int | None) -> Column:
    """For every row, the items of its owner's listed rows, without its own."""
    before = np.concatenate([[0], np.cumsum(listed)])
    _, first, count = np.unique(owner, return_index=True, return_counts=True)
    begin, end = np.repeat(before[first], count), np.repeat(before[first + count], count)
    flat = item[listed][concatenated(begin, end - begin)]
    other = flat != np.repeat(item, end - begin)
    stops = np.concatenate([[0], np.cumsum(other)])[np.cumsum(end - begin)]
    return ranges("history", flat[other], np.concatenate([[0], stops[:-1]]), stops, space="item", longest=longest)


def _events(source: Source) -> pl.DataFrame:
    if source.find("interactions.parquet") or not any(source.find(name) for name in EVENTS.values()):
        return parquet(source.need("interactions.parquet", home=HOME, kinds=(".parquet",)), INTERACTIONS)
    return pl.concat(_pairs(source.need(name, home=HOME), event) for event, name in EVENTS.items())


def _pairs(file: Path, event: str) -> pl.DataFrame:
    with open(file, encoding="utf-8", errors="replace") as opened:
        separator = "\t" if "\t" in opened.readline() else ","
    pairs = Text(file, PAIRS, separator, header=True).collect()
    return pairs.select(client_id="uid", item_id="sid", event=pl.lit(event))
