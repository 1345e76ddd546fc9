"""Heat: against brute force, on small cases worked by hand, and its statistics and picture."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsub.data import heat
from fedsub.data.clients import Clients, Space
from fedsub.errors import DataError


def make_space(name: str, size: int, sets, *, padding: bool = False, vocabulary=None) -> Space:
    """A space from one set of rows per client; with padding, row 0 is added to every set."""
    held = [sorted(set(rows) | ({0} if padding else set())) for rows in sets]
    offsets = np.cumsum([0, *map(len, held)]).astype(np.int64)
    rows = np.array([row for rows in held for row in rows], np.int32)
    return Space(name, size, (name,), offsets, rows, padding, vocabulary)


def make_clients(sizes, *spaces: Space) -> Clients:
    offsets = np.cumsum([0, *sizes]).astype(np.int64)
    return Clients(np.arange(len(sizes)), offsets, {}, {space.name: space for space in spaces})


@st.composite
def worlds(draw):
    """(size, one set of rows per client, sizes with at least one sample, padding)."""
    size = draw(st.integers(1, 12))
    clients = draw(st.integers(1, 10))
    sets = draw(st.lists(st.sets(st.integers(0, size - 1)), min_size=clients, max_size=clients))
    sizes = draw(st.lists(st.integers(0, 30), min_size=clients, max_size=clients).filter(any))
    return size, sets, sizes, draw(st.booleans())


# Counting ------------------------------------------------------------------------------------------


def test_docstring_example():
    space = make_space("item", 9, [{3, 7}, {3}])
    assert heat.row_heat(space).tolist() == [0, 0, 0, 2, 0, 0, 0, 1, 0]
    assert heat.weighted_heat(space, np.array([5, 2])).tolist() == [0, 0, 0, 7, 0, 0, 0, 5, 0]


@given(worlds())
def test_heat_by_brute_force(world):
    size, sets, sizes, padding = world
    space = make_space("item", size, sets, padding=padding)
    if padding:
        sets = [rows | {0} for rows in sets]
    n, weighted = heat.row_heat(space), heat.weighted_heat(space, np.array(sizes))
    trained = heat.row_heat(space, np.array(sizes))
    assert n.dtype == trained.dtype == np.int64
    assert weighted.dtype == np.float64
    for row in range(size):
        owners = [i for i, rows in enumerate(sets) if row in rows]
        assert n[row] == len(owners)
        assert weighted[row] == sum(sizes[i] for i in owners)
        assert trained[row] == sum(sizes[i] > 0 for i in owners)
    if padding:
        assert n[0] == len(sets)
        assert weighted[0] == sum(sizes)


def test_row_heat_leaves_the_space_alone_and_takes_no_clients():
    space = make_space("item", 4, [])
    assert heat.row_heat(space).tolist() == [0, 0, 0, 0]
    assert heat.weighted_heat(space, np.zeros(0, np.int64)).tolist() == [0, 0, 0, 0]
    space = make_space("item", 4, [{1}, {2}])
    heat.row_heat(space)[:] = 9
    assert heat.row_heat(space).tolist() == [0, 1, 1, 0]


def test_padding_is_held_by_everybody_even_when_it_is_not_listed():
    listed = make_space("item", 3, [{1}, {1, 2}, set()])
    space = replace(listed, padding=True)
    sizes = np.array([4, 2, 0])
    assert heat.row_heat(space).tolist() == [3, 2, 1]
    assert heat.row_heat(space, sizes).tolist() == [2, 2, 1]
    assert heat.weighted_heat(space, sizes).tolist() == [6, 6, 2]


def test_row_beyond_the_table_is_refused():
    space = make_space("item", 3, [{1, 3}])
    with pytest.raises(DataError, match=r"'item' has 3 rows, .* row 3"):
        heat.row_heat(space)
    with pytest.raises(DataError, match="'item'"):
        heat.weighted_heat(space, np.array([1]))


# Statistics ----------------------------------------------------------------------------------------


@given(worlds(), st.integers(1, 5))
def test_summary_by_brute_force(world, k: int):
    size, sets, sizes, padding = world
    first = make_space("item", size, sets, padding=padding)
    second = make_space("word", size + 2, [{size, size + 1} for _ in sets])
    report = heat.summarise(make_clients(sizes, first, second), clients_per_round=k)
    population = sum(w > 0 for w in sizes)
    counts = {
        "item": [sum(m in s and w > 0 for s, w in zip(sets, sizes, strict=True)) for m in range(size)][padding:],
        "word": [0] * size + [population] * 2,
    }
    counts["all"] = counts["item"] + counts["word"]
    masses = [sum(w for s, w in zip(sets, sizes, strict=True) if m in s) for m in range(padding, size)]
    assert report.clients == population
    assert [s.name for s in report.spaces] == ["item", "word"]
    for summary in (*report.spaces, report.overall):
        n = counts[summary.name]
        held = [x for x in n if x]
        assert summary.rows == len(n)
        assert summary.unheld == n.count(0)
        assert summary.single == n.count(1)
        if not held:
            assert (summary.min, summary.max, summary.mean, summary.median) == (0, 0, 0, 0)
            assert math.isnan(summary.dispersion)
            assert math.isnan(summary.weighted_dispersion)
            assert summary.burst is not None
            assert math.isnan(summary.burst)
            continue
        assert (summary.min, summary.max) == (min(held), max(held))
        assert summary.mean == pytest.approx(np.mean(held))
        assert summary.median == np.median(held)
        assert summary.dispersion == pytest.approx(max(held) / min(held))
        assert summary.sparsity_held == pytest.approx(np.mean(held) / population)
        assert summary.sparsity_all == pytest.approx(np.mean(n) / population)
        assert summary.burst == pytest.approx(population / (min(held) * k))
    light = [w for w in masses if w]
    if light:
        summary = report.spaces[0]
        assert (summary.weighted_min, summary.weighted_max) == (min(light), max(light))
        assert summary.weighted_dispersion == pytest.approx(max(light) / min(light))


def test_overall_dispersion_is_taken_across_spaces():
    """MovieLens-1M in small: the hottest feature is a gender, the coldest a movie with one rating.

    4,331 of 6,040 clients are male, and 3,428 rated the most popular movie.
    """
    gender = make_space("gender", 2, [{int(i < 4331)} for i in range(6040)], vocabulary=np.array(["F", "M"]))
    movie = make_space("movie", 3, [{0} if i < 3428 else {1} if i == 5000 else set() for i in range(6040)])
    report = heat.summarise(make_clients([1] * 6040, gender, movie), clients_per_round=50)
    assert report.overall.dispersion == 4331
    assert report.overall.hottest == "gender=M"
    assert report.spaces[0].dispersion == pytest.approx(4331 / 1709)
    assert report.spaces[1].dispersion == 3428
    assert report.spaces[1].hottest == "movie=0"
    assert report.spaces[1].unheld == 1
    assert report.overall.burst == pytest.approx(120.8)
    assert report.parameter_dispersion == 6040


@pytest.mark.parametrize("n", [2, 10, 57])
def test_example_1(n: int):
    """w1 is held by one client, w2 by all: dispersion N, sparsity (1 + N) / 2N."""
    space = make_space("w", 2, [{0, 1}] + [{1}] * (n - 1))
    clients = make_clients([3] * n, space)
    overall = heat.summarise(clients).overall
    assert overall.dispersion == overall.weighted_dispersion == n
    assert overall.sparsity_all == pytest.approx((1 + n) / (2 * n))
    assert overall.burst is None


def test_parameter_heat():
    clients = make_clients([1, 1, 1, 1, 0], make_space("item", 4, [{0, 1}, {0, 1}, {0}, set(), {3}]))
    assert heat.parameter_heat(clients, dense=False) == heat.ParameterHeat(2, 3)
    assert heat.parameter_heat(clients, dense=False).dispersion == heat.summarise(clients).overall.dispersion
    assert heat.parameter_heat(clients) == heat.ParameterHeat(2, 4)
    assert heat.parameter_heat(clients).dispersion == heat.summarise(clients).parameter_dispersion == 2
    assert heat.parameter_heat(make_clients([1, 1])) == heat.ParameterHeat(2, 2)  # only dense layers


def test_weighted_heat_disperses_on_its_own():
    clients = make_clients([100, 1], make_space("item", 2, [{0}, {1}]))
    overall = heat.summarise(clients).overall
    assert overall.dispersion == 1
    assert overall.weighted_dispersion == 100


# Histogram and deciles -----------------------------------------------------------------------------


@given(st.lists(st.integers(0, 5000), max_size=200), st.booleans())
def test_histogram_counts_every_held_row_once(values: list[int], padding: bool):
    n = np.array(values, np.int64)
    edges, counts = heat.histogram(n, padding=padding)
    held = [x for x in values[padding:] if x > 0]
    assert len(edges) == len(counts) + 1
    assert np.all(np.diff(edges) > 0)
    assert counts.sum() == len(held)
    for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True):
        assert count == sum(low <= x < high for x in held)


def test_histogram_bins_are_logarithmic_and_whole():
    edges, _ = heat.histogram(np.array([1, 9999]), bins=4)
    assert edges.tolist() == [1, 10, 100, 1000, 10000]
    edges, counts = heat.histogram(np.array([1, 1, 2, 3, 0]))
    assert edges.tolist() == [1, 2, 3, 4]  # no empty bin between 1 and 2
    assert counts.tolist() == [2, 1, 1]
    edges, counts = heat.histogram(np.array([0.3, 0.3, 7.5]), bins=3)
    assert edges[0] == 0.3
    assert counts.tolist() == [2, 0, 1]


def test_deciles_of_distinct_heat():
    n = np.random.default_rng(0).permutation(100) + 1
    assert heat.deciles(n).tolist() == ((n - 1) // 10).tolist()
    assert heat.deciles(n).dtype == np.int8


def test_deciles_of_ties():
    n = np.array([0] * 5 + [1] * 6 + [2] * 2 + [50] * 2)
    # Ranks of ten held rows: 0..6 (middle 3), 6..8 (middle 7), 8..10 (middle 9).
    assert heat.deciles(n).tolist() == [-1] * 5 + [3] * 6 + [7] * 2 + [9] * 2
    assert heat.deciles(np.full(7, 4)).tolist() == [5] * 7
    assert heat.deciles(np.zeros(3, np.int64)).tolist() == [-1] * 3
    assert heat.deciles(np.array([9, 1, 0]), padding=True).tolist() == [-1, 5, -1]
    assert heat.deciles(np.zeros(0, np.int64)).tolist() == []


@given(st.lists(st.integers(0, 8), max_size=60), st.booleans())
def test_deciles_by_brute_force(values: list[int], padding: bool):
    got = heat.deciles(np.array(values, np.int64), padding=padding)
    held = [x for x in values[padding:] if x > 0]
    for j, x in enumerate(values):
        if x == 0 or (padding and j == 0):
            assert got[j] == -1
        else:
            below, upto = sum(y < x for y in held), sum(y <= x for y in held)
            assert got[j] == 10 * (below + upto) // (2 * len(held))
            assert 0 <= got[j] <= 9
    order = np.argsort(values[padding:], kind="stable")
    assert np.all(np.diff(got[int(padding) :][order]) >= 0)


# Picture -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spaces", [0, 1, 3, 12])
def test_plot_writes_a_picture_without_pyplot_state(tmp_path, spaces: int):
    rng = np.random.default_rng(0)
    made = [
        make_space(f"s{j}", 40, [set(rng.zipf(1.6, 5) % 40) for _ in range(30)], padding=j == 1) for j in range(spaces)
    ]
    path = tmp_path / "heat.png"
    heat.plot(make_clients([2] * 30, *made), path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 5000
    from matplotlib._pylab_helpers import Gcf

    assert not Gcf.figs
