"""Heat of held rows alone is that of counting in an array of all rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedsub.data import held
from fedsub.data.columns import Space
from fedsub.data.heat import deciles, row_heat
from fedsub.data.held import held_deciles, held_heat


def spaces(padding: bool, seed: int) -> dict[str, Space]:
    draw = np.random.default_rng(seed)
    out = {}
    for name, size in (("a", 40), ("b", 2000), ("nobody's", 10)):
        lists = [np.unique((size * draw.random(draw.integers(0, 30)) ** 3).astype(np.int32)) for _ in range(50)]
        if name == "nobody's":
            lists = [np.zeros(0, np.int32)] * 50
        if padding:
            lists = [np.union1d([0], rows).astype(np.int32) for rows in lists]
        offsets = np.concatenate([[0], np.cumsum([len(rows) for rows in lists])])
        out[name] = Space(name, size, (name,), offsets, np.concatenate(lists), padding)
    return out


@pytest.mark.parametrize("dense", [0, 1 << 20])
@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_held_heat_is_row_heat(monkeypatch, dense, padding, seed):
    monkeypatch.setattr(held, "DENSE", dense)
    some = spaces(padding, seed)
    sizes = np.random.default_rng(seed + 9).integers(0, 3, 50)
    if not dense:  # so few entries that the array of all rows would be the larger one
        some = {name: replace(one, size=max(one.size, len(one.rows) + 1)) for name, one in some.items()}
    expected = {}
    for name, one in some.items():
        for own in (None, sizes):
            heat = row_heat(one, own)
            heat[: int(padding)] = 0
            found = held_heat(one, own)
            assert np.array_equal(found.rows, np.flatnonzero(heat))
            everything = np.arange(one.size).reshape(-1, 1)
            assert np.array_equal(found.at(everything), heat[everything])
            expected.setdefault(name, heat)
    together = np.split(
        deciles(np.concatenate(list(expected.values()))), np.cumsum([len(h) for h in expected.values()])
    )
    for (name, found), tenth in zip(held_deciles(some).items(), together, strict=False):
        assert np.array_equal(found.at(np.arange(some[name].size), -1), tenth)


def test_counting_and_sorting_give_the_same_deciles():
    heat = np.array([1, 1, 1, 70_000, 2, 2, 9, 0])
    assert deciles(heat).tolist() == deciles(heat.astype(np.float64)).tolist()
    assert deciles(heat[:3]).tolist() == [5, 5, 5]


def test_a_look_at_some_rows_costs_what_they_are():
    """Whatever the types: a search among numbers of another type would copy all of them."""
    import tracemalloc

    rows = np.arange(0, 3_000_000, 3, dtype=np.int32)
    one = held.Held(rows, np.ones(len(rows), np.int64))
    asked = np.array([0, 1, 2_999_997, 6], np.int64)
    tracemalloc.start()
    found = one.at(asked)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.tolist() == [1, 0, 1, 1]
    assert most < 100_000


def test_rows_may_be_asked_for_by_larger_numbers():
    """Held rows are int32 as long as they fit; a number that does not fit is not taken for another one."""
    largest = np.iinfo(np.int32).max
    one = held.Held(np.array([3, largest], np.int32), np.array([1.5, 2.5]))
    asked = np.array([[3, largest], [largest + 1, 2**32 + 3]])
    assert one.at(asked, -1).tolist() == [[1.5, 2.5], [-1, -1]]
