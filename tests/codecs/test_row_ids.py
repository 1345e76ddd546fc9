"""Row ids as bytes and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsub.errors import DataError
from fedsub.method.codecs.wire import decode_rows, encode_rows, row_id_bytes, rows_size


@given(st.integers(1, 3_000_000).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), max_size=60))))
def test_row_ids_round_trip(case: tuple[int, set[int]]):
    size, held = case
    rows = np.array(sorted(held), np.int64)
    data = encode_rows(rows, size)
    assert np.array_equal(decode_rows(data, size), rows)
    assert len(data) == rows_size(rows, size) <= 1 + (size + 7) // 8


def test_row_ids_of_many_clients():
    draw = np.random.default_rng(0)
    size = 5000
    lists = [np.sort(draw.choice(size, n, replace=False)) for n in (0, 1, 3, 5000, 700, 0, 80, 2500)]
    offsets = np.concatenate([[0], np.cumsum([len(r) for r in lists])])
    found = row_id_bytes(offsets, np.concatenate(lists).astype(np.int32), size)
    assert found.dtype == np.int64
    assert found.tolist() == [len(encode_rows(r, size)) for r in lists]
    assert found[0] == 1
    assert found[3] == 1 + 625
    assert row_id_bytes(np.array([0]), np.array([], np.int64), size).tolist() == []


def test_known_row_id_bytes():
    assert encode_rows(np.array([0, 1, 130]), 10_000) == bytes([0, 0, 0, 128, 1])
    assert encode_rows(np.arange(8), 16) == bytes([1, 255, 0])
    for damaged in (bytes([2, 0]), bytes([0, 200, 1]), bytes([1, 255, 0, 0]), b""):
        with pytest.raises(DataError):
            decode_rows(damaged, 16)
