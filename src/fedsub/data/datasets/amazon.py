"""Amazon Electronics as the released FedSubAvg code prepares it: will this user give this item five stars?

A record is (user, item, rating, time). A user's equal times are moved apart by one second each, in the order of the
file. Users with 40 records or more are kept (the paper says "more than 40", the code 40). Label 1 is five stars. The
history is the user's earlier items with label 1, oldest first. Users and items are numbered from 1 in the order of
their names; row 0 means "nothing here". Test samples (``holdout`` = 1) are those later than 1,385,000,000.

The released code sorts times as text, which puts years before 9 September 2001 last (``time_order="released"``), and
its reader replaces every id of a history by 0 (``history="released"``).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import polars as pl

from fedsub.data.clients import Array, Clients, Column
from fedsub.data.datasets.histories import clients_from, earlier_positives, ranges
from fedsub.data.datasets.options import Says
from fedsub.data.datasets.source import Source
from fedsub.data.datasets.tables import Schema, Text, parquet
from fedsub.errors import DataError

HOME = "https://jmcauley.ucsd.edu/data/amazon/index_2014.html"
LAST_TRAINING_TIME = 1_385_000_000
USERS, ITEMS = 1_870, 33_136  # rows of the authors' tables, with row 0
LEAST = 40
REVIEWS: Schema = {"reviewerID": pl.String, "asin": pl.String, "overall": pl.Float64, "unixReviewTime": pl.Int64}
RATINGS: Schema = {"user": pl.String, "item": pl.String, "rating": pl.Float64, "time": pl.Int64}
INTERACTIONS: Schema = {
    "client_id": pl.Int64, "time_rank": pl.Int64, "item_id": pl.Int64, "label": pl.Int64, "holdout": pl.Int64,
    "position": pl.Int64,
}  # fmt: skip


def amazon_electronics(
    path: str | os.PathLike[str],
    *,
    history: Annotated[
        Literal["intended", "released"], Says("earlier five-star items; or, as released, as many zeros")
    ] = "intended",
    time_order: Annotated[
        Literal["intended", "released"], Says("times compared as numbers; or, as released, as text")
    ] = "intended",
    max_history: Annotated[int | None, Says("items kept of a history, the last ones")] = None,
    min_samples: Annotated[int, Says("least number of records of a user who is kept (original files)")] = LEAST,
    split: Annotated[
        Literal["holdout", "ending"],
        Says("holdout column: the release's own test part; or the last fifth of each client"),
    ] = "holdout",
) -> Clients:
    """From ``reviews_Electronics_5.json.gz`` (the paper's: 5-core), ``ratings_Electronics.csv``, or the Parquet layout.

    The Parquet layout (``train_interactions.parquet``) is the authors' training part with their own ids. Its times are
    lost; its ``holdout`` marks the last fifth of each client.
    """
    with Source(path) as source:
        file = source.need(
            "train_interactions.parquet", "reviews_Electronics_5.json", "ratings_Electronics.csv",
            home=HOME, kinds=(".parquet", ".json", ".csv"),
        )  # fmt: skip
        if file.suffix == ".parquet":
            frame, users, items = _authors(file, time_order, min_samples), None, None
        else:
            frame, users, items = _original(file, time_order, min_samples)
    owner, label = frame["user"].to_numpy(), frame["label"].to_numpy()
    item = frame["item"].to_numpy()
    if split == "ending":
        frame = frame.with_columns(holdout=_last_fifth().cast(pl.Int64))
    positive, begin, end = earlier_positives(owner, label)
    ids = item[positive] if history == "intended" else np.zeros(len(positive), np.int64)
    columns = [
        Column("user", owner, "user"),
        Column("item", item, "item"),
        ranges("history", ids, begin, end, space="item", longest=max_history),
        Column("label", label.astype(np.float32)),
        Column("holdout", frame["holdout"].to_numpy()),
    ]
    if history == "released":  # zeros look like padding: a model learns how many there are from a column of its own
        lists = columns[2].starts
        assert lists is not None
        columns.append(Column("history_length", np.diff(lists)))
    sizes = {"user": USERS if users is None else len(users), "item": ITEMS if items is None else len(items)}
    named = {} if users is None or items is None else {"user": users, "item": items}
    names = owner if users is None else users[owner]
    return clients_from(names, columns, sizes, named, padding=("user", "item"), source=str(path))


def _authors(file: Path, time_order: str, min_samples: int) -> pl.DataFrame:
    """The authors' training part: user, item, label, holdout, sorted by user and time."""
    if min_samples != LEAST:
        raise DataError(
            f"min_samples={min_samples}: {file.name} was cut at {LEAST} records by its authors, test part included; "
            "another number needs the original files."
        )
    frame = parquet(file, INTERACTIONS).sort("client_id", "time_rank" if time_order == "intended" else "position")
    for name, size in (("client_id", USERS), ("item_id", ITEMS)):
        if len(bad := frame.filter(~pl.col(name).is_between(1, size - 1))):
            raise DataError(f"{file.name}: {name} is {bad[name][0]}, expected 1 to {size - 1:,}; copy the file again.")
    return frame.select(user="client_id", item="item_id", label="label", holdout="holdout")


def _original(file: Path, time_order: str, min_samples: int) -> tuple[pl.DataFrame, Array, Array]:
    """(user, item, label, holdout as rows and marks, sorted by user and time; names of users; names of items)."""
    if file.suffix == ".json":
        records = Text(file, REVIEWS, separator=None).collect().select(
            user="reviewerID", item="asin", rating="overall", time="unixReviewTime"
        )  # fmt: skip
    else:
        records = Text(file, RATINGS).collect()
    kept = records.filter(pl.len().over("user") >= min_samples)
    if not len(kept):
        most = records.group_by("user").len()["len"].max()
        raise DataError(f"No user has {min_samples:,} records (the most is {most}); use a smaller min_samples.")
    users, items = (np.array(["", *kept[name].unique().sort()]) for name in ("user", "item"))
    time = pl.Series("time", apart(kept["user"].to_list(), kept["time"].to_list()), pl.Int64)
    order = pl.col("time") if time_order == "intended" else pl.col("time").cast(pl.String)
    frame = kept.with_columns(time).select(
        user=pl.col("user").rank("dense").cast(pl.Int64),
        item=pl.col("item").rank("dense").cast(pl.Int64),
        label=(pl.col("rating") >= 5).cast(pl.Int64),
        holdout=(pl.col("time") > LAST_TRAINING_TIME).cast(pl.Int64),
        order=order,
    )
    return frame.sort("user", "order").drop("order"), users, items


def apart(owner: list, time: list[int]) -> list[int]:
    """Times that differ within an owner: one that is taken already moves on by a second until it is free.

    The outcome depends on the order of the rows, as in the released code; that is why this is a loop.
    """
    taken: set[tuple[object, int]] = set()
    out = []
    for who, when in zip(owner, time, strict=True):
        while (who, when) in taken:
            when += 1
        taken.add((who, when))
        out.append(when)
    return out


def _last_fifth() -> pl.Expr:
    """The last floor(n / 5) rows of every user."""
    n, place = pl.len().over("user"), pl.int_range(pl.len()).over("user")
    return place >= n - n // 5
