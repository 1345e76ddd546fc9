"""Short texts by known authors, with a sentiment: Sentiment140, and critics' review lines of the same shape.

A client is an author, a sample one text as a list of words (rows of the space ``word``; row 0 means "nothing"), the
label 1 for positive. The FedSubAvg paper keeps authors with more than 40 tweets, which are 1,473 with 79,050 tweets;
how it cuts texts into words is unknown.

``words`` follows an earlier public project of the same group: lower case, a name after @ and a link become the
tokens ``<user>`` and ``<url>``, HTML and punctuation go. ``letters`` takes every run of ``a-z`` and the apostrophe.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import polars as pl

from fedsub.data.clients import Clients
from fedsub.data.datasets.options import Says
from fedsub.data.datasets.source import Source
from fedsub.data.datasets.tables import Schema, Text, parquet
from fedsub.data.ingest import from_frame
from fedsub.errors import DataError

HOME = "http://help.sentiment140.com/for-students/"
CRITICS_HOME = "https://github.com/learn-co-curriculum/dsc-phase-1-project (file zippedData/rt.reviews.tsv.gz)"
TWEETS: Schema = {
    "target": pl.Int64, "id": pl.Int64, "date": pl.String, "flag": pl.String, "user": pl.String, "text": pl.String,
}  # fmt: skip
REVIEWS: Schema = {"client_id": pl.Int64, "label": pl.Int64, "text": pl.String}
RAW_REVIEWS: Schema = {
    "id": pl.Int64, "review": pl.String, "fresh": pl.String, "critic": pl.String, "top_critic": pl.String,
    "publisher": pl.String, "date": pl.String,
}  # fmt: skip

Tokeniser = Annotated[Literal["words", "letters"], Says("how a text becomes words, see docs/datasets.md")]
Longest = Annotated[int | None, Says("words kept of a text, the first ones")]
Common = Annotated[int, Says("words that occur less often in all kept texts are dropped")]
Kept = Annotated[int, Says("least number of texts of an author who is kept")]


def sentiment140(
    path: str | os.PathLike[str],
    *,
    min_samples: Kept = 41,
    tokeniser: Tokeniser = "words",
    max_len: Longest = 30,
    min_count: Common = 1,
) -> Clients:
    """Sentiment140 from ``trainingandtestdata.zip`` or the training file in it; tweets in the order of their ids.

    ``min_samples=41`` is the paper's "more than 40". Labels: target 4 is 1, target 0 is 0.
    """
    with Source(path) as source:
        file = source.need("training.1600000.processed.noemoticon.csv", home=HOME, kinds=(".csv",))
        tweets = Text(file, TWEETS, encoding="latin-1").collect()
    if len(strange := tweets.filter(~pl.col("target").is_in((0, 4)))):
        raise DataError(
            f"{file.name}: tweet {strange['id'][0]} has target {strange['target'][0]}, expected 0 or 4; "
            "this is not the training file training.1600000.processed.noemoticon.csv."
        )
    frame = tweets.select(client="user", order="id", label=pl.col("target") == 4, text="text").sort("order")
    return _build(frame, min_samples, tokeniser, max_len, min_count, str(path))


def rotten_tomatoes_critics(
    path: str | os.PathLike[str],
    *,
    min_samples: Kept = 5,
    tokeniser: Tokeniser = "letters",
    max_len: Longest = 60,
    min_count: Common = 1,
) -> Clients:
    """Critics' review lines from ``rt.reviews.tsv.gz`` or ``reviews.parquet``. They are not Sentiment140.

    No line is longer than 54 words, so that nothing is cut by default. Lines without critic or text and exact
    duplicates are dropped; those of a critic are in the order of their dates.
    """
    with Source(path) as source:
        file = source.need("reviews.parquet", "rt.reviews.tsv", home=CRITICS_HOME, kinds=(".parquet", ".tsv"))
        frame = parquet(file, REVIEWS).rename({"client_id": "client"}) if file.suffix == ".parquet" else _lines(file)
    return _build(frame, min_samples, tokeniser, max_len, min_count, str(path))


def _lines(file: Path) -> pl.DataFrame:
    """(client, label, text) of the original table of reviews; a critic is known by name."""
    unsure = ("review", "critic", "top_critic", "publisher", "date")
    table = Text(file, RAW_REVIEWS, "\t", header=True, encoding="latin-1", may_be_empty=unsure).collect()
    named = table.drop_nulls(["critic", "review"]).unique(maintain_order=True)
    if len(strange := named.filter(~pl.col("fresh").is_in(("fresh", "rotten")))):
        raise DataError(f"{file.name}: a review is {strange['fresh'][0]!r}, expected fresh or rotten.")
    day = pl.col("date").str.to_date("%B %d, %Y", strict=False)
    ordered = named.sort("critic", day, "id", maintain_order=True)
    return ordered.select(client="critic", label=pl.col("fresh") == "fresh", text="review")


def words(text: pl.Expr) -> pl.Expr:
    """Lower-case words; names after @ and links as one token each, without HTML and punctuation.

    "@Ann look: http://a.b/c &amp; don't <b>cry</b>!"  ->  <user> look <url> don't cry
    """
    plain = text.str.to_lowercase().str.replace_all(r"</?[a-z][^<>]*>|&#?[a-z0-9]+;", " ")
    found = plain.str.extract_all(r"@\w+|(?:https?://|www\.)\S+|[\p{L}\p{N}]+(?:'\p{L}+)*")
    token = pl.element()
    link = token.str.starts_with("http:") | token.str.starts_with("https:") | token.str.starts_with("www.")
    name = token.str.starts_with("@")
    return found.list.eval(pl.when(name).then(pl.lit("<user>")).when(link).then(pl.lit("<url>")).otherwise(token))


def letters(text: pl.Expr) -> pl.Expr:
    """Every run of a-z and the apostrophe, in lower case."""
    return text.str.to_lowercase().str.extract_all(r"[a-z']+")


TOKENISERS = {"words": words, "letters": letters}


def _build(
    frame: pl.DataFrame, min_samples: int, tokeniser: str, max_len: int | None, min_count: int, source: str
) -> Clients:
    """Authors are chosen by their texts before any word is dropped; a text may end up without words."""
    kept = frame.filter(pl.len().over("client") >= min_samples)
    if not len(kept):
        most = frame.group_by("client").len()["len"].max()
        raise DataError(f"No author has {min_samples:,} texts (the most is {most}); use a smaller min_samples.")
    cut = kept.with_columns(words=TOKENISERS[tokeniser](pl.col("text")))
    if max_len is not None:
        cut = cut.with_columns(pl.col("words").list.head(max_len))
    if min_count > 1:
        common = cut["words"].explode().value_counts().filter(pl.col("count") >= min_count)["words"]
        in_use = pl.element().filter(pl.element().is_in(common.implode()))
        cut = cut.with_columns(pl.col("words").list.eval(in_use))
    clients = from_frame(cut, "client", ids={"word": ["words"]}, label="label")
    return replace(clients, source=source)
