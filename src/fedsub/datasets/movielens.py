"""MovieLens-1M as five id columns: gender, age, movie, gender x movie, age x movie.

A sample is one rating; its label is 1 for four stars or more. With all five columns the hottest feature
is gender = M (4,331 of 6,040 users) and the coldest has heat 1: the dispersion of 4,331 that Ding et al.,
"Federated Submodel Optimization for Hot and Cold Data Features" (NeurIPS 2022), report.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from fedsub.data.clients import Array, Clients
from fedsub.data.ingest import from_arrays
from fedsub.data.store import fingerprint
from fedsub.errors import DataError

AGES = (1, 18, 25, 35, 45, 50, 56)  # lower ends of the age bands, as coded in the release
FEATURES = ("gender", "age", "movie", "gender_movie", "age_movie")
HOME = "https://grouplens.org/datasets/movielens/1m/"
RATINGS = ("user_id", "movie_id", "rating", "timestamp")
USERS = ("user_id", "gender", "age")


def movielens(path: str | os.PathLike[str], *, positive: int = 4) -> Clients:
    """MovieLens-1M from a directory with ratings and users, as ``.parquet`` or the original ``.dat``.

    Clients are users, ``label`` is ``rating >= positive``; ``timestamp`` is kept as a plain int64 column.
    """
    folder = Path(path)
    ratings, users = _read(folder, "ratings", RATINGS), _read(folder, "users", USERS)
    joined = ratings.join(users, on="user_id", how="left", maintain_order="left")
    if len(joined) != len(ratings):
        raise DataError(f"{folder}: the users table lists a user more than once; expected one row per user.")
    for name, known in (("gender", ("F", "M")), ("age", AGES)):
        strange = joined.filter(~pl.col(name).is_in(known).fill_null(False))
        if len(strange):
            user, seen = strange["user_id"][0], strange[name][0]
            raise DataError(
                f"{folder}: user {user} has {name} {seen!r}, expected one of {known}; "
                f"use the complete release from {HOME}"
            )
    gender = (joined["gender"] == "M").to_numpy().astype(np.int64)
    age = np.searchsorted(AGES, joined["age"].to_numpy())
    titles, movie = np.unique(joined["movie_id"].cast(pl.Int64).to_numpy(), return_inverse=True)
    label = (joined["rating"] >= positive).to_numpy()
    extra = {"timestamp": joined["timestamp"].to_numpy()}
    clients = build(joined["user_id"].to_numpy(), gender, age, movie, label, movies=len(titles), extra=extra)
    named = {"gender": np.array(["F", "M"]), "age": np.array(AGES), "movie": titles}
    spaces = {k: replace(s, vocabulary=named.get(k)) for k, s in clients.spaces.items()}
    named_too = replace(clients, spaces=spaces, source=str(folder))
    return replace(named_too, fingerprint=fingerprint(named_too))


def build(
    user: Array,
    gender: Array,
    age: Array,
    movie: Array,
    label: Array,
    *,
    movies: int,
    extra: dict[str, Array] | None = None,
) -> Clients:
    """The five columns from row numbers: gender 0..1 (F, M), age 0..6, movie 0..movies-1."""
    extra = extra or {}
    columns = {
        "gender": gender,
        "age": age,
        "movie": movie,
        "gender_movie": gender * movies + movie,
        "age_movie": age * movies + movie,
        "label": label,
    }
    sizes = dict(zip(FEATURES, (2, len(AGES), movies, 2 * movies, len(AGES) * movies), strict=True))
    return from_arrays(columns | extra, user, ids=FEATURES, label="label", values=list(extra), sizes=sizes)


def _read(folder: Path, table: str, names: tuple[str, ...]) -> pl.DataFrame:
    """The first columns of a table; ``.dat`` separates by '::', which is two separators to a CSV reader."""
    parquet, dat = folder / f"{table}.parquet", folder / f"{table}.dat"
    try:
        if parquet.is_file():
            return pl.read_parquet(parquet, columns=list(names))
        if dat.is_file():
            wide = pl.read_csv(dat, separator=":", has_header=False, infer_schema_length=None)
            kept = wide.columns[::2][: len(names)]
            if len(kept) == len(names):
                return wide.select(pl.col(old).alias(new) for old, new in zip(kept, names, strict=True))
            raise DataError(f"{dat} has {len(kept)} columns, expected {len(names)} or more separated by '::'.")
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{folder}: {table} cannot be read: {error}. Get the release from {HOME}") from error
    raise DataError(
        f"{folder} has neither {table}.parquet nor {table}.dat; unpack the release from {HOME} there, "
        "or use movielens_like() for synthetic data of the same shape."
    )
