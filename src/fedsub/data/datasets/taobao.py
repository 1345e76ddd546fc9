"""Taobao user behaviour (Alibaba, Tianchi): will this user look at this item?

The public log has no impressions, only what users did, so the task is made: label 1 is a user's first page view of
an item (25 November to 3 December 2017, Chinese time; rows outside are dropped, the release has some), and for each
there is one sample with label 0 at the same time, an item that the user never viewed, drawn by ``seed`` from all
views of the kept users (``negatives="popularity"``) or from their items alike (``"uniform"``). First views only,
since a repeated view lies in the history and a drawn item never does. Histories are the user's strictly earlier
views of at most ``history_days`` days. ``holdout`` = 1 marks the last day.

This is neither the log of the FedSubAvg paper, which is private, nor its task (clicks among impressions).
"""

from __future__ import annotations

import os
from typing import Annotated, Literal

import numpy as np
import polars as pl

from fedsub.data.clients import Array, Clients, Column
from fedsub.data.datasets.histories import clients_from, ranges
from fedsub.data.datasets.options import Says
from fedsub.data.datasets.source import Source
from fedsub.data.datasets.tables import Schema, Text
from fedsub.errors import DataError

HOME = "https://tianchi.aliyun.com/dataset/649"
BEHAVIOUR: Schema = {
    "user": pl.Int64, "item": pl.Int64, "category": pl.Int64, "behaviour": pl.String, "time": pl.Int64,
}  # fmt: skip
KINDS = ("pv", "buy", "cart", "fav")
DAY = 86_400
BEGIN = 1_511_539_200  # 25 November 2017, midnight in China
END = BEGIN + 9 * DAY
ATTEMPTS = 100  # draws for one negative before it is given up


def taobao_user_behaviour(
    path: str | os.PathLike[str],
    *,
    negatives: Annotated[
        Literal["popularity", "uniform"], Says("items of label 0: as often as they are viewed, or all alike")
    ] = "popularity",
    history_days: Annotated[int, Says("days that a history reaches back; the log has nine")] = 14,
    max_history: Annotated[int, Says("views kept of a history, the last ones")] = 50,
    min_samples: Annotated[int, Says("least number of samples of a user who is kept, both labels together")] = 32,
    max_clients: Annotated[
        int | None, Says("users drawn among those; memory grows with them, 2 GB for 10,000")
    ] = 10_000,
    seed: Annotated[int, Says("decides which users and which negatives", least=0)] = 0,
) -> Clients:
    """From ``UserBehavior.csv`` or ``UserBehavior.csv.zip``: columns user, item, category and both histories.

    The file (3.6 GB unpacked) is read in pieces, four times; only the kept users' views are held in memory.
    """
    with Source(path) as source:
        file = source.need("UserBehavior.csv", home=HOME, kinds=(".csv",))
        log = Text(file, BEHAVIOUR)
        log.check()
        draw = np.random.default_rng(seed)
        users = _candidates(log, min_samples, max_clients, draw)
        views = log.reduce(lambda t: _views(t).join(users.lazy(), on="user", how="semi").drop("behaviour"))
    distinct = views.group_by("user").agg(items=pl.col("item").n_unique())
    enough = users.join(
        distinct.filter(2 * pl.col("items") >= min_samples), on="user", how="semi", maintain_order="left"
    )
    if not len(enough):
        most = 2 * int(distinct["items"].to_numpy().max())
        raise DataError(f"No user has {min_samples:,} samples (the most is {most}); use a smaller min_samples.")
    views = views.join(enough.head(max_clients or len(enough)), on="user", how="semi")
    views = views.sort("user", "time", "item", "category")
    return _samples(views, draw, negatives, history_days * DAY, max_history, str(path))


def _views(log: pl.LazyFrame) -> pl.LazyFrame:
    return log.filter((pl.col("behaviour") == "pv") & pl.col("time").is_between(BEGIN, END - 1))


def _candidates(log: Text, min_samples: int, max_clients: int | None, draw: np.random.Generator) -> pl.DataFrame:
    """Users in the order in which they are drawn, by their number of views: that is cheap to count, and at least the
    number of their first views. A quarter more than wanted, for those who turn out to have too few.
    """
    kinds = log.reduce(lambda t: t.select(pl.col("behaviour").unique()))["behaviour"]
    if strange := sorted(set(kinds) - set(KINDS)):
        raise DataError(f"{log.path.name}: a behaviour is {strange[0]!r}, expected one of {', '.join(KINDS)}.")
    counts = log.reduce(lambda t: _views(t).group_by("user").len()).sort("user")
    if not len(counts):
        raise DataError(f"{log.path.name} has no page view (pv) from 25 November to 3 December 2017; see {HOME}")
    likely = counts.filter(2 * pl.col("len") >= min_samples).select("user")
    if not len(likely):
        most = 2 * int(counts["len"].to_numpy().max())
        raise DataError(f"No user has {min_samples:,} samples (the most is {most}); use a smaller min_samples.")
    wanted = len(likely) if max_clients is None else max_clients + max_clients // 4 + 100
    return likely[draw.permutation(len(likely))[:wanted]]


def _samples(
    views: pl.DataFrame, draw: np.random.Generator, negatives: str, reach: int, max_history: int, source: str
) -> Clients:
    """Both samples of every first view, sorted by user and time, and their histories."""
    names = {name: np.unique(views[name].to_numpy(), return_inverse=True) for name in ("user", "item", "category")}
    user, item, category = (names[name][1] for name in names)
    time = views["time"].to_numpy() - BEGIN
    first = np.flatnonzero(views.select(pl.struct("user", "item").is_first_distinct()).to_series().to_numpy())
    drawn, found = _negatives(user, item, first, draw, negatives)
    row = np.concatenate([first, drawn[found]])  # where item and category come from
    at = np.concatenate([first, first[found]])  # the view that a sample belongs to
    label = np.repeat([1, 0], [len(first), int(found.sum())])
    order = np.lexsort((1 - label, at))
    row, at, label = row[order], at[order], label[order]

    span = END - BEGIN + 1
    key = user * span + time  # sorted, since views are
    end = np.searchsorted(key, key[at], side="left")
    begin = np.searchsorted(key, user[at] * span + np.maximum(time[at] - reach, 0), side="left")
    columns = [
        Column("user", user[at] + 1, "user"),
        Column("item", item[row] + 1, "item"),
        Column("category", category[row] + 1, "category"),
        ranges("item_history", item + 1, begin, end, space="item", longest=max_history),
        ranges("category_history", category + 1, begin, end, space="category", longest=max_history),
        Column("label", label.astype(np.float32)),
        Column("holdout", (time[at] >= END - DAY - BEGIN).astype(np.int64)),
        Column("timestamp", time[at] + BEGIN),
    ]
    vocabulary = {name: np.concatenate([[0], known]) for name, (known, _) in names.items()}
    sizes = {name: len(known) for name, known in vocabulary.items()}
    owner = vocabulary["user"][user[at] + 1]
    return clients_from(owner, columns, sizes, vocabulary, padding=tuple(sizes), source=source)


def _negatives(user: Array, item: Array, first: Array, draw: np.random.Generator, how: str) -> tuple[Array, Array]:
    """For every first view a row whose item its user never viewed, and whether one was found in all attempts."""
    items = int(item.max()) + 1
    viewed = np.unique(user * items + item)
    pool = np.arange(len(item)) if how == "popularity" else np.unique(item, return_index=True)[1]
    rows = np.zeros(len(first), np.int64)
    open_ = np.arange(len(first))
    for _ in range(ATTEMPTS):
        rows[open_] = pool[draw.integers(len(pool), size=len(open_))]
        key = user[first[open_]] * items + item[rows[open_]]
        place = np.minimum(np.searchsorted(viewed, key), len(viewed) - 1)
        open_ = open_[viewed[place] == key]
        if not len(open_):
            break
    found = np.ones(len(first), bool)
    found[open_] = False
    return rows, found
