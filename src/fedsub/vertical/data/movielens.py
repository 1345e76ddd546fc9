"""MovieLens-1M divided between two parties. A sample is one rating; its label is 1 for four stars or more.

    division    label party                          other party
    profile     "ratings": movie, history            "profile": gender, age, occupation, genre
    history     "candidate": movie, genre            "sequence": history

``history`` are the last movies that the user liked before, up to ``recent`` of them, and row 0 means nothing;
``genre`` are up to six genres of the movie, likewise. The division ``history`` is that of a network with attention
over what a person liked, candidate and history on different sides; histories are made of earlier labels, so it shows
how to train and not how labels are kept secret.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import polars as pl

from fedsub.checks import check_whole
from fedsub.data.clients import Array, Clients
from fedsub.data.datasets.histories import earlier_positives, ranges
from fedsub.data.datasets.movielens import AGES, HOME, MOVIES, RATINGS, USERS, genres_of, read_table
from fedsub.data.datasets.source import Source
from fedsub.data.ingest import from_arrays
from fedsub.errors import DataError, nearest
from fedsub.vertical.data.sides import Sides

DIVISIONS = ("profile", "history")
OCCUPATIONS = 21


def movielens_sides(
    path: str | os.PathLike[str],
    *,
    division: str = "profile",
    recent: int = 20,
    positive: int = 4,
    users: int | None = None,
) -> Sides:
    """The two tables, from ``ml-1m.zip`` or a directory; ``users`` keeps the first so many users.

    A sample's id is 10,000 · user + movie, as the release numbers them. Nearly all memory and time goes into
    histories: fewer ``users`` and a shorter ``recent`` cost less.
    """
    if division not in DIVISIONS:
        raise DataError(f"division={division!r} is unknown: {nearest(str(division), DIVISIONS)}")
    check_whole("recent", recent, 1, error=DataError)
    folder = Path(path)
    with Source(folder) as source:
        ratings = read_table(source, "ratings", RATINGS)
        people = read_table(source, "users", USERS, unused=("zip",))
        movies = read_table(source, "movies", MOVIES)
    if users is not None:
        ratings = ratings.filter(pl.col("user_id") <= check_whole("users", users, 1, error=DataError))
    rows = ratings.sort("user_id", "timestamp", "movie_id").join(
        people, on="user_id", how="left", maintain_order="left"
    )
    if len(rows) != len(ratings) or rows["gender"].null_count():
        raise DataError(f"{folder}: ratings and users do not fit together; use the complete release from {HOME}")
    titles, movie = np.unique(rows["movie_id"].to_numpy(), return_inverse=True)
    names, of_movie = genres_of(movies, titles, folder)
    label = (rows["rating"] >= positive).to_numpy()
    user, movie = rows["user_id"].to_numpy(), movie.astype(np.int32) + 1  # row 0 means nothing
    ids = 10_000 * user + rows["movie_id"].to_numpy()
    arrays = {
        "movie": movie,
        "history": _histories(user, movie, label, recent),
        "label": label,
        "gender": (rows["gender"] == "M").to_numpy().astype(np.int32),
        "age": np.searchsorted(AGES, rows["age"].to_numpy()),
        "occupation": rows["occupation"].cast(pl.Int32).to_numpy(),
        "genre": of_movie[movie - 1],
    }
    sizes = {"gender": 2, "age": len(AGES), "occupation": OCCUPATIONS, "genre": len(names), "movie": len(titles) + 1}

    def table(*columns: str, label: str | None = None) -> Clients:
        spaces: dict[str, list[str]] = {}
        for name in columns:
            spaces.setdefault("movie" if name == "history" else name, []).append(name)
        return from_arrays(
            {name: arrays[name] for name in columns + ((label,) if label else ())}, ids, ids=spaces, label=label,
            sizes={name: sizes[name] for name in spaces}, padding=[n for n in spaces if n in ("movie", "genre")],
        )  # fmt: skip

    if division == "profile":
        who = table("gender", "age", "occupation", "genre")
        return Sides({"ratings": table("movie", "history", label="label"), "profile": who}, "ratings")
    return Sides({"candidate": table("movie", "genre", label="label"), "sequence": table("history")}, "candidate")


def _histories(user: Array, movie: Array, label: Array, recent: int) -> Array:
    """Of each row the last movies that its user liked before, int32 [rows, recent], filled up with 0."""
    positive, begin, end = earlier_positives(user, label)
    lists = ranges("history", movie[positive], begin, end, space="movie", longest=recent)
    assert lists.starts is not None
    counts = np.diff(lists.starts)
    out = np.zeros((len(user), recent), np.int32)
    out[np.arange(recent) < counts[:, None]] = lists.values
    return out
