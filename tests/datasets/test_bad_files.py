"""Wrong, truncated or mixed-up files: a message each that says what is wrong, and nothing left behind."""

from __future__ import annotations

import gzip
import zipfile
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from tiny_releases import TWEETS, tweet

from fedsub.cli import app
from fedsub.data.datasets import DATASETS, recognise
from fedsub.errors import DataError


def change(path: Path, old: str, new: str) -> Path:
    path.write_text(path.read_text().replace(old, new))
    return path


def cut(path: Path, share: float = 0.6) -> Path:
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    return path


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def damaged_zip(path: Path) -> Path:
    """One byte of the packed data is another one, so that the checksum inside no longer fits."""
    with zipfile.ZipFile(path) as archive:
        at = archive.infolist()[0].header_offset + 90
    raw = bytearray(path.read_bytes())
    raw[at] ^= 255
    path.write_bytes(raw)
    return path


def noise(path: Path, seed: int = 0) -> Path:
    import random

    return write(path, random.Random(seed).randbytes(300))


def long_gzip(path: Path) -> Path:
    """Larger than what is looked at for recognition, so that it is the reader who meets the end."""
    import json
    import random

    draw = random.Random(0)
    lines = [
        json.dumps({"reviewerID": f"A{i}", "asin": str(draw.random()), "overall": 5.0, "unixReviewTime": i})
        for i in range(4000)
    ]
    write(path, gzip.compress("\n".join(lines).encode()))
    return cut(path)


def table(path: Path, **columns: list) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    pl.DataFrame(columns).write_parquet(path)
    return path


ML, SMALL, TWEET, CRITIC = "movielens-1m", "movielens-latest-small", "sentiment140", "rotten-tomatoes-critics"
AMAZON, TAOBAO, CART = "amazon-electronics", "taobao-user-behaviour", "taobao-cart-buy"
Case = tuple[str, Callable[[dict[str, Path], Path], Path], str]
CASES: dict[str, Case] = {
    "another data set": (AMAZON, lambda r, t: r[ML], r"looks like MovieLens-1M \(movielens-1m\), expected Amazon"),
    "another data set's archive": (ML, lambda r, t: r[TWEET], "looks like Sentiment140.*expected MovieLens-1M"),
    "nothing there": (ML, lambda r, t: t / "nowhere", "There is nothing at .*nowhere; check the path"),
    "an empty folder": (TWEET, lambda r, t: t, r"no training\.1600000.*there is .*Get the release from http"),
    "a missing file": (
        ML,
        lambda r, t: ((r[ML] / "users.dat").unlink(), r[ML])[1],
        r"neither users\.parquet nor users\.dat \(there is movies\.dat, ratings\.dat\)",
    ),
    "a missing file of three": (CART, lambda r, t: ((r[CART] / "cart.csv").unlink(), r[CART])[1], r"no cart\.csv"),
    "a missing column": (
        SMALL, lambda r, t: change(r[SMALL] / "ratings.csv", "rating,time", "stars,time").parent, "no column 'rating'",
    ),
    "a missing Parquet column": (
        AMAZON,
        lambda r, t: table(t / "p" / "train_interactions.parquet", client_id=[1], item_id=[2], labels=[1]).parent,
        "no column 'time_rank'",
    ),
    "a truncated zip": (TWEET, lambda r, t: cut(r[TWEET]), "truncated or damaged.*Download it again"),
    "a zip with a wrong checksum inside": (TWEET, lambda r, t: damaged_zip(r[TWEET]), "truncated or damaged"),
    "a truncated gzip": (AMAZON, lambda r, t: long_gzip(t / "reviews_Electronics_5.json.gz"), "truncated or damaged"),
    "no gzip at all": (AMAZON, lambda r, t: noise(t / "reviews_Electronics_5.json.gz"), "no gzip file at all"),
    "no zip at all": (TAOBAO, lambda r, t: noise(t / "UserBehavior.csv.zip"), "no zip archive at all"),
    "no Parquet at all": (
        CRITIC, lambda r, t: noise(t / "reviews.parquet"), r"reviews\.parquet cannot be read as Parquet",
    ),
    "an empty file": (
        SMALL, lambda r, t: write(r[SMALL] / "ratings.csv", "").parent, r"ratings\.csv is empty; download it again",
    ),
    "only a header": (
        SMALL, lambda r, t: write(r[SMALL] / "ratings.csv", "userId,movieId,rating,timestamp\n").parent, "no rows",
    ),
    "a hole in a Parquet file": (
        CRITIC,
        lambda r, t: table(t / "reviews.parquet", client_id=[1, 1], label=[0, 1], text=["a", None]),
        r"column 'text' is empty in row 1 \(counted from 0\)",
    ),
    "an empty table": (
        CART,
        lambda r, t: table(t / "p" / "interactions.parquet", client_id=[], item_id=[], event=[]),
        "holds no rows",
    ),
    "text for a number": (
        SMALL,
        lambda r, t: change(r[SMALL] / "ratings.csv", "4.0", "four").parent,
        r"ratings\.csv, line 3: rating is 'four', expected a number",
    ),
    "a short line": (
        ML,
        lambda r, t: change(r[ML] / "ratings.dat", "1::30::3::978302109", "1::30::3").parent,
        r"ratings\.dat, line 2: 3 fields, expected 4 \(user_id, movie_id, rating, timestamp\)",
    ),
    "a line cut off at the end": (
        TAOBAO,
        lambda r, t: write(t / "UserBehavior.csv", "1,2,3,pv,1511544070\n1,2,3,p"),
        "line 2: 4 fields, expected 5",
    ),
    "a line too long": (
        TAOBAO, lambda r, t: write(t / "UserBehavior.csv", "1,2,3,pv,1511544070\n1,2,3,pv,15,9\n"), "line 2: 6 fields",
    ),
    "a hole in the middle": (
        AMAZON,
        lambda r, t: write(t / "ratings_Electronics.csv", "A10000000001,B000000001,5.0,1300000000\nA1,,5.0,13\n"),
        "line 2: item is '', expected some text",
    ),
    "a line that is no JSON": (
        AMAZON,
        lambda r, t: write(
            t / "reviews_Electronics_5.json",
            '{"reviewerID": "A1", "asin": "B1", "overall": 5.0, "unixReviewTime": 1}\n{"reviewerID": "A1", "asi\n',
        ),
        "line 2: no JSON object",
    ),
    "a JSON line without a field": (
        AMAZON,
        lambda r, t: write(
            t / "reviews_Electronics_5.json",
            '{"reviewerID": "A1", "asin": "B1", "overall": 5.0, "unixReviewTime": 1}\n'
            '{"reviewerID": "A1", "asin": "B1"}\n',
        ),
        "line 2: there is no field 'overall'",
    ),
    "an unknown behaviour": (
        TAOBAO, lambda r, t: write(t / "UserBehavior.csv", "1,2,3,pv,1511544070\n1,2,3,look,1511544070\n"), "'look'",
    ),
    "an unknown event": (
        CART,
        lambda r, t: table(t / "p" / "interactions.parquet", client_id=[1], item_id=[1], event=["saw"]).parent,
        "an event is 'saw', expected one of cart, buy_train, buy_test",
    ),
    "the test tweets": (
        TWEET,
        lambda r, t: write(t / "tweets.csv", TWEETS[0] + tweet(2, 5, "eve", "so so")),
        "target 2, expected 0 or 4",
    ),
    "an id past the table": (
        AMAZON,
        lambda r, t: table(
            t / "p" / "train_interactions.parquet", client_id=[1], time_rank=[0], item_id=[40_000], label=[1],
            holdout=[False], position=[0],
        ).parent,
        "item_id is 40000, expected 1 to 33,135",
    ),
    "nobody is left": (AMAZON, lambda r, t: r[AMAZON], r"No user has 40 records \(the most is 4\).*smaller"),
    "nobody has views": (
        TAOBAO, lambda r, t: write(t / "UserBehavior.csv", "1,2,3,buy,1511544070\n"), r"no page view \(pv\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_says_what_is_wrong_and_leaves_nothing(case, releases, tmp_path, own_cache):
    from typer.testing import CliRunner

    name, spoil, message = CASES[case]
    (tmp_path / "work").mkdir()
    path = spoil(releases, tmp_path / "work")
    with pytest.raises(DataError, match=f"(?s){message}"):
        DATASETS[name].read(path)
    said = CliRunner().invoke(app, ["data", "import", name, str(path), "--to", str(tmp_path / "out" / "saved")])
    assert said.exit_code == 2
    assert "Error:" in said.output
    assert not (tmp_path / "out").exists()
    assert not own_cache.exists()


def test_what_is_recognised(releases, tmp_path):
    assert recognise(tmp_path) is None
    assert recognise(tmp_path / "nowhere") is None
    assert recognise(write(tmp_path / "notes.csv", "some,thing\n")) is None
    both = tmp_path / "both"
    both.mkdir()
    for name in (ML, SMALL):
        for file in releases[name].iterdir():
            file.rename(both / file.name)
    assert recognise(both) is None  # two data sets in one folder: no guess
    assert DATASETS[SMALL].read(both).samples == 3  # but each can be named


def test_a_saved_copy_is_checked_against_what_is_wanted(releases, tmp_path):
    from fedsub.data.datasets.cache import save

    small = DATASETS[SMALL]
    save(small, small.read(releases[SMALL]), tmp_path / "saved", small.chosen({}), releases[SMALL])
    assert recognise(tmp_path / "saved") == SMALL
    assert small.read(tmp_path / "saved").samples == small.read(tmp_path / "saved", positive=4).samples == 3
    with pytest.raises(DataError, match=r"made with positive=4.0, asked for positive=5.0"):
        small.read(tmp_path / "saved", positive=5)
    with pytest.raises(DataError, match="saved copy of movielens-latest-small, expected movielens-1m"):
        DATASETS[ML].read(tmp_path / "saved")
