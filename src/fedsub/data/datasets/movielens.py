"""MovieLens-1M as five id columns: gender, age, movie, gender x movie, age x movie.

A sample is one rating; its label is 1 for four stars or more. With all five columns the hottest feature
is gender = M (4,331 of 6,040 users) and the coldest has heat 1: the dispersion of 4,331 that Ding et al.,
"Federated Submodel Optimization for Hot and Cold Data Features" (NeurIPS 2022), report.

Nobody rates a movie twice, so a client's own weights of movies say nothing about its other movies; its own weights of
genres do. For personal models there is therefore a sixth column, genre, if asked for.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import polars as pl

from fedsub.data.clients import Array, Clients
from fedsub.data.datasets.options import Says
from fedsub.data.datasets.source import Source
from fedsub.data.datasets.tables import Schema, Text, parquet
from fedsub.data.ingest import from_arrays
from fedsub.data.store import fingerprint
from fedsub.errors import DataError

AGES = (1, 18, 25, 35, 45, 50, 56)  # lower ends of the age bands, as coded in the release
FEATURES: tuple[str, ...] = ("gender", "age", "movie", "gender_movie", "age_movie")
HOME = "https://grouplens.org/datasets/movielens/1m/"
RATINGS: Schema = {"user_id": pl.Int64, "movie_id": pl.Int64, "rating": pl.Int64, "timestamp": pl.Int64}
USERS: Schema = {"user_id": pl.Int64, "gender": pl.String, "age": pl.Int64, "occupation": pl.String, "zip": pl.String}
MOVIES: Schema = {"movie_id": pl.Int64, "title": pl.String, "genres": pl.String}
UNUSED = ("occupation", "zip", "title")


def movielens(
    path: str | os.PathLike[str],
    *,
    positive: Annotated[int, Says("least number of stars of label 1")] = 4,
    genres: Annotated[Literal["none", "list"], Says("a column of the movie's genres, up to six ids")] = "none",
) -> Clients:
    """MovieLens-1M from ``ml-1m.zip`` or a directory with ratings and users, as ``.parquet`` or the original ``.dat``.

    Clients are users, ``label`` is ``rating >= positive``; ``timestamp`` is kept as a plain int64 column. With
    ``genres="list"`` there is a column ``genre`` too, whose row 0 means nothing; this needs the movies table.
    """
    folder = Path(path)
    with Source(path) as source:
        ratings, users = read_table(source, "ratings", RATINGS), read_table(source, "users", USERS)
        movies = read_table(source, "movies", MOVIES) if genres == "list" else None
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
    titles, movie = np.unique(joined["movie_id"].to_numpy(), return_inverse=True)
    label = (joined["rating"] >= positive).to_numpy()
    extra = {"timestamp": joined["timestamp"].to_numpy()}
    known, of_movie = (None, None) if movies is None else genres_of(movies, titles, folder)
    clients = build(
        joined["user_id"].to_numpy(), gender, age, movie, label, movies=len(titles), extra=extra,
        genre=None if of_movie is None else of_movie[movie], genres=0 if known is None else len(known),
    )  # fmt: skip
    named = {"gender": np.array(["F", "M"]), "age": np.array(AGES), "movie": titles, "genre": known}
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
    genre: Array | None = None,
    genres: int = 0,
) -> Clients:
    """The five columns from row numbers: gender 0..1 (F, M), age 0..6, movie 0..movies-1; genre [samples, width]."""
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
    ids, padding = [*FEATURES], list[str]()
    if genre is not None:
        columns["genre"], sizes["genre"] = genre, genres
        ids.append("genre")
        padding.append("genre")
    return from_arrays(
        columns | extra, user, ids=ids, label="label", values=list(extra), sizes=sizes, padding=padding
    )  # fmt: skip


def genres_of(movies: pl.DataFrame, wanted: Array, folder: Path) -> tuple[Array, Array]:
    """The names of genres, "" first, and the genres of every wanted movie, int64 [movies, width] filled up with 0."""
    of = dict(zip(movies["movie_id"].to_list(), movies["genres"].to_list(), strict=True))
    for movie in wanted.tolist():
        if movie not in of:
            raise DataError(f"{folder}: the movies table lacks movie {movie}; use the complete release from {HOME}")
    lists = [of[movie].split("|") for movie in wanted.tolist()]
    names = np.array(["", *sorted({name for one in lists for name in one})])
    row = {name: k for k, name in enumerate(names.tolist())}
    out = np.zeros((len(lists), max(map(len, lists))), np.int64)
    for k, one in enumerate(lists):
        out[k, : len(one)] = [row[name] for name in one]
    return names, out


def read_table(source: Source, table: str, schema: Schema, unused: tuple[str, ...] = UNUSED) -> pl.DataFrame:
    """A table of the release; of a Parquet file without the columns that are not needed."""
    file = source.need(f"{table}.parquet", f"{table}.dat", home=HOME)
    if file.suffix == ".dat":
        return Text(file, schema, "::", encoding="latin-1").collect()
    return parquet(file, {name: kind for name, kind in schema.items() if name not in unused})
