"""Parts of a federation: nothing lost, nothing doubled, and S(i) counts the part's own samples only."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsub.data import Clients
from fedsub.data.split import pooled, select, split, take
from fedsub.errors import ColumnError, DataError


def federation(samples: int = 400, clients: int = 30, seed: int = 0) -> Clients:
    rng = np.random.default_rng(seed)
    return Clients.from_arrays(
        {
            "item": rng.integers(0, 50, samples),
            "history": [rng.integers(0, 50, rng.integers(0, 4)).tolist() for _ in range(samples)],
            "time": rng.permutation(samples) + 10**15,
            "number": np.arange(samples),
            "y": rng.integers(0, 2, samples),
        },
        rng.integers(0, clients, samples),
        ids={"item": ["item", "history"]},
        label="y",
        values=["time", "number"],
    )


def content(clients: Clients) -> dict[int, tuple]:
    """Every sample by its number: owner and global rows, independent of grouping and numbering."""
    got = clients.gather(np.arange(clients.samples), local=False)
    owners = clients.client_ids[clients.clients_of(np.arange(clients.samples))]
    return {
        int(n): (owners[s], int(got["item"][s]), got["history"][s].tolist(), float(got["y"][s]))
        for s, n in enumerate(got["number"])
    }


def check_rows(clients: Clients) -> None:
    got = clients.gather(np.arange(clients.samples), local=False)
    space = clients.spaces["item"]
    for i in range(len(clients)):
        own = slice(clients.offsets[i], clients.offsets[i + 1])
        held = {0} | set(got["item"][own].tolist()) | set(got["history"][own].reshape(-1).tolist())
        assert space.rows_of(i).tolist() == sorted(held)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from(["random", "time", "last"]), st.floats(0.2, 0.9))
def test_parts_add_up_to_the_whole(seed, by, share):
    whole = federation(60, 8, seed)
    train, test = split(whole, share, by=by, column=None if by == "random" else "time", seed=seed)
    left, right = content(train), content(test)
    assert not left.keys() & right.keys()
    assert left | right == content(whole)
    for part in (train, test):
        check_rows(part)
        assert part.sizes.min() > 0
        assert part.size("item") == whole.size("item")
        assert part.spaces["item"].vocabulary is whole.spaces["item"].vocabulary


def test_random_share_and_seed():
    whole = federation(20_000, 50)
    train, test = whole.split(0.8, seed=3)
    assert abs(train.samples / whole.samples - 0.8) < 0.01
    assert whole.split(0.8, seed=3)[1].fingerprint == test.fingerprint
    assert whole.split(0.8, seed=4)[1].fingerprint != test.fingerprint


def test_time_is_one_cut_for_everybody():
    train, test = federation().split(0.75, by="time", column="time")
    assert train.columns["time"].values.max() < test.columns["time"].values.min()
    assert train.samples == 300


def test_equal_times_stay_together():
    whole = Clients.from_arrays({"t": [1, 1, 1, 2]}, [0, 1, 2, 0], ids=[], values=["t"])
    train, test = whole.split(0.5, by="time", column="t")
    assert (train.samples, test.samples) == (3, 1)


def test_last_sample_of_each_client():
    whole = Clients.from_arrays({"t": [3, 9, 4, 8, 8]}, [0, 0, 0, 1, 2], ids=[], values=["t"])
    train, test = whole.split(by="last")
    assert test.columns["t"].values.tolist() == [4, 8, 8]
    assert train.client_ids.tolist() == [0]  # the others had one sample only
    assert whole.split(by="last", column="t")[1].columns["t"].values.tolist() == [9, 8, 8]


def test_pooled_holds_the_union():
    whole = federation()
    one = pooled(whole)
    assert len(one) == 1
    assert one.spaces["item"].rows.tolist() == np.unique(whole.spaces["item"].rows).tolist()
    assert {n: v[1:] for n, v in content(one).items()} == {n: v[1:] for n, v in content(whole).items()}


def test_select_keeps_the_given_order_and_take_drops_the_empty():
    whole = federation()
    chosen = select(whole, [5, 2])
    assert chosen.client_ids.tolist() == whole.client_ids[[5, 2]].tolist()
    assert chosen.spaces["item"].rows_of(0).tolist() == whole.spaces["item"].rows_of(5).tolist()
    assert content(chosen).items() <= content(whole).items()
    part = take(whole, np.array([whole.offsets[3], whole.offsets[7]]))
    assert part.client_ids.tolist() == whole.client_ids[[3, 7]].tolist()
    check_rows(part)


def test_taking_everything_changes_nothing():
    whole = federation()
    assert take(whole, np.arange(whole.samples)).fingerprint == whole.fingerprint
    assert select(whole, range(len(whole))).fingerprint == whole.fingerprint


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"by": "tme"}, "'time'"),
        ({"train": 1.0}, "between 0 and 1"),
        ({"train": "most"}, "between 0 and 1"),
        ({"seed": -1}, "seed=-1"),
        ({"train": float("nan")}, "between 0 and 1"),
        ({"column": "time"}, "uses no column, got 'time'"),
        ({"by": "time"}, "needs column.*time, number"),
        ({"by": "time", "column": "tme"}, "did you mean 'time'"),
        ({"by": "time", "column": "item"}, "cannot order samples"),
        ({"train": 1 - 1e-12}, "no sample for the test part"),
    ],
)
def test_bad_splits(arguments, words):
    with pytest.raises(DataError, match=words):
        federation(40, 4).split(**arguments)


@pytest.mark.parametrize("chosen", [[], [0, 0], [-1], [99], [0.5]])
def test_bad_selections(chosen):
    with pytest.raises(DataError, match=r"select\(\)"):
        select(federation(40, 4), chosen)


@pytest.mark.parametrize("samples", [[], [1, 0], [1, 1], [-1], [40], [0.5]])
def test_bad_takes(samples):
    with pytest.raises(DataError, match=r"take\(\)"):
        take(federation(40, 4), np.array(samples))


def test_ending_takes_the_last_share_of_every_client():
    clients = Clients.from_arrays(
        {"item": np.arange(12) % 4, "label": np.arange(12) % 2, "at": np.arange(12)[::-1]},
        np.repeat([0, 1, 2], [5, 6, 1]),
        ids=["item"], label="label", values=["at"],
    )  # fmt: skip
    train, test = clients.split(0.8, by="ending")
    assert train.sizes.tolist() == [4, 5, 1]
    assert test.columns["at"].values.tolist() == [7, 1]
    _, test = clients.split(0.8, by="ending", column="at")
    assert test.columns["at"].values.tolist() == [11, 6]


def test_a_column_of_marks_cuts_the_data():
    arrays = {"item": np.arange(4), "label": np.arange(4) % 2, "held": np.array([0, 1, 0, 1])}
    clients = Clients.from_arrays(arrays, np.array([0, 0, 1, 1]), ids=["item"], label="label", values=["held"])
    train, test = clients.split(by="column", column="held")
    assert train.sizes.tolist() == test.sizes.tolist() == [1, 1]
    with pytest.raises(DataError, match=r"by='column'.* needs column"):
        clients.split(by="column")
    arrays["held"] = np.array([0, 1, 0, 2])
    clients = Clients.from_arrays(arrays, np.array([0, 0, 1, 1]), ids=["item"], label="label", values=["held"])
    with pytest.raises(ColumnError, match="0 and 1 only, but has"):
        clients.split(by="column", column="held")


def test_a_dropped_column_leaves_the_content_and_its_fingerprint():
    offsets, item, time = [0, 3, 5], [1, 2, 3, 1, 2], [5.0, 4.0, 3.0, 2.0, 1.0]
    without = Clients.from_arrays({"item": item}, offsets=offsets, ids=["item"])
    with_time = Clients.from_arrays({"item": item, "time": time}, offsets=offsets, ids=["item"], values=["time"])
    assert with_time.fingerprint != without.fingerprint
    assert with_time.drop("time").fingerprint == without.fingerprint
    assert with_time.drop() is with_time
    with pytest.raises(ColumnError, match="only plain value columns"):
        with_time.drop("item")
