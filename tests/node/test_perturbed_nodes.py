"""Nodes that perturb the rows they name: what they once said stands, and what they refuse to say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from node.processes import SEED, data, objective
from node.test_secret_nodes import COMMON, ROUNDS, SIZES, Channel, population, served

import fedsub as fs
from fedsub.errors import CheckpointError, WireError
from fedsub.node import Node, hand_out, serve
from fedsub.node.naming import Naming
from fedsub.privacy import PermanentResponse
from fedsub.privacy.heat.words import secret, simulated
from fedsub.round import wire
from fedsub.secure import wire as sums

RESPONSE = PermanentResponse(p1=0.75, p2=0.25, p3=0.9, p4=0.1)
EVERY = np.arange(50)


def method() -> fs.Method:
    return fs.methods.fedsubavg(secure=fs.SecureSum(0.5, rows="perturbed:3"), weight_decay=0.1, **COMMON)


def naming(folder: Path, response: PermanentResponse = RESPONSE) -> Naming:
    return Naming(response, folder, lambda space: secret(b"s" * 32, space, "m"))


def often(one: Naming, held: np.ndarray, size: int = 50, first: int = 0) -> np.ndarray:
    """In which share of 300 rounds each row is named."""
    said = np.zeros(size)
    for number in range(first, first + 300):
        said[one.said("item", held, np.arange(size), size, number, padded=False)] += 1
    return said / 300


def test_nodes_are_the_simulation_where_they_have_its_words(tmp_path: Path) -> None:
    """Model, losses and bytes; what crosses in the clear is rows of the union, and nothing else goes up."""
    channels = {}
    for number, at in hand_out(data(), tmp_path / "data").items():
        node = Node(at, objective, method(), number, tmp_path / f"memory-{number}")
        node.heat.words = lambda _, space, n=number: simulated(SEED, space, np.array([n]))  # type: ignore[method-assign]
        channels[number] = Channel(node)
    params = {n: p.detach().clone() for n, p in objective(SIZES).module.named_parameters()}
    found = serve(method(), params, population(), channels, rounds=ROUNDS, seed=SEED)
    simulated_run = fs.run(method(), objective(SIZES), data(), rounds=ROUNDS, seed=SEED, engine="serial")
    for parameter, value in simulated_run.params.items():
        assert torch.equal(found.params[parameter], value), parameter
    for report, record in zip(found.reports, simulated_run.history[1:], strict=True):
        assert [report.loss, report.measured] == [record["loss"], {k: record[k] for k in report.measured}]
        assert [report.total_down, report.total_up] == [record["down"], record["up"]]
    assert found.refused == []
    crossed = sum(len(d) for c in channels.values() for d in c.crossed)
    assert sum(r.total_down + r.total_up for r in found.reports) == crossed
    for channel in channels.values():
        for up in channel.crossed[1::2]:
            if up[:4] != sums.MAGIC and wire.read(up).tensors:
                assert wire.read(up).kind == wire.NAME_ROWS


@pytest.mark.parametrize(("over", "stage"), [("rows", sums.INBOX), ("names", 0), ("values", sums.INBOX)])
def test_who_drops_out_is_lost(over: str, stage: int, tmp_path: Path) -> None:
    """While the union is found, when it is to name rows, and when values are due: then a sum is played again."""
    state = {"kind": 0}

    def deaf(data: bytes) -> bool:
        if data[:4] != sums.MAGIC:
            state["kind"] = wire.read(data).kind
            return over == "names" and state["kind"] == wire.NAME_ROWS
        due = wire.COUNT_ROWS if over == "rows" else wire.ADD_UP
        return over != "names" and state["kind"] == due and sums.HEAD.unpack_from(data)[2] == stage

    found, channels = served(tmp_path, method, {2: deaf})
    drawn = [report for report in found.reports if 2 in report.clients]
    assert drawn
    assert any(channel.gone for channel in channels.values())
    for report in drawn:
        assert 2 in report.clients[report.lost]
        assert report.measured["given_up"] == (over == "values")
        assert np.isfinite(report.loss)


def test_what_is_said_of_a_row_stands(tmp_path: Path) -> None:
    """After a restart, when data change, and whatever else is asked about; rows of a table that has grown join it."""
    held = np.arange(0, 50, 3)
    first = often(naming(tmp_path), held)
    assert ((abs(first - 0.9) < 0.08) | (abs(first - 0.1) < 0.08)).all()  # the lasting answers, not the truth beneath
    lasting = first > 0.5
    assert 0 < lasting[held].sum() < len(held)
    again = often(naming(tmp_path), np.zeros(0, np.int64), first=1000) > 0.5
    assert np.array_equal(again, lasting)
    grown = often(naming(tmp_path), np.arange(50, 80), size=80, first=2000) > 0.5
    assert np.array_equal(grown[:50], lasting)
    assert grown[50:].mean() > 0.5
    part = naming(tmp_path).said("item", held, np.array([4, 17]), 80, 5, padded=False)
    whole = naming(tmp_path).said("item", held, np.arange(80), 80, 5, padded=False)
    assert part.tolist() == [row for row in (4, 17) if row in whole]


def test_a_row_is_decided_on_when_it_is_first_asked_about(tmp_path: Path) -> None:
    """What the client has got since then, and nobody asked about before, it says as it is."""
    plain = PermanentResponse(preset=1)
    one = naming(tmp_path, plain)
    assert one.said("item", np.array([3]), np.array([3, 4]), 50, 1, padded=False).tolist() == [3]
    assert one.said("item", np.array([4, 9]), EVERY, 50, 2, padded=False).tolist() == [3, 9]


def test_a_bound_holds_for_all_rows_that_were_ever_held(tmp_path: Path) -> None:
    told = PermanentResponse(p1=1.0, p2=0.0, p3=1.0, p4=0.0, rows=3)
    one = naming(tmp_path, told)
    first = one.said("item", np.array([0, 1]), np.arange(20), 50, 1, padded=False)
    assert first.tolist() == [0, 1]
    later = one.said("item", np.arange(20, 40), EVERY, 50, 2, padded=False)
    assert len(later) == 3
    assert later[:2].tolist() == [0, 1]


def test_the_padding_row_is_named_by_all(tmp_path: Path) -> None:
    never = PermanentResponse(p1=0.5, p2=0.0, p3=1.0, p4=0.0)
    one = naming(tmp_path, never)
    for number in range(5):
        assert one.said("item", np.array([0]), EVERY, 50, number, padded=True).tolist() == [0]


def test_a_damaged_memory_is_not_drawn_anew(tmp_path: Path) -> None:
    naming(tmp_path).said("item", EVERY[:5], EVERY, 50, 1, padded=False)
    [path] = tmp_path.glob("rows-*")
    with pytest.raises(CheckpointError, match="once said"):
        naming(tmp_path).said("item", EVERY[:5], EVERY[:40], 40, 1, padded=False)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="once said"):
        naming(tmp_path).said("item", EVERY[:5], EVERY, 50, 1, padded=False)


def test_what_a_node_refuses(tmp_path: Path) -> None:
    """To name rows twice in a round, before the union is there, and where its method does not; a count of rows."""
    found, channels = served(tmp_path, method)
    me = int(found.reports[-1].clients[0])
    node, told = channels[me].node, [d for d in channels[me].crossed[::2] if d[:4] != sums.MAGIC]
    asked = [m for m in map(wire.read, told) if m.kind == wire.NAME_ROWS][-1]
    with pytest.raises(WireError, match="named already"):
        node.answer(wire.write(asked))
    with pytest.raises(WireError, match="was counted"):
        node.answer(wire.write(replace(asked, round=ROUNDS + 1)))
    union = [m for m in map(wire.read, told) if m.kind == wire.UNION][-1]
    with pytest.raises(WireError, match="trained already"):
        node.answer(wire.write(union))
    counted = [m for m in map(wire.read, told) if m.kind == wire.COUNT_ROWS][-1]
    with pytest.raises(WireError, match="of the past"):
        node.answer(wire.write(counted))

    def plain() -> fs.Method:
        return fs.methods.fedsubavg(secure=fs.SecureSum(0.5), **COMMON)

    found, channels = served(tmp_path / "union", plain)
    me = int(found.reports[-1].clients[0])
    with pytest.raises(WireError, match="names no rows by its method"):
        channels[me].node.answer(wire.write(replace(asked, client=me, round=ROUNDS)))
    plainly = [d for d in channels[node.number].crossed[::2] if d[:4] != sums.MAGIC]
    counts = [m for m in map(wire.read, plainly) if m.kind == wire.COUNT_ROWS]
    node.sums.round = 0
    with pytest.raises(WireError, match="of another kind"):
        node.answer(wire.write(counts[0]))


def told(channel: Channel, kind: int) -> wire.Envelope:
    """The last letter of a kind that a node got."""
    letters = [wire.read(d) for d in channel.crossed[::2] if d[:4] != sums.MAGIC]
    return [letter for letter in letters if letter.kind == kind][-1]


def test_no_refusal_tells_how_many_samples_are_left(tmp_path: Path) -> None:
    """A server that claims a smaller largest weight is refused by what a node weighs with all its samples: it knows
    that, and learns nothing of the number that is left."""
    found, channels = served(tmp_path, method)
    fewer = 0
    for client in found.reports[-1].clients.tolist():
        node, union = channels[client].node, told(channels[client], wire.UNION)
        assert node.sums.trained is not None
        left = node.sums.trained[1].numbers["weight"]
        fewer += left < node.samples - 1
        for claimed in {left, (left + node.samples) // 2, node.samples - 1} - {node.samples}:
            node.sums.trained = None
            lie = {**union.tensors, "heaviest": torch.tensor(float(claimed))}
            with pytest.raises(WireError, match=f"this node has {node.samples}"):
                node.answer(wire.write(replace(union, tensors=lie)))
        true = {**union.tensors, "heaviest": torch.tensor(float(node.samples))}
        assert not wire.read(node.answer(wire.write(replace(union, tensors=true)))).tensors
    assert fewer > 0


def test_what_goes_up_is_as_long_whatever_of_the_named_rows_is_held(tmp_path: Path) -> None:
    """Preset 5: all name the union, and some hold nearly nothing of it; also who has no samples left."""
    lengths: set[tuple[int, ...]] = set()
    everybody: dict[str, Any] = COMMON | {"clients_per_round": 8}

    def whole() -> fs.Method:
        return fs.methods.fedsubavg(secure=fs.SecureSum(0.5, rows="perturbed:5"), **everybody)

    _, channels = served(tmp_path / "5", whole)
    for channel in channels.values():
        lengths.add(tuple(len(up) for up in channel.crossed[1::2]))
    assert len({len(channel.node.held["item"]) for channel in channels.values()}) > 1
    assert len(lengths) == 1


def test_a_node_keeps_its_own_budget_for_the_names_in_every_table(tmp_path: Path) -> None:
    """Two tables of three rows cost 6 ε∞; where that is all there is, no noised update goes out."""
    once = 6 * np.log(15)

    def most(epsilon: float) -> int:
        parts = (
            fs.LocalDP(0.5, noise=2.0, epsilon=epsilon),
            fs.SecureSum(9.0, rows=PermanentResponse(preset=2, rows=3)),
        )
        m = fs.Method(
            local=fs.SGD(lr=0.3), parts=parts, average=fs.OverClients(), server=fs.Add(), sampler=fs.Uniform(5)
        )
        [at, *_] = hand_out(data(), tmp_path / f"data{epsilon}").values()
        return Node(at, objective, m, 0, tmp_path / f"{epsilon}").noise.most

    assert most(once + 0.01) == 0
    assert most(once + 20) > 0
