"""Lists of items: the order of the formula, without what was seen, for shared and personal models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from shop import CLIENTS, FRAME, train, weight

import fedsub as fs
from fedsub.errors import ConfigError, DataError

GENRES = dict(zip(FRAME["item"], FRAME["genre"], strict=True))


def expected(result: fs.Result, user: str, seen: bool = False) -> list[str]:
    """All items by their score in a sample with the client's last age, best first."""
    mine = FRAME.filter(pl.col("user") == user)
    hidden = set() if seen else set(mine["item"])
    score = {
        item: weight(result, "item", item) + weight(result, "genre", GENRES[item])
        for item in GENRES
        if item not in hidden
    }  # age is the same in all
    return sorted(score, key=lambda item: -score[item])


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> fs.Result:
    return train(tmp_path_factory.mktemp("runs") / "a")


def test_the_best_unseen_items_with_the_genre_that_goes_with_them(kept: fs.Result, tmp_path: Path):
    FRAME.write_parquet(tmp_path / "all.parquet")
    assert kept.path is not None
    for run, data in (
        (kept, None),
        (train(), None),
        (kept.path, FRAME),
        (fs.load(kept.path), tmp_path / "all.parquet"),
    ):
        found = fs.recommend(run, "u3", top=5, data=data)
        assert found["item"].to_list() == expected(kept, "u3")[:5]
        assert found["rank"].to_list() == [1, 2, 3, 4, 5]
        assert found.columns == ["client", "rank", "item", "score", "probability"]
    item = found["item"][0]
    last = FRAME.filter(pl.col("user") == "u3").tail(1).with_columns(item=pl.lit(item), genre=GENRES[item])
    assert np.isclose(fs.predict(kept, last).frame["score"][0], found["score"][0], atol=1e-6)


def test_seen_items_on_request_and_several_clients(kept: fs.Result):
    assert fs.recommend(kept, "u3", top=50, exclude_seen=False)["item"].to_list() == expected(kept, "u3", seen=True)
    both = fs.recommend(kept, ["u1", "u3"], top=2)
    assert both["client"].to_list() == ["u1", "u1", "u3", "u3"]
    assert both["item"].to_list() == expected(kept, "u1")[:2] + expected(kept, "u3")[:2]


def test_personal_tastes(tmp_path: Path):
    """With a taste of its own, a client's order is that of vectors · taste + weight."""
    rows = FRAME.select("user", "item", "liked")
    clients = fs.Clients.from_frame(rows, "user", ids=["item"], label="liked")
    objective = fs.models.make_objective(clients, "lr", own_bias=True, taste=2)
    method = fs.methods.fedsubavg(lr=0.5, clients_per_round=6, personal=["own.*"])
    result = fs.run(method, objective, clients, rounds=4, out=tmp_path / "run")
    ids = clients.spaces["item"].vocabulary
    assert ids is not None
    trained = fs.load(tmp_path / "run")
    assert trained.personal is not None
    lists = set()
    for user in ("u0", "u5"):
        own = trained.personal.params(user)
        score = (
            result.params["weights.t_item.weight"][:, 0]
            + own["own.bias"]
            + (result.params["vectors.weight"] @ own["own.taste"])
        )
        seen = set(rows.filter(pl.col("user") == user)["item"])
        order = [str(ids[k]) for k in (-score).argsort(stable=True).tolist() if ids[k] not in seen][:6]
        for run, data in ((tmp_path / "run", rows), (result, None)):
            assert fs.recommend(run, user, top=6, data=data)["item"].to_list() == order
        every = [str(ids[k]) for k in (-score).argsort(stable=True).tolist()]
        assert fs.recommend(tmp_path / "run", user, top=99)["item"].to_list() == every  # nothing is known to be seen
        lists.add(tuple(every))
    assert len(lists) == 2


def test_ids_that_are_rows_have_row_numbers():
    draw = np.random.default_rng(1)
    arrays = {"item": draw.integers(0, 8, 60), "y": draw.integers(0, 2, 60), "who": draw.integers(0, 5, 60)}
    clients = fs.Clients.from_arrays(arrays, "who", ids=["item"], label="y", sizes={"item": 8})
    method = fs.methods.fedsubavg(lr=0.5, clients_per_round=5)
    result = fs.run(method, fs.models.make_objective(clients), clients, rounds=3)
    found = fs.recommend(result, 2, top=8, exclude_seen=False)
    assert found["item"].to_list() == (-result.params["weights.t_item.weight"][:, 0]).argsort(stable=True).tolist()


def test_refusals(kept: fs.Result):
    assert kept.path is not None
    with pytest.raises(ConfigError, match="reads 'genre', 'age' besides 'item'; give samples of the client"):
        fs.recommend(kept.path, "u3")
    with pytest.raises(DataError, match="no sample of the client 'nobody'"):
        fs.recommend(kept, "nobody")
    with pytest.raises(ConfigError, match="item names the id column 'shop'"):
        fs.recommend(kept, "u3", item="shop")
    with pytest.raises(ConfigError, match="top"):
        fs.recommend(kept, "u3", top=0)
    everything = pl.concat([FRAME, FRAME.unique("item").with_columns(user=pl.lit("u3"))])
    with pytest.raises(DataError, match="'u3' has seen every item"):
        fs.recommend(kept, "u3", data=everything)
    assert CLIENTS.samples == len(FRAME)
