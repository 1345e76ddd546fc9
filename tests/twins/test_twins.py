"""Every twin has the shape of Table 1, its columns, and a truth that is worth learning."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from fedsub.data import Clients
from fedsub.data.heat import row_heat, summarise
from fedsub.data.twins import TWINS
from fedsub.data.twins.clicks import click
from fedsub.data.twins.sentiment import SentimentPlan
from fedsub.errors import DataError
from fedsub.objective.metrics import auc

SPACES = {
    "movielens-like": {name: (name,) for name in ("gender", "age", "movie", "gender_movie", "age_movie")},
    "sentiment-like": {"word": ("words",)},
    "amazon-like": {"user": ("user",), "item": ("item", "history")},
    "alibaba-like": {
        "user": ("user",),
        "item": ("item", "item_history"),
        "category": ("category", "category_history"),
    },
}
SMALL = {"movielens-like": 0.02, "sentiment-like": 0.05, "amazon-like": 0.05, "alibaba-like": 0.002}


@cache
def small(name: str) -> Clients:
    return TWINS[name].make(scale=SMALL[name])


def check_table1(clients: Clients, name: str) -> None:
    table = TWINS[name].table1
    assert (len(clients), clients.samples) == (table.clients, table.samples)
    overall = summarise(clients).overall
    assert (overall.min, overall.dispersion) == (1, table.dispersion)


@pytest.fixture(scope="module")
def sentiment() -> Clients:
    return TWINS["sentiment-like"].make()


@pytest.fixture(scope="module")
def amazon() -> Clients:
    return TWINS["amazon-like"].make()


def test_sentiment_has_the_published_shape(sentiment):
    check_table1(sentiment, "sentiment-like")
    assert sentiment.size("word") == 30_001
    assert sentiment.sizes.min() >= 41
    heat = row_heat(sentiment.spaces["word"])[1:]
    assert 11_000 < (heat == 1).sum() < 13_000
    lengths = np.diff(sentiment.columns["words"].starts)
    assert (lengths.min(), lengths.max(), sentiment.columns["words"].width) == (3, 23, 23)
    # Word 0 is padding, so no text holds it.
    rows = sentiment.gather(np.arange(1000), ["words"], local=False)["words"]
    np.testing.assert_array_equal((rows > 0).sum(1), lengths[:1000])


def test_amazon_has_the_published_shape(amazon):
    check_table1(amazon, "amazon-like")
    assert (amazon.size("user"), amazon.size("item")) == (1871, 33_136)
    heat = row_heat(amazon.spaces["item"])[1:]
    assert (heat == 1).mean() == pytest.approx(14_306 / 29_148, abs=0.06)
    assert np.median(heat) == 2
    assert (amazon.sizes.min(), np.median(amazon.sizes)) == (40, pytest.approx(55, abs=5))
    assert amazon.columns["label"].values.mean() == pytest.approx(0.555, abs=0.01)
    # Nobody rates an item twice, and a history names only items that the client rated.
    np.testing.assert_array_equal(amazon.spaces["item"].counts, amazon.sizes + 1)


@pytest.mark.parametrize(("name", "item", "lists", "cap"), [
    ("amazon-like", "item", "history", None),
    ("alibaba-like", "item", "item_history", 20),
    ("alibaba-like", "category", "category_history", 20),
])  # fmt: skip
def test_history_is_the_earlier_clicks(name, item, lists, cap):
    clients = small(name)
    label, ends = clients.columns["label"].values, clients.columns["holdout"].values
    for i in (0, 3, len(clients) - 1):
        span = np.arange(clients.offsets[i], clients.offsets[i + 1])
        rows = clients.gather(span, [item, lists, "user"], local=False)
        assert (rows["user"] == i + 1).all()
        liked: list[int] = []
        for place, sample in enumerate(span):
            expected = liked if cap is None else liked[-cap:]
            held = rows[lists][place]
            assert held[held > 0].tolist() == expected
            if label[sample]:
                liked.append(int(rows[item][place]))
        assert ends[span].sum() == len(span) // 5
        assert ends[span].tolist() == sorted(ends[span])


@pytest.mark.parametrize("name", TWINS)
def test_columns_and_labels(name):
    clients = small(name)
    assert {s.name: s.columns for s in clients.spaces.values()} == SPACES[name]
    assert all(s.padding == (name != "movielens-like") for s in clients.spaces.values())
    plain = [c.name for c in clients.columns.values() if c.space is None]
    assert plain == (["label", "holdout"] if TWINS[name].holdout else ["label"])
    assert clients.label == "label"
    if name == "alibaba-like":  # every item is in one category
        rows = clients.gather(np.arange(clients.samples), ["item", "category"], local=False)
        pairs = np.unique(np.stack([rows["item"], rows["category"]]), axis=1)
        assert len(np.unique(pairs[0])) == pairs.shape[1]


@pytest.mark.parametrize("name", TWINS)
def test_the_truth_is_calibrated_and_worth_learning(name):
    twin = TWINS[name]
    clients, truth = small(name), twin.truth(scale=SMALL[name])
    label = clients.columns["label"].values
    assert len(truth) == clients.samples
    deviation = np.sqrt((truth * (1 - truth)).sum())
    assert abs(label.sum() - truth.sum()) < 4 * deviation
    high = truth > np.quantile(truth, 0.8)
    assert abs(label[high].sum() - truth[high].sum()) < 4 * np.sqrt((truth * (1 - truth))[high].sum())
    assert 0.7 < auc(truth, label) < 0.9


def test_negation_turns_the_word_after_it():
    twin = TWINS["sentiment-like"]
    plan = twin.plan(0.05, 0)
    assert isinstance(plan, SentimentPlan)
    word, telling = np.flatnonzero(plan.negates)[0], np.flatnonzero(plan.polarity)[0]
    logits = plan._logits(np.array([telling, word, telling, word, telling]), np.array([1, 3, 1]))
    value = plan.polarity[telling]
    np.testing.assert_allclose(logits, [value, -value, value])


def test_clicks_follow_their_formula():
    draw = np.random.default_rng(0)
    sizes, recent = np.array([7, 60, 1]), 5
    group, base, luck = draw.integers(0, 3, 68), draw.normal(size=68), draw.random(68)
    probability, label = click(sizes, base, group, 2.0, luck, recent)
    at = 0
    for size in sizes:
        memory: list[int] = []
        for _ in range(size):
            last = memory[-recent:]
            share = last.count(group[at]) / len(last) if last else 0.0
            expected = 1 / (1 + np.exp(-base[at] - 2.0 * share))
            assert probability[at] == pytest.approx(expected)
            assert label[at] == (luck[at] < expected)
            memory += [group[at]] * int(label[at])
            at += 1


@pytest.mark.slow
def test_alibaba_has_the_published_shape(tmp_path):
    about = TWINS["alibaba-like"].write(tmp_path / "alibaba")
    assert (about["clients"], about["samples"]) == (49_023, 16_864_641)
    train, test = (Clients.open(tmp_path / "alibaba" / part) for part in ("train", "test"))
    assert (train.size("user"), train.size("item"), train.size("category")) == (49_024, 58_001, 5001)
    hottest, sparsity = 0, 0
    for name in ("item", "category"):
        size, clients = train.size(name), len(train)
        heat = np.zeros(size, np.int64)
        for begin in range(0, clients, 1000):
            parts = []
            for part in (train, test):
                space = part.spaces[name]
                low, high = np.searchsorted(part.client_ids, [begin, begin + 1000])
                owner = np.repeat(part.client_ids[low:high], space.counts[low:high])
                parts.append(owner * size + space.rows[space.row_offsets[low] : space.row_offsets[high]])
            heat += np.bincount(np.unique(np.concatenate(parts)) % size, minlength=size)
        hottest, sparsity = max(hottest, int(heat[1:].max())), sparsity + int(heat[1:].sum())
    assert hottest == 3142  # and the coldest are users, with heat 1
    assert sparsity / 63_000 / 49_023 == pytest.approx(0.0049, rel=0.1)


@pytest.mark.parametrize("name", TWINS)
@pytest.mark.parametrize("arguments", [
    {"scale": 0}, {"scale": -1}, {"scale": 101}, {"scale": float("nan")}, {"scale": "1"}, {"scale": 1e-6},
    {"scale": 0.01, "seed": -1}, {"scale": 0.01, "seed": 0.5}, {"scale": 0.01, "block": 0},
])  # fmt: skip
def test_bad_arguments(name, arguments):
    with pytest.raises(DataError):
        TWINS[name].make(**arguments)
