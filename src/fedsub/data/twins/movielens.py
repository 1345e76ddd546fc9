"""Synthetic data in the shape of MovieLens-1M, with a planted truth: nothing to download.

Same size and skew as the real data (6,040 users, 1,000,209 ratings, 3,706 movies, 4,331 men, a long tail
of movies seen once), and labels drawn from a known logistic model of the same five features:

    logit = intercept + quality[movie] + taste[gender, movie] + taste[age, movie]
"""

from __future__ import annotations

import numpy as np

from fedsub.data.clients import Array, Clients, Column, Space
from fedsub.data.twins import draws
from fedsub.data.twins.twin import Block, Table1, Twin, check, join, label_column, space
from fedsub.errors import DataError

MEN = 4331 / 6040
AGE_COUNTS = np.array([222, 1103, 2096, 1193, 550, 496, 380])  # users per age band in MovieLens-1M
LEAST = 20  # ratings of the least active user, as in MovieLens
POSITIVE = 0.575  # share of ratings of four stars or more
WATCHED, LIKED = 1, 2  # purposes of draws
CLIENTS, SAMPLES, MOVIES = 6040, 1_000_209, 3706


def movielens_like(
    *,
    clients: int = CLIENTS,
    samples: int = SAMPLES,
    movies: int = MOVIES,
    seed: int = 0,
    scale: float = 1.0,
    positive: float = POSITIVE,
) -> Clients:
    """Synthetic MovieLens-1M: columns gender, age, movie, gender_movie, age_movie and ``label``.

    ``scale`` changes clients and samples in proportion and movies by its square root, so that a client
    keeps its 166 ratings and a movie still has several viewers. No user rates a movie twice.
    """
    check("movielens_like", scale, seed)
    return join(MovieLensPlan(scale, seed, clients=clients, samples=samples, movies=movies, positive=positive))


class MovieLensPlan:
    """Who the users are, how much they rate, and the planted model; the ratings follow block by block."""

    def __init__(
        self,
        scale: float,
        seed: int,
        *,
        clients: int = CLIENTS,
        samples: int = SAMPLES,
        movies: int = MOVIES,
        positive: float = POSITIVE,
    ) -> None:
        clients, samples, movies = round(clients * scale), round(samples * scale), round(movies * scale**0.5)
        _check_shape(clients, samples, movies, positive)
        draw = np.random.default_rng([seed, 1])
        self.seed, self.movies = seed, movies
        self.gender = draw.permutation((np.arange(clients) < round(clients * MEN)).astype(np.int64))
        self.age = draw.permutation(np.repeat(np.arange(len(AGE_COUNTS)), draws.shares(AGE_COUNTS, clients)))
        popularity = draw.permutation(_popularity(movies))
        self.weights = draws.cumulated(popularity)
        self.sizes = draws.sizes(draw, clients, samples, least=LEAST, most=int(0.625 * movies), spread=1.05)
        self.first_viewers = draws.anywhere(draw, self.sizes, np.arange(movies))  # leaves no movie unseen
        fame = np.log(popularity)  # popular movies tend to be better, as in the real data
        self.quality = draw.normal(0, 0.85, movies) + 0.5 * (fame - fame.mean()) / max(fame.std(), 1e-9)
        self.by_gender = draw.normal(0, 0.3, (2, movies))
        self.by_age = draw.normal(0, 0.4, (len(AGE_COUNTS), movies))
        # Users are in no order, so the first thousand stand for all.
        logits = self._logits(*self._watched(0, min(clients, 1024)))
        self.intercept = draws.intercept(lambda shift: float(draws.sigmoid(logits + shift).mean()), positive)

    @property
    def spaces(self) -> tuple[Space, ...]:
        sizes = {"gender": 2, "age": len(AGE_COUNTS), "movie": self.movies}
        sizes |= {f"{name}_movie": sizes[name] * self.movies for name in ("gender", "age")}
        return tuple(space(name, size) for name, size in sizes.items())

    def block(self, begin: int, end: int) -> Block:
        user, movie = self._watched(begin, end)
        probability = draws.sigmoid(self._logits(user, movie) + self.intercept)
        sizes = self.sizes[begin:end]
        label = draws.uniforms(draws.client_keys(self.seed, LIKED, begin, end), sizes) < probability
        gender, age = self.gender[user], self.age[user]
        rows = {"gender": gender, "age": age, "movie": movie}
        rows |= {"gender_movie": gender * self.movies + movie, "age_movie": age * self.movies + movie}
        columns = [Column(name, values, name) for name, values in rows.items()]
        return Block(sizes, [*columns, label_column(label)], probability)

    def _watched(self, begin: int, end: int) -> tuple[Array, Array]:
        keys = draws.client_keys(self.seed, WATCHED, begin, end)
        given = self.first_viewers.within(begin, end)
        user, movie = draws.distinct(keys, self.sizes[begin:end], self.weights, given)
        return user + begin, movie

    def _logits(self, user: Array, movie: Array) -> Array:
        return self.quality[movie] + self.by_gender[self.gender[user], movie] + self.by_age[self.age[user], movie]


def _check_shape(clients: int, samples: int, movies: int, positive: float) -> None:
    if clients < 1 or movies < 2 * LEAST or not LEAST * clients <= samples <= clients * movies // 2:
        raise DataError(
            f"{samples:,} samples do not fit {clients:,} clients and {movies:,} movies: every client needs "
            f"at least {LEAST}, and on average at most half of all movies; change one of the three."
        )
    if not 0 < positive < 1:
        raise DataError(f"movielens_like(positive={positive!r}) must be a share between 0 and 1.")
    if samples < movies:
        raise DataError(f"{samples:,} samples cannot name each of {movies:,} movies once; ask for fewer movies.")


def _popularity(movies: int) -> Array:
    """Relative weights by rank, fitted by eye to MovieLens: a power law whose tail falls off faster."""
    rank = np.arange(movies) / movies
    return (1 + 370 * rank) ** -0.65 * np.exp(-3 * rank**2 - 4.5 * rank**10)


MOVIELENS = Twin(
    "movielens-like",
    "likes of movies by gender, age and movie: MovieLens-1M",
    Table1(CLIENTS, SAMPLES, 4331),
    MovieLensPlan,
)
