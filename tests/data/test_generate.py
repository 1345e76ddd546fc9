"""MovieLens is read alike from the original files and from Parquet."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from worlds import there

from fedsub.data import Clients
from fedsub.data.datasets import movielens
from fedsub.errors import DataError

FEATURES = ["gender", "age", "movie", "gender_movie", "age_movie"]


def heat(clients: Clients, name: str) -> np.ndarray:
    space = clients.spaces[name]
    return np.bincount(space.rows, minlength=space.size)


def check_features(clients: Clients) -> None:
    """Crosses agree with their factors, and gender and age belong to the client."""
    movies = clients.size("movie")
    assert [clients.size(n) for n in FEATURES] == [2, 7, movies, 2 * movies, 7 * movies]
    rows = clients.gather(np.arange(clients.samples), FEATURES, local=False)
    np.testing.assert_array_equal(rows["gender_movie"], rows["gender"] * movies + rows["movie"])
    np.testing.assert_array_equal(rows["age_movie"], rows["age"] * movies + rows["movie"])
    assert (clients.spaces["gender"].counts == 1).all()
    assert (clients.spaces["age"].counts == 1).all()


RATINGS = "2::10::5::978300760\n1::30::3::978302109\n2::30::4::978301968\n"
USERS = "1::F::1::10::48067\n2::M::56::16::70072-1\n"


def test_original_layout_and_parquet_agree(tmp_path):
    (tmp_path / "ratings.dat").write_text(RATINGS)
    (tmp_path / "users.dat").write_text(USERS)
    clients = movielens(tmp_path)
    assert clients.client_ids.tolist() == [1, 2]
    assert clients.columns["label"].values.tolist() == [0, 1, 1]
    assert clients.columns["timestamp"].values.tolist() == [978302109, 978300760, 978301968]
    rows = clients.gather(np.arange(3), local=False)
    assert there(clients.spaces["movie"].vocabulary)[rows["movie"]].tolist() == [30, 10, 30]
    assert there(clients.spaces["gender"].vocabulary)[rows["gender"]].tolist() == ["F", "M", "M"]
    assert there(clients.spaces["age"].vocabulary)[rows["age"]].tolist() == [1, 56, 56]
    check_features(clients)

    for name, columns in (
        ("ratings", ["user_id", "movie_id", "rating", "timestamp"]),
        ("users", ["user_id", "gender", "age", "occupation", "zip_code"]),
    ):
        table = pl.read_csv(tmp_path / f"{name}.dat", separator=":", has_header=False)[:, ::2]
        (tmp_path / "pq").mkdir(exist_ok=True)
        pl.DataFrame(dict(zip(columns, table, strict=True))).write_parquet(tmp_path / "pq" / f"{name}.parquet")
    assert movielens(tmp_path / "pq").fingerprint == clients.fingerprint
    clients.save(tmp_path / "saved")
    Clients.open(tmp_path / "saved", verify=True)


def test_incomplete_releases(tmp_path):
    with pytest.raises(DataError, match=r"neither ratings\.parquet nor ratings\.dat.*grouplens"):
        movielens(tmp_path)
    (tmp_path / "ratings.dat").write_text(RATINGS)
    (tmp_path / "users.dat").write_text("1::F::1::10::48067\n3::M::56::16::7\n")
    with pytest.raises(DataError, match="user 2 has gender None"):
        movielens(tmp_path)
    (tmp_path / "users.dat").write_text("1::F::1::10::48067\n2::M::57::16::7\n")
    with pytest.raises(DataError, match="user 2 has age 57"):
        movielens(tmp_path)
    (tmp_path / "users.dat").write_text(USERS + USERS)
    with pytest.raises(DataError, match="more than once"):
        movielens(tmp_path)
    (tmp_path / "users.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match=r"users\.parquet cannot be read"):
        movielens(tmp_path)


@pytest.mark.skipif("FEDSUB_DATA" not in os.environ, reason="FEDSUB_DATA names no directory with the real data")
def test_the_real_release():
    folder = Path(os.environ["FEDSUB_DATA"]) / "movielens-1m"
    if not folder.is_dir():
        pytest.skip("no movielens-1m in FEDSUB_DATA")
    clients = movielens(folder)
    assert (len(clients), clients.samples, clients.size("movie")) == (6040, 1_000_209, 3706)
    every = np.concatenate([heat(clients, name) for name in FEATURES])
    assert (every.max(), every[every > 0].min()) == (4331, 1)
    assert heat(clients, "movie").max() == 3428
    assert clients.columns["label"].values.sum() == 348_971 + 226_310
    assert clients.columns["timestamp"].values.min() == 956703932
    check_features(clients)
