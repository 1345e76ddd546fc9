"""MovieLens latest-small: a movie and whether the user liked it. There is no gender and no age in this release.

610 users, 100,836 ratings of 9,724 movies; the larger releases (ml-25m and others) have the same `ratings.csv` and are
read alike. Federated matrix factorisation (Chai et al.; the FedMAvg poster, ICASSP 2021) is tried on it.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Annotated

import polars as pl

from fedsub.data.clients import Clients
from fedsub.data.datasets.options import Says
from fedsub.data.datasets.source import Source
from fedsub.data.datasets.tables import Schema, Text, parquet
from fedsub.data.ingest import from_frame

HOME = "https://grouplens.org/datasets/movielens/latest/"
RATINGS: Schema = {"userId": pl.Int64, "movieId": pl.Int64, "rating": pl.Float64, "timestamp": pl.Int64}


def movielens_latest_small(
    path: str | os.PathLike[str],
    *,
    positive: Annotated[float, Says("least rating (half stars) of label 1", least=0.5)] = 4.0,
) -> Clients:
    """From ``ml-latest-small.zip``, its folder, ``ratings.csv`` or ``ratings.parquet``.

    ``movie`` is the one id column, ``label`` is ``rating >= positive``; ``rating`` and ``timestamp`` are plain values.
    """
    with Source(path) as source:
        file = source.need("ratings.parquet", "ratings.csv", home=HOME)
        ratings = parquet(file, RATINGS) if file.suffix == ".parquet" else Text(file, RATINGS, header=True).collect()
    frame = ratings.rename({"movieId": "movie"}).with_columns(label=pl.col("rating") >= positive)
    clients = from_frame(frame, "userId", ids=["movie"], label="label", values=["rating", "timestamp"])
    return replace(clients, source=str(path))
