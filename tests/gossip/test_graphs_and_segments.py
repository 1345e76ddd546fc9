"""Graphs, whom nodes ask, what they share, and how a model is cut."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import combinations

import networkx
import numpy as np
import pytest
import torch

import fedsub as fs
from fedsub import rng
from fedsub.data.clients import Space
from fedsub.errors import ConfigError, MethodError, MissingExtra
from fedsub.gossip import Complete, Given, Regular, Ring, SmallWorld, Torus, graph_of
from fedsub.gossip import spectrum as spectra
from fedsub.gossip.graphs import Links
from fedsub.gossip.holdings import Holdings
from fedsub.gossip.peers import distinct, drawn
from fedsub.gossip.segments import Segments, even
from fedsub.gossip.spectrum import gap_of, matrix
from fedsub.gossip.words import availability_of


def whole(links: Links) -> np.ndarray:
    out = np.zeros((len(links.degrees),) * 2, int)
    out[links.owners, links.ends] = 1
    return out


@pytest.mark.parametrize(
    ("graph", "nodes", "degrees"),
    [(Ring(), 7, {2}), (Ring(), 2, {1}), (Torus(), 12, {4}), (Regular(3), 10, {3}), (SmallWorld(4, 0.0), 9, {4})],
)
def test_a_graph_has_its_neighbours_in_both_directions_and_nobody_twice(graph, nodes: int, degrees: set) -> None:
    for moved in (False, True):
        found = whole(graph.links(nodes, 5, moved=moved))
        assert (found == found.T).all()
        assert not found.diagonal().any()
        assert set(found.sum(0).tolist()) == degrees
        assert networkx.is_connected(networkx.from_numpy_array(found))
    assert (whole(graph.links(nodes, 5)) == whole(graph.links(nodes, 5))).all()


def test_graphs_are_those_of_their_names() -> None:
    ring = whole(Ring().links(6, 0))
    assert [np.flatnonzero(row).tolist() for row in ring] == [[1, 5], [0, 2], [1, 3], [2, 4], [3, 5], [0, 4]]
    torus = whole(Torus().links(12, 0))  # 3 × 4: node 5 is row 1, column 1
    assert np.flatnonzero(torus[5]).tolist() == [1, 4, 6, 9]
    rewired = whole(SmallWorld(4, 0.5).links(40, 3))
    assert rewired.sum() == 40 * 4  # edges move, none is lost
    assert (rewired != whole(SmallWorld(4, 0.0).links(40, 3))).any()
    assert (whole(Regular(4).links(20, 1)) != whole(Regular(4).links(20, 2))).any()


def test_a_graph_of_ones_own() -> None:
    star = networkx.star_graph(4)
    assert whole(graph_of(star).links(5, 0)).sum(0).tolist() == [4, 1, 1, 1, 1]
    assert graph_of(star) == graph_of(networkx.star_graph(4)) != graph_of(networkx.path_graph(5))
    assert hash(graph_of(star)) == hash(graph_of(networkx.star_graph(4)))
    directed = networkx.DiGraph([(0, 1), (1, 0), (1, 2), (2, 2)])
    assert whole(graph_of(directed).links(3, 0)).sum() == 4
    with pytest.raises(MethodError, match="numbers 0 to 2, in the order of the clients"):
        graph_of(networkx.Graph([("a", "b"), ("b", "c")]))
    with pytest.raises(MethodError, match="5 nodes and the data 6 clients"):
        graph_of(star).check(6)
    with pytest.raises(MethodError, match="names node 7"):
        Given(5, np.array([[0, 7]]))
    with pytest.raises(MethodError, match="names node -3"):
        Given(5, np.array([[-3, 4]]))
    with pytest.raises(MethodError, match="whole numbers"):
        Given(5, np.array([0.5, 1.0]))
    with pytest.raises(MethodError, match="pairs of nodes"):
        Given(5, [[0, 1], [2]])  # type: ignore[arg-type]
    assert len(Given(5, []).links(5, 0).ends) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize(("degree", "nodes"), [(98, 100), (90, 100), (50, 100), (99, 100)])
def test_dense_regular_graphs_are_found_at_once(degree: int, nodes: int) -> None:
    """By pairing ends at random they would not be found in any time."""
    found = whole(Regular(degree).links(nodes, 1))
    assert (found == found.T).all()
    assert not found.diagonal().any()
    assert (found.sum(0) == degree).all()


@pytest.mark.parametrize(
    ("word", "graph"),
    [("complete", Complete()), ("ring", Ring()), ("torus", Torus()), ("regular:8", Regular(8)), ("regular", Regular(4)),
     ("small-world:6,0.25", SmallWorld(6, 0.25)), ("small-world:6", SmallWorld(6, 0.1)), (Ring(), Ring())],
)  # fmt: skip
def test_words_for_graphs(word, graph) -> None:
    assert graph_of(word) == graph


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: graph_of("rink"), "did you mean 'ring'"),
        (lambda: graph_of("ring:3"), "ring takes none"),
        (lambda: graph_of("regular:a"), "write it like regular:8"),
        (lambda: graph_of(Ring), "graph must be"),
        (lambda: graph_of(3), "graph must be"),
        (lambda: availability_of("daily:24"), "has 1 numbers"),
        (lambda: availability_of("sometimes"), "one of random, daily"),
        (lambda: Regular(5).check(7), "one of the two numbers even"),
        (lambda: Regular(7).check(7), "fewer than the nodes"),
        (lambda: Torus().check(7), "no grid of two sides"),
        (lambda: SmallWorld(3), "even, not 3"),
        (lambda: SmallWorld(4, 1.5), "rewired"),
        (lambda: SmallWorld(8).check(8), "8 neighbours each"),
    ],
)
def test_refusals(call, message: str) -> None:
    with pytest.raises((MethodError, ConfigError), match=message):
        call()


def test_without_networkx_it_is_said_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(MissingExtra, match=r"networkx.*pip install -e '\.\[gossip\]'"):
        Ring().links(5, 0)
    assert fs.methods.gossip(graph="complete").graph == Complete()


def test_peers_are_distinct_and_every_choice_is_as_likely() -> None:
    count = 6000
    found = distinct(np.full(count, 5), 3, rng.key(1, np.arange(count)))
    assert (np.diff(found, axis=1) > 0).all()
    assert found.min() == 0
    assert found.max() == 4
    seen = Counter(map(tuple, found.tolist()))
    assert set(seen) == set(combinations(range(5), 3))
    expected = count / 10
    assert sum((n - expected) ** 2 / expected for n in seen.values()) < 27.9  # chi², 9 degrees: 1 in 1,000
    few = distinct(np.array([0, 1, 2, 4]), 3, rng.key(2, np.arange(4)))
    assert few[:3].tolist() == [[-1, -1, -1], [0, -1, -1], [0, 1, -1]]


def test_whom_nodes_ask_is_a_function_of_seed_round_node_and_segment() -> None:
    nodes = np.array([0, 2, 3, 7, 9])
    pulls = drawn(nodes, None, 2, 3, seed=1, round=4)
    assert len(pulls) == 5 * 2 * 3
    assert (pulls.to != pulls.of).all()
    assert set(pulls.of.tolist()) <= set(nodes.tolist())
    again = drawn(nodes, None, 2, 3, seed=1, round=4)
    assert all(np.array_equal(a, b) for a, b in zip(vars(pulls).values(), vars(again).values(), strict=True))
    others = [drawn(nodes, None, 2, 3, seed=s, round=r).of.tolist() for s, r in ((2, 4), (1, 5))]
    assert pulls.of.tolist() not in others
    by_segment = [pulls.of[pulls.segment == s].tolist() for s in range(3)]
    assert by_segment[0] != by_segment[1] != by_segment[2]
    links = Ring().links(10, 0)
    on_ring = drawn(np.arange(10), links, 1, 40, seed=1, round=1)
    assert set(((on_ring.of - on_ring.to) % 10).tolist()) == {1, 9}


@pytest.mark.parametrize("lookups", [7, 1 << 20])
def test_shared_rows_are_those_of_a_set_intersection(lookups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where slots are shared, where rows are cut into segments, and in small portions."""
    from fedsub.gossip import holdings

    monkeypatch.setattr(holdings, "AT_ONCE", lookups)
    draw, size = np.random.default_rng(0), 60
    held = [np.flatnonzero(draw.random(size) < share) for share in draw.random(25) ** 2]
    held[4] = np.zeros(0, np.int64)
    offsets = np.concatenate([[0], np.cumsum([len(rows) for rows in held])])
    one = Holdings(Space("item", size, ("item",), offsets, np.concatenate(held).astype(np.int32)))
    crowded = (one._words[2] == -2).sum()
    assert crowded > 3
    to, of = (np.repeat(np.arange(25), 25), np.tile(np.arange(25), 25))
    edges = np.array([0, 13, 13, 41, 60])
    begin, end = one.within(edges[:-1], edges[1:])
    for s in range(4):
        found = one.shared(to, of, (begin[to, s], begin[of, s]), (end[to, s], end[of, s]))
        assert (np.diff(found.pull) >= 0).all()
        for pair in range(len(to)):
            mine, theirs = held[to[pair]], held[of[pair]]
            rows = np.intersect1d(mine, theirs)
            rows = rows[(rows >= edges[s]) & (rows < edges[s + 1])]
            now = found.pull == pair
            assert one.rows[found.at[now]].tolist() == one.rows[found.there[now]].tolist() == rows.tolist()
            assert (one.owners[found.at[now]] == to[pair]).all()
            assert (one.owners[found.there[now]] == of[pair]).all()
    found = one.shared(to, of, (offsets[to], offsets[of]), (offsets[to + 1], offsets[of + 1]))
    some = np.array([3, 30, 31, 624])
    taken = found.take(some)
    assert [int((taken.pull == k).sum()) for k in range(4)] == [int((found.pull == pair).sum()) for pair in some]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 18, 40, 53, 100])
def test_segments_differ_by_one_value_and_hold_every_value_once(count: int) -> None:
    like = {"a": torch.zeros(7, 5), "b": torch.zeros(4), "c": torch.zeros(()), "t": torch.zeros(13)}
    tables = {"a": "item", "t": "item"}
    found = Segments.of(count, like, tuple(like), tables)
    sizes = np.diff(found.edges)
    assert sizes.sum() == found.values == 53
    assert sizes.max() - sizes.min() <= 1
    assert (np.diff(sizes) <= 0).all()  # the last is the shorter one
    offset, seen = 0, np.zeros(53, int)
    for name, value in like.items():
        width = value[0].numel() if name in tables else 1
        for s in range(count):
            inside = np.zeros(value.numel(), bool)
            if name in tables:
                rows = found.rows[name]
                inside[rows.first[s] * width : rows.last[s] * width] = True
            for stretch in found.stretches:
                if (stretch.name, stretch.segment) == (name, s):
                    at = (stretch.row or 0) * width
                    assert not inside[at + stretch.begin : at + stretch.end].any()
                    inside[at + stretch.begin : at + stretch.end] = True
            flat = np.flatnonzero(inside) + offset
            assert ((flat >= found.edges[s]) & (flat < found.edges[s + 1])).all()
            seen[flat] += 1
            if name in tables:
                touched = np.unique(np.flatnonzero(inside) // width)
                assert touched.tolist() == list(range(*found.rows[name].touched[s].tolist()))
        offset += value.numel()
    assert (seen == 1).all()


def test_even_pieces() -> None:
    assert even(4, 10).tolist() == [3, 3, 2, 2]
    assert even(3, 2).tolist() == [1, 1, 0]


@pytest.mark.parametrize("peers", [None, 1, 3])
@pytest.mark.parametrize(
    "graph", [Ring(), Torus(), Regular(4), SmallWorld(4, 0.3), Given(12, np.array([[0, 5], [5, 7]]))]
)
def test_the_gap_is_that_of_the_mixing_matrix(graph, peers: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the eigenvalues of W written out, of W as a sparse matrix, and where they have a closed form."""
    links = graph.links(12, 1)
    adjacent = whole(links)
    degrees = adjacent.sum(0)
    w = adjacent / (1.0 + np.maximum.outer(degrees, degrees))
    if peers is not None:
        heard = np.minimum(peers, degrees)
        w = adjacent * (heard / np.maximum(degrees, 1) / (heard + 1))[:, None]
    w += np.diag(1 - w.sum(1))
    second = np.sort(np.abs(np.linalg.eigvals(w)))[-2]
    assert gap_of(*matrix(links, peers)) == pytest.approx(1 - second, abs=1e-9)
    mixing = fs.gossip.Metropolis() if peers is None else fs.gossip.RandomPeers(peers=peers)
    method = fs.gossip.Gossip(local=fs.SGD(), mixing=mixing, graph=graph)
    if not isinstance(graph, Regular | SmallWorld):  # their graph is another one there
        assert spectra.Spectrum(method, 12, 0).gap(3) == pytest.approx(1 - second, abs=1e-9)
    monkeypatch.setattr(spectra, "DENSE", 0)
    assert gap_of(*matrix(links, peers)) == pytest.approx(1 - second, abs=1e-7)
