"""Synthetic data in the shape of MovieLens-1M, with a planted truth: nothing to download.

Same size and skew as the real data (6,040 users, 1,000,209 ratings, 3,706 movies, 4,331 men, a long tail
of movies seen once), and labels drawn from a known logistic model of the same five features:

    logit = intercept + quality[movie] + taste[gender, movie] + taste[age, movie]
"""

from __future__ import annotations

import numpy as np

from fedsub.data.clients import Array, Clients
from fedsub.datasets.movielens import build
from fedsub.errors import DataError

MEN = 4331 / 6040
AGE_COUNTS = np.array([222, 1103, 2096, 1193, 550, 496, 380])  # users per age band in MovieLens-1M
LEAST = 20  # ratings of the least active user, as in MovieLens
POSITIVE = 0.575  # share of ratings of four stars or more
USERS_AT_ONCE = 512


def movielens_like(
    *,
    clients: int = 6040,
    samples: int = 1_000_209,
    movies: int = 3706,
    seed: int = 0,
    scale: float = 1.0,
    positive: float = POSITIVE,
) -> Clients:
    """Synthetic MovieLens-1M: columns gender, age, movie, gender_movie, age_movie and ``label``.

    ``scale`` shrinks clients and samples in proportion and movies by its square root, so that a client
    keeps its 166 ratings and a movie still has several viewers. No user rates a movie twice.
    """
    if not scale > 0:
        raise DataError(f"movielens_like(scale={scale!r}) must be positive; 1.0 is the size of MovieLens-1M.")
    clients, samples = round(clients * scale), round(samples * scale)
    movies = round(movies * scale**0.5)
    if clients < 1 or movies < 2 * LEAST or not LEAST * clients <= samples <= clients * movies // 2:
        raise DataError(
            f"{samples:,} samples do not fit {clients:,} clients and {movies:,} movies: every client needs "
            f"at least {LEAST}, and on average at most half of all movies; change one of the three."
        )
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise DataError(f"movielens_like(seed={seed!r}) must be a whole number, 0 or more.")
    if not 0 < positive < 1:
        raise DataError(f"movielens_like(positive={positive!r}) must be a share between 0 and 1.")
    if samples < movies:
        raise DataError(f"{samples:,} samples cannot name each of {movies:,} movies once; ask for fewer movies.")
    rng = np.random.default_rng([seed, 1])
    gender = rng.permutation((np.arange(clients) < round(clients * MEN)).astype(np.int64))
    age = rng.permutation(np.repeat(np.arange(len(AGE_COUNTS)), _shares(AGE_COUNTS, clients)))
    popularity = rng.permutation(_popularity(movies))
    sizes = _sizes(rng, clients, samples, most=int(0.625 * movies))
    user = np.repeat(np.arange(clients), sizes)
    movie = _watched(rng, popularity, sizes)
    logits = _logits(rng, popularity, gender[user], age[user], movie, positive)
    label = rng.random(samples) < _sigmoid(logits)
    return build(user, gender[user], age[user], movie, label, movies=movies)


def _shares(weights: Array, total: int) -> Array:
    """``total`` split in proportion, in whole numbers (largest remainders first)."""
    exact = weights * (total / weights.sum())
    counts = np.floor(exact).astype(np.int64)
    short = total - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:short]] += 1
    return counts


def _sizes(rng: np.random.Generator, clients: int, samples: int, most: int) -> Array:
    """Log-normal numbers of ratings between ``LEAST`` and ``most`` that sum to ``samples`` exactly."""
    shape = rng.lognormal(0.0, 1.05, clients)
    low, high = 0.0, samples / shape.min()
    for _ in range(60):  # the clipped total grows with the factor, so halve the interval
        factor = (low + high) / 2
        total = np.clip(np.floor(shape * factor), LEAST, most).sum()
        low, high = (factor, high) if total <= samples else (low, factor)
    sizes = np.clip(np.floor(shape * low), LEAST, most).astype(np.int64)
    while short := samples - int(sizes.sum()):  # the few that rounding left over
        room = np.flatnonzero(sizes < most)
        sizes[rng.permutation(room)[:short]] += 1
    return sizes


def _popularity(movies: int) -> Array:
    """Relative weights by rank, fitted by eye to MovieLens: a power law whose tail falls off faster."""
    rank = np.arange(movies) / movies
    return (1 + 370 * rank) ** -0.65 * np.exp(-3 * rank**2 - 4.5 * rank**10)


def _watched(rng: np.random.Generator, popularity: Array, sizes: Array) -> Array:
    """Distinct movies for every user, grouped by user in random order; every movie has a viewer.

    Keeping the ``k`` smallest of Exponential / weight draws ``k`` movies one after another by weight
    without replacement (Efraimidis and Spirakis, 2006). One first viewer per movie, whose key is below
    all others, leaves no movie unseen.
    """
    movies, owner = len(popularity), np.repeat(np.arange(len(sizes)), sizes)
    # Drawn from the samples, so that nobody gets more first views than ratings.
    first_viewer = owner[rng.choice(len(owner), movies, replace=False)]
    found: list[Array] = []
    for begin in range(0, len(sizes), USERS_AT_ONCE):
        count = sizes[begin : begin + USERS_AT_ONCE]
        keys = rng.standard_exponential((len(count), movies)) / popularity
        here = np.flatnonzero((first_viewer >= begin) & (first_viewer < begin + len(count)))
        keys[first_viewer[here] - begin, here] = -rng.random(len(here))
        limit = np.take_along_axis(np.sort(keys, axis=1), count[:, None] - 1, axis=1)
        found.append(np.nonzero(keys <= limit)[1])
    return np.concatenate(found)[np.lexsort((rng.random(len(owner)), owner))]


def _logits(
    rng: np.random.Generator, popularity: Array, gender: Array, age: Array, movie: Array, positive: float
) -> Array:
    """The planted model at every sample; popular movies tend to be better, as in the real data."""
    movies = len(popularity)
    fame = np.log(popularity)
    quality = rng.normal(0, 0.85, movies) + 0.5 * (fame - fame.mean()) / max(fame.std(), 1e-9)
    by_gender = rng.normal(0, 0.3, (2, movies))
    by_age = rng.normal(0, 0.4, (len(AGE_COUNTS), movies))
    logits = quality[movie] + by_gender[gender, movie] + by_age[age, movie]
    low, high = -20.0, 20.0
    for _ in range(50):  # the intercept that gives the share of positive labels
        middle = (low + high) / 2
        low, high = (middle, high) if _sigmoid(logits + middle).mean() < positive else (low, middle)
    return logits + low


def _sigmoid(logits: Array) -> Array:
    return 1 / (1 + np.exp(-logits))
