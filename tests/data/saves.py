"""Small data to save, and whether it is the same."""

from __future__ import annotations

import numpy as np

from fedsub.data import Clients


def small(items=("x", "y", "x", "ü")) -> Clients:
    return Clients.from_arrays(
        {"i": list(items), "h": [["x"], [], ["y", "z"], []], "w": np.ones((4, 3)), "t": [4, 3, 2, 1]},
        ["b", "a", "b", "c"],
        ids={"any/name": ["i", "h"]},
        values=["w", "t"],
    )


def assert_same(a: Clients, b: Clients) -> None:
    assert (a.fingerprint, a.label, list(a.columns), list(a.spaces)) == (
        b.fingerprint,
        b.label,
        list(b.columns),
        list(b.spaces),
    )
    np.testing.assert_array_equal(a.client_ids, b.client_ids)
    np.testing.assert_array_equal(a.offsets, b.offsets)
    for x, y in zip(a.columns.values(), b.columns.values(), strict=True):
        assert (x.space, x.width, x.values.dtype) == (y.space, y.width, y.values.dtype)
        np.testing.assert_array_equal(x.values, y.values)
        np.testing.assert_equal(x.starts, y.starts)
    for x, y in zip(a.spaces.values(), b.spaces.values(), strict=True):
        assert (x.size, x.columns, x.padding, x.rows.dtype) == (y.size, y.columns, y.padding, y.rows.dtype)
        np.testing.assert_array_equal(x.rows, y.rows)
        np.testing.assert_array_equal(x.row_offsets, y.row_offsets)
        np.testing.assert_equal(x.vocabulary, y.vocabulary)
