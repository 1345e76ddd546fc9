"""Reading: what goes in comes out, and S(i) is exactly what a client's samples touch."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import there

from fedsub.data import Clients
from fedsub.data import renumber as renumber_module

WORDS = st.text("abcXYZ0é", min_size=0, max_size=3)
KINDS = {"words": WORDS, "integers": st.integers(-(2**62), 2**62), "small": st.integers(-3, 5)}


@st.composite
def tables(draw):
    """Random samples: one id, a pair of ids and a list of ids sharing a space, and one id of its own."""
    ids = KINDS[draw(st.sampled_from(sorted(KINDS)))]
    clients = draw(st.sampled_from([WORDS, st.integers(-5, 5)]))
    row = st.tuples(clients, ids, st.tuples(ids, ids), st.lists(ids, max_size=4), st.integers(0, 9))
    return draw(st.lists(row, min_size=1, max_size=25))


def read(rows, **options) -> Clients:
    user, item, pair, history, other = (list(column) for column in zip(*rows, strict=True))
    one_type = pl.String if isinstance(item[0], str) else pl.Int64
    frame = pl.DataFrame(
        {
            "user": user,
            "item": item,
            "pair": pl.Series(pair, dtype=pl.Array(one_type, 2)),
            "history": pl.Series(history, dtype=pl.List(one_type)),
            "other": other,
            "row": range(len(rows)),
        }
    )
    ids = {"thing": ["item", "pair", "history"], "other": "other"}
    return Clients.from_frame(frame, "user", ids=ids, values=["row"], sizes={"other": 12}, **options)


@settings(deadline=None, max_examples=60)
@given(tables())
def test_global_rows_give_back_the_input(rows):
    clients = read(rows)
    got = clients.gather(np.arange(clients.samples), local=False)
    words = clients.spaces["thing"].vocabulary
    assert words is not None
    owners = clients.client_ids[clients.clients_of(np.arange(clients.samples))]
    for sample, row in enumerate(got["row"]):
        user, item, pair, history, other = rows[row]
        assert owners[sample] == user
        assert words[got["item"][sample]] == item
        assert tuple(words[got["pair"][sample]]) == pair
        assert list(words[got["history"][sample][: len(history)]]) == history
        assert not got["history"][sample][len(history) :].any()
        assert got["other"][sample] == other


@settings(deadline=None, max_examples=60)
@given(tables())
def test_rows_of_a_client_are_sorted_and_complete(rows):
    clients = read(rows)
    got = clients.gather(np.arange(clients.samples), local=False)
    for name, space in clients.spaces.items():
        assert len(space.row_offsets) == len(clients) + 1
        for i in range(len(clients)):
            own = slice(clients.offsets[i], clients.offsets[i + 1])
            touched = {int(r) for c in space.columns for r in got[c][own].reshape(-1)}
            assert list(space.rows_of(i)) == sorted(touched | ({0} if space.padding else set())), name


@settings(deadline=None, max_examples=30)
@given(tables(), st.integers(1, 8))
def test_the_size_of_a_chunk_changes_nothing(rows, chunk):
    whole = read(rows)
    usual, renumber_module.CHUNK = renumber_module.CHUNK, chunk
    try:
        assert read(rows).fingerprint == whole.fingerprint
    finally:
        renumber_module.CHUNK = usual


def test_example_of_the_module_docstring():
    clients = Clients.from_arrays(
        {"item": [7, 3, 9], "user": ["a", "a", "b"]}, "user", ids=["item"], sizes={"item": 10}
    )
    assert [list(clients.spaces["item"].rows_of(i)) for i in range(2)] == [[3, 7], [9]]
    assert list(clients.columns["item"].values) == [1, 0, 0]
    assert clients.columns["item"].values.dtype == np.int32
    assert clients.spaces["item"].rows.dtype == np.int32
    assert clients.spaces["item"].vocabulary is None


def test_order_within_a_client_is_kept_and_clients_are_sorted():
    clients = Clients.from_arrays({"x": [5, 4, 3, 2, 1]}, ["b", "a", "b", "a", "b"], ids=[], values=["x"])
    assert list(clients.client_ids) == ["a", "b"]
    assert list(clients.columns["x"].values) == [4, 2, 5, 3, 1]


def test_padding_is_row_zero_and_local_zero_of_everyone():
    clients = Clients.from_arrays(
        {"history": [["b", "c"], [], ["a"]], "item": ["c", "a", "b"]},
        [0, 1, 2],
        ids={"s": ["history", "item"]},
    )
    space = clients.spaces["s"]
    assert space.padding
    assert space.size == 4
    assert list(there(space.vocabulary)) == ["", "a", "b", "c"]
    assert all(space.rows_of(i)[0] == 0 for i in range(3))
    local = clients.gather(np.arange(3), local=True)
    assert local["history"].tolist() == [[1, 2], [0, 0], [1, 0]]


def test_declared_padding_of_prenumbered_columns():
    clients = Clients.from_arrays({"h": np.array([[3, 0], [0, 0]])}, [0, 1], ids=["h"], sizes={"h": 5}, padding=["h"])
    assert [list(clients.spaces["h"].rows_of(i)) for i in range(2)] == [[0, 3], [0]]
    assert clients.gather(np.arange(2), local=True)["h"].tolist() == [[1, 0], [0, 0]]


def test_max_len_keeps_the_newest_and_only_their_rows():
    clients = Clients.from_arrays({"h": [[1, 2, 3], [4]]}, [0, 1], ids=["h"], sizes={"h": 9}, max_len=2)
    assert clients.columns["h"].width == 2
    assert clients.gather(np.arange(2), local=False)["h"].tolist() == [[2, 3], [4, 0]]
    assert list(clients.spaces["h"].rows_of(0)) == [0, 2, 3]


def test_lists_that_are_all_empty():
    clients = Clients.from_arrays({"h": [[], []]}, [0, 1], ids=["h"])
    assert clients.size("h") == 1
    assert clients.gather(np.arange(2), local=True)["h"].tolist() == [[0], [0]]


def test_the_client_column_can_be_an_id_too():
    clients = Clients.from_arrays({"user": ["a", "b"]}, "user", ids=["user"])
    assert clients.gather(np.arange(2), local=False)["user"].tolist() == [0, 1]


def test_integer_values_keep_every_digit_and_times_become_integers():
    stamp = 1_700_000_000_123_456_789
    frame = pl.DataFrame({"u": [1], "t": [stamp], "x": [0.5], "d": [pl.date(1970, 1, 3)]}, strict=False)
    frame = frame.with_columns(pl.Series("d", [2], dtype=pl.Int32).cast(pl.Date))
    clients = Clients.from_frame(frame, "u", ids=[], values=["t", "x", "d"])
    assert clients.columns["t"].values.tolist() == [stamp]
    assert clients.columns["x"].values.dtype == np.float32
    assert clients.columns["d"].values.tolist() == [2]


def test_whole_floats_are_ids_and_offsets_replace_a_client_column():
    clients = Clients.from_arrays({"i": np.array([2.0, 0.0, 1.0])}, offsets=[0, 2, 3], ids=["i"], sizes={"i": 3})
    assert clients.gather(np.arange(3), local=False)["i"].tolist() == [2, 0, 1]
    assert clients.sizes.tolist() == [2, 1]


def test_labels_other_than_binary_on_request():
    clients = Clients.from_arrays({"y": [3.5, -1]}, [0, 1], ids=[], label="y", binary_label=False)
    assert clients.columns["y"].values.tolist() == [3.5, -1.0]


def test_every_source_gives_the_same_clients(tmp_path):
    plain = {"u": ["b", "a", "b"], "i": ["x", "y", "x"], "h": [["x", "z"], [], ["y"]], "y": [1, 0, 1]}
    frame = pl.DataFrame(plain)
    frame.write_parquet(tmp_path / "t[1].parquet")
    options = {"ids": {"item": ["i", "h"]}, "label": "y"}
    seen = {
        Clients.from_frame(frame, "u", **options).fingerprint,
        Clients.from_frame(frame.lazy(), "u", **options).fingerprint,
        Clients.from_frame(frame.to_arrow(), "u", **options).fingerprint,
        Clients.from_frame(pd.DataFrame(plain), "u", **options).fingerprint,
        Clients.from_arrays(plain, "u", **options).fingerprint,
        Clients.from_file(tmp_path / "t[1].parquet", "u", **options).fingerprint,
    }
    assert len(seen) == 1


@pytest.mark.parametrize(("suffix", "separator"), [("csv", ","), ("tsv", "\t")])
def test_text_files(tmp_path, suffix, separator):
    # The last id decides that the column is text, however far down it is.
    lines = [["u", "i", "y"], *[[str(n % 3), str(n), "1"] for n in range(300)], ["2", "7a", "0"]]
    (tmp_path / f"t.{suffix}").write_text("\n".join(separator.join(line) for line in lines))
    clients = Clients.from_file(tmp_path / f"t.{suffix}", "u", ids=["i"], label="y")
    assert clients.client_ids.tolist() == [0, 1, 2]
    assert clients.size("i") == 301
    assert clients.source.endswith(suffix)


def test_two_dimensional_strings_and_categories():
    frame = pl.DataFrame({"u": pl.Series(["b", "a"], dtype=pl.Categorical), "i": [1, 2]})
    assert list(Clients.from_frame(frame, "u", ids=["i"]).client_ids) == ["a", "b"]
    clients = Clients.from_arrays({"i": np.array([["x", "y"], ["y", "y"]])}, [0, 1], ids=["i"])
    assert clients.gather(np.arange(2), local=False)["i"].tolist() == [[0, 1], [1, 1]]


def test_fingerprint_depends_on_the_content_only():
    def of(item, user=(0, 0, 1)):
        return Clients.from_arrays({"i": item}, user, ids=["i"], sizes={"i": 9}).fingerprint

    assert of([1, 2, 3]) == of([1, 2, 3])
    assert len({of([1, 2, 3]), of([1, 2, 4]), of([2, 1, 3]), of([1, 2, 3], (0, 1, 1))}) == 4
