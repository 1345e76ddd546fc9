"""Public data sets in a few lines each, in the layout of their original files."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path

DAY0 = 1_511_539_200  # 25 November 2017 in China


def movielens_1m(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ratings.dat").write_text("2::10::5::978300760\n1::30::3::978302109\n2::30::4::978301968\n")
    (folder / "users.dat").write_text("1::F::1::10::48067\n2::M::56::16::70072\n")
    (folder / "movies.dat").write_bytes("10::Amélie (2001)::Comedy\n30::Heat (1995)::Action\n".encode("latin-1"))
    return folder


def movielens_small(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    rows = ["1,31,2.5,1260759144", "1,10,4.0,1260759179", "2,31,4.5,835355493"]
    (folder / "ratings.csv").write_text("userId,movieId,rating,timestamp\n" + "\n".join(rows) + "\n")
    (folder / "movies.csv").write_text("movieId,title,genres\n10,GoldenEye,Action\n")
    return folder


def tweet(target: int, number: int, user: str, text: str) -> str:
    return f'"{target}","{number}","Mon Apr 06 22:19:45 PDT 2009","NO_QUERY","{user}","{text}"\r\n'


TWEETS = [
    tweet(0, 12, "ann", "@bob Don't cry! &amp; see http://a.b/c, ok"),
    tweet(0, 14, "bob", "so sad..."),
    tweet(4, 11, "ann", "café café & sun"),
    tweet(4, 13, "ann", "!!!"),
]


def sentiment140(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / "trainingandtestdata.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("training.1600000.processed.noemoticon.csv", "".join(TWEETS).encode("latin-1"))
        archive.writestr("testdata.manual.2009.06.14.csv", tweet(2, 1, "eve", "neutral"))
    return folder / "trainingandtestdata.zip"


# (user, item, stars, time) in the order of the file; A2's two records of one second are moved apart
RECORDS = [
    ("A2", "B3", 5.0, 1_300_000_000),
    ("A10", "B1", 5.0, 1_390_000_000),
    ("A2", "B1", 5.0, 1_300_000_000),
    ("A2", "B2", 4.0, 1_300_000_001),
    ("A2", "B4", 1.0, 1_385_000_001),
    ("A10", "B9", 5.0, 999_999_999),
    ("A10", "B3", 2.0, 1_385_000_000),
    ("A1", "B7", 5.0, 1_300_000_000),
]


def amazon(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    keys = ("reviewerID", "asin", "overall", "unixReviewTime")
    lines = [json.dumps({"helpful": [0, 1], **dict(zip(keys, r, strict=True)), "summary": "é"}) for r in RECORDS]
    with gzip.open(folder / "reviews_Electronics_5.json.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return folder / "reviews_Electronics_5.json.gz"


def taobao(folder: Path, users: int = 6, views: int = 12) -> Path:
    """User u views item 100 u + k at hour 18 k, for some k twice, and buys something; nobody views another's items."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for u in range(1, users + 1):
        for k in range(views):
            at = DAY0 + k * 18 * 3600
            lines.append(f"{u},{100 * u + k},{(u + k) % 3 + 1},pv,{at}")
            if k % 4 == 1:
                lines.append(f"{u},{100 * u + k - 1},{(u + k - 1) % 3 + 1},pv,{at + 60}")
        lines += [f"{u},{100 * u},1,buy,{DAY0 + 5}", f"{u},9999,1,pv,{DAY0 - 5}"]
    with zipfile.ZipFile(folder / "UserBehavior.csv.zip", "w") as archive:
        archive.writestr("UserBehavior.csv", "\n".join(lines) + "\n")
    return folder / "UserBehavior.csv.zip"


def cart_buy(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cart.csv").write_text("uid\tsid\n0\t0\n0\t2\n0\t3\n1\t1\n")
    (folder / "buy.train.txt").write_text("uid\tsid\n0\t2\n0\t4\n1\t0\n")
    (folder / "buy.test.txt").write_text("uid\tsid\n0\t3\n1\t5\n")
    return folder


def critics(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    head = "id\treview\trating\tfresh\tcritic\ttop_critic\tpublisher\tdate\n"
    rows = [
        "3\tNot good.\t2/5\trotten\tAnn Lee\t0\tX\tNovember 10, 2018",
        "5\tIt's a joy\t\tfresh\tAnn Lee\t1\tX\tMay 2, 2001",
        "5\tIt's a joy\t\tfresh\tAnn Lee\t1\tX\tMay 2, 2001",
        "7\t\t\tfresh\tAnn Lee\t1\tX\tMay 2, 2001",
        "7\tFine\t\tfresh\t\t1\tX\tMay 2, 2001",
        "8\tFine\t\tfresh\tBob\t1\tX\tMay 2, 2001",
    ]
    with gzip.open(folder / "rt.reviews.tsv.gz", "wt", encoding="latin-1") as file:
        file.write(head + "\n".join(rows) + "\n")
    return folder / "rt.reviews.tsv.gz"


RELEASES = {
    "movielens-1m": movielens_1m,
    "movielens-latest-small": movielens_small,
    "sentiment140": sentiment140,
    "rotten-tomatoes-critics": critics,
    "amazon-electronics": amazon,
    "taobao-user-behaviour": taobao,
    "taobao-cart-buy": cart_buy,
}
SMALL = {  # options under which the tiny releases leave clients
    "sentiment140": {"min_samples": 1},
    "rotten-tomatoes-critics": {"min_samples": 1},
    "amazon-electronics": {"min_samples": 3},
    "taobao-user-behaviour": {"min_samples": 4},
}
