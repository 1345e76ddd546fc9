"""Synthetic MovieLens has the published shape, and labels as hard as the real ones."""

from __future__ import annotations

import numpy as np
import pytest

from fedsub.data import Clients
from fedsub.data.twins import movielens_like
from fedsub.errors import DataError

FEATURES = ["gender", "age", "movie", "gender_movie", "age_movie"]


def heat(clients: Clients, name: str) -> np.ndarray:
    space = clients.spaces[name]
    return np.bincount(space.rows, minlength=space.size)


def entropy(clients: Clients, *names: str) -> float:
    """Empirical entropy of the label given the named columns, in nats."""
    rows = clients.gather(np.arange(clients.samples), names, local=False)
    cell = np.ravel_multi_index([rows[n] for n in names], [clients.size(n) for n in names])
    count = np.bincount(cell)
    share = np.bincount(cell, weights=clients.columns["label"].values)[count > 0] / count[count > 0]
    inside = (share > 0) & (share < 1)
    p, weight = share[inside], count[count > 0][inside]
    return float((weight * -(p * np.log(p) + (1 - p) * np.log(1 - p))).sum() / count.sum())


def check_features(clients: Clients) -> None:
    """Crosses agree with their factors, and gender and age belong to the client."""
    movies = clients.size("movie")
    assert [clients.size(n) for n in FEATURES] == [2, 7, movies, 2 * movies, 7 * movies]
    rows = clients.gather(np.arange(clients.samples), FEATURES, local=False)
    np.testing.assert_array_equal(rows["gender_movie"], rows["gender"] * movies + rows["movie"])
    np.testing.assert_array_equal(rows["age_movie"], rows["age"] * movies + rows["movie"])
    assert (clients.spaces["gender"].counts == 1).all()
    assert (clients.spaces["age"].counts == 1).all()


@pytest.fixture(scope="module")
def full() -> Clients:
    return movielens_like()


def test_published_statistics(full):
    assert (len(full), full.samples, full.size("movie")) == (6040, 1_000_209, 3706)
    heats = [heat(full, name) for name in FEATURES]
    every = np.concatenate(heats)
    assert every.max() == heats[0][1] == 4331
    assert every[every > 0].min() == 1  # dispersion 4331 / 1
    assert heats[2].min() == 1  # every movie is seen, and some once
    assert 50 < (heats[2] == 1).sum() < 250
    assert 2500 < heats[2].max() < 4331
    assert heats[1].tolist() == [222, 1103, 2096, 1193, 550, 496, 380]
    assert full.sizes.min() == 20
    assert 80 < np.median(full.sizes) < 110
    check_features(full)


def test_no_movie_twice_per_user(full):
    np.testing.assert_array_equal(full.spaces["movie"].counts, full.sizes)


def test_labels_are_as_hard_as_the_real_ones(full):
    assert abs(full.columns["label"].values.mean() - 0.575) < 0.003
    assert 0.57 < entropy(full, "movie") < 0.61
    assert 0.54 < entropy(full, "gender", "age", "movie") < 0.59


def test_seed_and_scale():
    a, b, c = (movielens_like(scale=0.02, seed=s) for s in (1, 1, 2))
    assert a.fingerprint == b.fingerprint != c.fingerprint
    assert (len(a), a.samples, a.size("movie")) == (121, 20004, 524)
    assert heat(a, "gender").tolist() == [34, 87]
    assert heat(a, "movie").min() >= 1
    np.testing.assert_array_equal(a.spaces["movie"].counts, a.sizes)
    check_features(a)


@pytest.mark.parametrize(
    "arguments",
    [
        {"scale": 0},
        {"clients": 0},
        {"movies": 10},
        {"samples": 100},
        {"samples": 10**8},
        {"positive": 1.0},
        {"seed": -1},
        {"clients": 50, "samples": 1000, "movies": 1500},
    ],
)
def test_impossible_shapes(arguments):
    with pytest.raises(DataError):
        movielens_like(**arguments)
