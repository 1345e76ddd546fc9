"""Every data set: the original files give the samples, ids and histories that its page promises."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from worlds import there

from fedsub.data import Clients
from fedsub.data.datasets import DATASETS, File, recognise, seen_in_training
from fedsub.data.datasets.amazon import apart
from fedsub.data.datasets.sentiment import letters, words
from fedsub.data.heat import summarise
from fedsub.errors import DataError


def samples(clients: Clients, *names: str) -> list[tuple]:
    """(client, values of the named columns) of every sample; ids as original values, lists without padding."""
    got = clients.gather(np.arange(clients.samples), names, local=False)
    owners = clients.client_ids[clients.clients_of(np.arange(clients.samples))].tolist()
    columns = []
    for name in names:
        column, values = clients.columns[name], got[name]
        if column.space is not None:
            known = clients.spaces[column.space].vocabulary
            values = values if known is None else known[values]
        if column.starts is None:
            columns.append(values.tolist())
        else:
            lengths = np.diff(column.starts)
            columns.append([row[:n].tolist() for row, n in zip(values, lengths, strict=True)])
    return list(zip(owners, *columns, strict=True))


@pytest.mark.parametrize("name", DATASETS)
def test_every_release_is_recognised_and_read(name, releases, small, tmp_path):
    path = releases[name]
    assert recognise(path) == name
    assert recognise(path if path.is_dir() else path.parent) == name
    clients = DATASETS[name].read(path, **small.get(name, {}))
    usual = DATASETS[name].split
    train, test = clients.split(**{**usual, **({"train": 0.5} if "train" in usual else {})})
    assert train.samples + test.samples == clients.samples
    clients.save(tmp_path / "saved")
    assert Clients.open(tmp_path / "saved", verify=True).fingerprint == clients.fingerprint
    again = DATASETS[name].read(path.parent if path.is_file() else path, **small.get(name, {}))
    assert again.fingerprint == clients.fingerprint


@pytest.mark.parametrize("name", ["movielens-1m", "movielens-latest-small", "taobao-cart-buy"])
def test_a_zip_is_read_like_its_folder(name, releases, tmp_path):
    with zipfile.ZipFile(tmp_path / "all.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("ml-1m")
        for file in releases[name].iterdir():
            archive.write(file, f"ml-1m/{file.name}")
        archive.writestr("__MACOSX/._ratings.dat", "rubbish")
    assert recognise(tmp_path / "all.zip") == name
    unpacked = DATASETS[name].read(releases[name])
    assert DATASETS[name].read(tmp_path / "all.zip").fingerprint == unpacked.fingerprint


def test_every_entry_is_complete():
    for name, d in DATASETS.items():
        assert d.name == name
        assert all((d.title, d.summary, d.home.startswith("http"), d.licence, d.licence_short, d.citation, d.files))
        assert all(isinstance(f, File) and len(f.sha256 or "0" * 64) == 64 for f in d.files)
        assert all(option.about and option.check(option.default) == option.default for option in d.options.values())
    assert "NOT Sentiment140" in DATASETS["rotten-tomatoes-critics"].title


def test_options_are_checked():
    amazon, tweets = DATASETS["amazon-electronics"], DATASETS["sentiment140"]
    assert tweets.chosen({"max_len": "none", "min_samples": "3"}) == {
        "min_samples": 3, "tokeniser": "words", "max_len": None, "min_count": 1,
    }  # fmt: skip
    with pytest.raises(DataError, match="no option 'histroy'; did you mean 'history'"):
        amazon.read("nowhere", histroy="released")
    with pytest.raises(DataError, match="history='relased': did you mean 'released'"):
        amazon.chosen({"history": "relased"})
    for bad in ("0", "two", "1.5", True, None, 2.0):
        with pytest.raises(DataError, match=r"min_samples=.*expected a whole number, 1 or more"):
            amazon.chosen({"min_samples": bad})


def test_movielens_thresholds(releases):
    labels = [DATASETS["movielens-1m"].read(releases["movielens-1m"], positive=p).columns["label"] for p in (4, 5)]
    assert [label.values.tolist() for label in labels] == [[0, 1, 1], [0, 1, 0]]
    clients = DATASETS["movielens-latest-small"].read(releases["movielens-latest-small"], positive=4.5)
    assert samples(clients, "movie", "label", "rating", "timestamp") == [
        (1, 31, 0.0, 2.5, 1260759144),
        (1, 10, 0.0, 4.0, 1260759179),
        (2, 31, 1.0, 4.5, 835355493),
    ]


def test_genres_of_movies_are_a_column_if_asked_for(releases):
    folder, read = releases["movielens-1m"], DATASETS["movielens-1m"].read
    plain = read(folder)
    assert "genre" not in plain.columns
    (folder / "movies.dat").write_bytes(
        "10::Amélie (2001)::Romance|Comedy\n20::Jaws::Action\n30::Heat (1995)::Action\n".encode("latin-1")
    )
    clients = read(folder, genres="list")
    assert clients.spaces["genre"].padding
    assert samples(clients, "movie", "genre") == [
        (1, 30, ["Action", ""]),
        (2, 10, ["Romance", "Comedy"]),
        (2, 30, ["Action", ""]),
    ]
    assert read(folder).fingerprint == plain.fingerprint
    (folder / "movies.dat").write_text("30::Heat (1995)::Action\n")
    with pytest.raises(DataError, match="the movies table lacks movie 10"):
        read(folder, genres="list")
    (folder / "movies.dat").unlink()
    with pytest.raises(DataError, match=r"neither movies\.parquet nor movies\.dat"):
        read(folder, genres="list")


def test_tweets_become_words(releases):
    read = DATASETS["sentiment140"].read
    clients = read(releases["sentiment140"], min_samples=2)
    assert clients.client_ids.tolist() == ["ann"]
    assert samples(clients, "words", "label") == [
        ("ann", ["café", "café", "sun"], 1.0),
        ("ann", ["<user>", "don't", "cry", "see", "<url>", "ok"], 0.0),
        ("ann", [], 1.0),
    ]
    assert clients.spaces["word"].padding
    cut = read(releases["sentiment140"], min_samples=2, max_len=2, tokeniser="letters")
    assert samples(cut, "words")[1] == ("ann", ["bob", "don't"])
    common = read(releases["sentiment140"], min_samples=2, min_count=2)
    assert samples(common, "words") == [("ann", ["café", "café"]), ("ann", []), ("ann", [])]
    assert len(read(releases["sentiment140"], min_samples=3)) == 1
    with pytest.raises(DataError, match=r"No author has 41 texts \(the most is 3\)"):
        read(releases["sentiment140"])


def test_tokenisers():
    text = pl.DataFrame({"t": ["I'm <b>SO</b> glad: www.x.org/y @a_b's 24/7 &lt;3 1<2>1"]})
    assert text.select(words(pl.col("t")))["t"][0].to_list() == [
        "i'm", "so", "glad", "<url>", "<user>", "s", "24", "7", "3", "1", "2", "1",
    ]  # fmt: skip
    assert text.select(letters(pl.col("t")))["t"][0].to_list()[:4] == ["i'm", "b", "so", "b"]


def test_critics_are_read_from_the_original_table(releases):
    clients = DATASETS["rotten-tomatoes-critics"].read(releases["rotten-tomatoes-critics"], min_samples=1)
    assert samples(clients, "words", "label") == [
        ("Ann Lee", ["it's", "a", "joy"], 1.0),
        ("Ann Lee", ["not", "good"], 0.0),
        ("Bob", ["fine"], 1.0),
    ]


def test_amazon_follows_the_released_preprocessing(releases):
    read = DATASETS["amazon-electronics"].read
    path = releases["amazon-electronics"]
    clients = read(path, min_samples=3)
    # A1 has one record only. A2: B1 moves to ...001, so B2, which comes later in the file, moves to ...002.
    assert samples(clients, "user", "item", "history", "label", "holdout") == [
        ("A10", "A10", "B9", [], 1.0, 0),
        ("A10", "A10", "B3", ["B9"], 0.0, 0),
        ("A10", "A10", "B1", ["B9"], 1.0, 1),
        ("A2", "A2", "B3", [], 1.0, 0),
        ("A2", "A2", "B1", ["B3"], 1.0, 0),
        ("A2", "A2", "B2", ["B3", "B1"], 0.0, 0),
        ("A2", "A2", "B4", ["B3", "B1"], 0.0, 1),
    ]
    assert there(clients.spaces["user"].vocabulary).tolist() == ["", "A10", "A2"]
    assert there(clients.spaces["item"].vocabulary).tolist() == ["", "B1", "B2", "B3", "B4", "B9"]
    as_text = read(path, min_samples=3, time_order="released")
    assert [s[1:] for s in samples(as_text, "item", "history", "holdout")[:3]] == [
        ("B3", [], 0), ("B1", [], 1), ("B9", ["B1"], 0),
    ]  # fmt: skip
    zeros = read(path, min_samples=3, history="released")
    assert [s[1] for s in samples(zeros, "history")] == [[], [""], [""], [], [""], ["", ""], ["", ""]]
    assert zeros.columns["history_length"].values.tolist() == [0, 1, 1, 0, 1, 2, 2]
    assert [s[1] for s in samples(read(path, min_samples=3, max_history=1), "history")][-1] == ["B1"]
    ending = read(path, min_samples=1, split="ending")
    assert ending.columns["holdout"].values.tolist() == [0] * 8


def test_ratings_without_reviews_are_the_same_records(releases, tmp_path):
    import gzip
    import json

    with gzip.open(releases["amazon-electronics"], "rt") as file:
        rows = [json.loads(line) for line in file]
    lines = [f"{r['reviewerID']},{r['asin']},{r['overall']},{r['unixReviewTime']}" for r in rows]
    (tmp_path / "ratings_Electronics.csv").write_text("\n".join(lines) + "\n")
    read = DATASETS["amazon-electronics"].read
    both = [read(p, min_samples=3) for p in (tmp_path / "ratings_Electronics.csv", releases["amazon-electronics"])]
    assert both[0].fingerprint == both[1].fingerprint


def test_equal_times_move_apart_in_file_order():
    assert apart(["a", "a", "a", "b"], [5, 6, 5, 5]) == [5, 6, 7, 5]
    assert apart(["a", "a", "a"], [5, 5, 6]) == [5, 6, 7]


def test_carts_and_purchases(releases):
    read = DATASETS["taobao-cart-buy"].read
    rows = samples(read(releases["taobao-cart-buy"]), "item", "history", "label")
    assert rows == [  # ids are table rows: one more than in the file
        (0, 1, [3, 4, 5], 0.0), (0, 3, [1, 4, 5], 1.0), (0, 4, [1, 3, 5], 0.0), (0, 5, [1, 3, 4], 1.0),
        (1, 1, [2], 1.0), (1, 2, [1], 0.0),
    ]  # fmt: skip
    cart = read(releases["taobao-cart-buy"], history="cart", held_out="dropped", max_history=1)
    assert samples(cart, "item", "history") == [(0, 1, [3]), (0, 3, [1]), (0, 5, [3]), (1, 1, [2]), (1, 2, [])]


@pytest.mark.parametrize("how", ["popularity", "uniform"])
def test_taobao_views_and_negatives(how, releases):
    read = DATASETS["taobao-user-behaviour"].read
    clients = read(releases["taobao-user-behaviour"], min_samples=4, negatives=how, max_history=3)
    assert (len(clients), clients.samples) == (6, 6 * 12 * 2)
    names = ("user", "item", "category", "item_history", "category_history", "label", "holdout", "timestamp")
    for owner, user, item, category, items, categories, label, holdout, time in samples(clients, *names):
        assert user == owner
        assert (item // 100 == owner) == (label == 1)  # a drawn item is another user's
        assert category == (item // 100 + item % 100) % 3 + 1
        assert all(i // 100 == owner for i in items)
        assert len(items) == len(categories) <= 3
        assert categories == [(owner + i % 100) % 3 + 1 for i in items]
        assert item not in items
        assert holdout == (time >= 1_511_539_200 + 8 * 86_400)
    first = [s[1] for s in samples(clients, "item_history")[:8]]
    assert first == [[], [], [100], [100], [100, 101, 100], [100, 101, 100], [101, 100, 102], [101, 100, 102]]
    again = read(releases["taobao-user-behaviour"], min_samples=4, negatives=how, max_history=3)
    other = read(releases["taobao-user-behaviour"], min_samples=4, negatives=how, max_history=3, seed=1)
    assert clients.fingerprint == again.fingerprint != other.fingerprint
    assert len(read(releases["taobao-user-behaviour"], min_samples=4, max_clients=2)) == 2
    day = read(releases["taobao-user-behaviour"], min_samples=4, history_days=1)
    assert [s[1] for s in samples(day, "item_history")[4:8:2]] == [[101, 100], [102]]


def test_items_that_training_has_seen():
    both = Clients.from_arrays(
        {"item": [1, 2, 3, 1], "mark": [0, 0, 1, 1]}, [0, 1, 0, 1], ids=["item"], values=["mark"]
    )
    train, test = both.split(by="column", column="mark")
    assert seen_in_training(train, test).tolist() == [False, True]


# ---------------------------------------------------------------------- the real data, where it is


def real(name: str, **options) -> Clients:
    if "FEDSUB_DATA" not in os.environ:
        pytest.skip("FEDSUB_DATA names no directory with the real data")
    folder = Path(os.environ["FEDSUB_DATA"]) / name
    if not folder.is_dir():
        pytest.skip(f"no {name} in FEDSUB_DATA")
    assert recognise(folder) == name
    clients = DATASETS[name].read(folder, **options)
    if not options:
        assert (len(clients), clients.samples) == (DATASETS[name].shape or (len(clients), clients.samples))
    return clients


def test_the_real_critics():
    clients = real("rotten-tomatoes-critics")
    (heat,) = summarise(clients).spaces
    assert (len(clients), clients.samples, heat.rows, heat.dispersion) == (1392, 43_399, 35_175, 1388)
    assert len(real("rotten-tomatoes-critics", min_samples=40)) == 316


def test_the_real_amazon():
    clients = real("amazon-electronics")
    assert (len(clients), clients.samples, round(clients.samples / len(clients), 1)) == (1859, 99_710, 53.6)
    assert summarise(clients).overall.dispersion == 232
    assert (clients.size("user"), clients.size("item")) == (1870, 33_136)
    train, test = clients.split(**DATASETS["amazon-electronics"].split)
    assert (train.samples, test.samples, len(test)) == (80_505, 19_205, 1844)
    assert round(1 - float(seen_in_training(train, test).mean()), 3) == 0.306
    # In the authors' order, histories are as long as in their files, but for rows that reach into the test part.
    folder = Path(os.environ["FEDSUB_DATA"]) / "amazon-electronics"
    table = pl.read_parquet(folder / "train_interactions.parquet").sort("client_id", "position")
    lengths = np.diff(there(real("amazon-electronics", time_order="released").columns["history"].starts))
    assert (lengths == table["history_len"].to_numpy())[~table["early_row"].to_numpy()].all()
    assert real("amazon-electronics", split="ending").fingerprint == clients.fingerprint


def test_the_real_small_movielens():
    clients = real("movielens-latest-small")
    assert summarise(clients).overall.dispersion == 329


def test_the_real_carts():
    clients = real("taobao-cart-buy")
    assert summarise(clients).overall.dispersion == 530
    assert int(clients.columns["label"].values.sum()) == 211_022
    assert real("taobao-cart-buy", held_out="dropped").samples == 373_904 - 8_326
