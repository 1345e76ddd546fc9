"""Nodes and a server that adds in secret: the simulation, bit for bit; who drops out; what is refused."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from node.processes import SEED, data, objective

import fedsub as fs
from fedsub.errors import FedsubError, MethodError, WireError
from fedsub.method.codecs.wire import encode_rows
from fedsub.node import Node, Served, hand_out, serve
from fedsub.objective.population import Population
from fedsub.objective.problem import Problem
from fedsub.round import wire
from fedsub.round.secure.vector import Given, Ranges
from fedsub.secure import wire as sums

SIZES, ROUNDS = {"item": 40, "slot": 6}, 3
COMMON: dict[str, Any] = {"lr": 0.3, "local_steps": 3, "batch_size": 4, "clients_per_round": 5}
METHODS = {
    "fedsubavg": lambda **o: fs.methods.fedsubavg(secure=fs.SecureSum(0.5, **o), **COMMON),
    "scaffold": lambda **o: fs.methods.scaffold(secure=fs.SecureSum(0.5, payload_clip=2.0, **o), **COMMON),
    "fedper, adam": lambda **o: fs.methods.fedper(
        personal=["slots.*"], server="adam", secure=fs.SecureSum(0.5, **o), **COMMON
    ),
}


@dataclass
class Channel:
    """A channel to a node in this process. Once it was ``deaf`` in a round, from a message on, it stays so in it."""

    node: Node
    deaf: Any = None  # bytes -> whether nobody is there any more
    waiting: list[bytes | None] = field(default_factory=list)
    crossed: list[bytes] = field(default_factory=list)
    gone: bool = False

    def __post_init__(self) -> None:
        self.waiting.append(self.node.hello())

    def send(self, data: bytes) -> None:
        if data[:4] != sums.MAGIC and wire.read(data).kind == wire.WELCOME:
            self.node.join(data)
            return
        if data[:4] != sums.MAGIC and wire.read(data).kind == wire.COUNT_ROWS:
            self.gone = False
        self.gone = self.gone or (self.deaf is not None and self.deaf(data))
        try:
            self.waiting.append(None if self.gone else self.node.answer(data))
        except FedsubError:
            self.waiting.append(None)
        self.crossed += [data, self.waiting[-1] or b""]

    def receive(self) -> bytes | None:
        return self.waiting.pop(0)


def population() -> Population:
    return Population.of(Problem.bind(objective(SIZES), data()))


def served(folder: Path, method, deaf: dict[int, Any] | None = None) -> tuple[Served, dict[int, Channel]]:
    directories = hand_out(data(), folder / "data")
    channels = {
        n: Channel(Node(at, objective, method(), n, folder / f"memory-{n}"), (deaf or {}).get(n))
        for n, at in directories.items()
    }
    params = {n: p.detach().clone() for n, p in objective(SIZES).module.named_parameters()}
    return serve(method(), params, population(), channels, rounds=ROUNDS, seed=SEED), channels


@pytest.mark.parametrize("name", METHODS)
def test_nodes_that_add_in_secret_are_the_simulation(name: str, tmp_path: Path) -> None:
    found, channels = served(tmp_path, METHODS[name])
    simulated = fs.run(METHODS[name](), objective(SIZES), data(), rounds=ROUNDS, seed=SEED, engine="serial")
    for parameter, value in simulated.params.items():
        assert torch.equal(found.params[parameter], value), parameter
    for report, record in zip(found.reports, simulated.history[1:], strict=True):
        assert [report.loss, report.measured["withheld"]] == [record["loss"], record["withheld"]]
        assert [report.total_down, report.total_up] == [record["down"], record["up"]]
    assert found.refused == []
    crossed = sum(len(d) for c in channels.values() for d in c.crossed)
    assert sum(r.total_down + r.total_up for r in found.reports) == crossed
    # No message names rows or values of one client: all that went up are sums' messages and empty answers.
    for channel in channels.values():
        for up in channel.crossed[1::2]:
            assert up[:4] == sums.MAGIC or not wire.read(up).tensors


class Line(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(1, 1)

    def forward(self, batch):
        return self.line(batch["x"].unsqueeze(-1)).squeeze(-1)


def test_a_model_without_tables_is_the_simulation_too(tmp_path: Path) -> None:
    """There are no rows to count, nor heat to ask for: a round is one sum."""
    draw = np.random.default_rng(0)
    clients = fs.Clients.from_arrays(
        {"x": draw.normal(size=60).astype("f4"), "label": draw.integers(0, 2, 60), "user": np.repeat(np.arange(6), 10)},
        client="user", ids=[], label="label", values=["x"],
    )  # fmt: skip

    def line(_: Any = None) -> fs.Objective:
        torch.manual_seed(0)
        return fs.Objective(Line(), fs.losses.binary("label"), {})

    def method() -> fs.Method:
        return fs.methods.fedsubavg(heat="secure", secure=fs.SecureSum(0.5), **COMMON)

    nodes = {n: Node(at, line, method(), n, tmp_path / f"m{n}") for n, at in hand_out(clients, tmp_path / "d").items()}
    params = {n: p.detach().clone() for n, p in line().module.named_parameters()}
    known = Population.of(Problem.bind(line(), clients))
    found = serve(method(), params, known, {n: Channel(node) for n, node in nodes.items()}, rounds=ROUNDS, seed=SEED)
    simulated = fs.run(method(), line(), clients, rounds=ROUNDS, seed=SEED, engine="serial")
    assert all(torch.equal(found.params[name], value) for name, value in simulated.params.items())
    for report, record in zip(found.reports, simulated.history[1:], strict=True):
        assert [report.total_down, report.total_up, report.loss] == [record["down"], record["up"], record["loss"]]


def at_stage(stage: int, over: str):
    """Deaf from a stage of a sum on: that of rows, or of values."""
    state = {"values": False}

    def deaf(data: bytes) -> bool:
        if data[:4] != sums.MAGIC:
            state["values"] = wire.read(data).kind != wire.COUNT_ROWS
            return stage == 0 and state["values"] == (over == "values")
        return state["values"] == (over == "values") and sums.HEAD.unpack_from(data)[2] == stage

    return deaf


@pytest.mark.parametrize(("stage", "over", "spare", "again"), [
    (sums.INBOX, "rows", 0, 0), (sums.SURVIVORS, "rows", 0, 0), (0, "values", 0, 0), (sums.INBOX, "values", 0, 1),
    (sums.INBOX, "values", 1, 0), (sums.AGREED, "values", 0, 0),
])  # fmt: skip
def test_who_drops_out_is_lost_or_counted_whole(stage: int, over: str, spare: int, again: int, tmp_path: Path) -> None:
    """Lost at every stage until its masked values arrived, and in the sum afterwards; and how often it is given up."""

    def method() -> fs.Method:
        return fs.methods.fedavg(weighting="clients", secure=fs.SecureSum(0.5, spare=spare), **COMMON)

    found, channels = served(tmp_path, method, {2: at_stage(stage, over)})
    drawn = [report for report in found.reports if 2 in report.clients]
    assert drawn
    assert any(channel.gone for channel in channels.values())
    for report in drawn:
        assert (2 not in report.clients[report.lost]) == (stage == sums.AGREED)
        assert report.measured["given_up"] == again
        assert np.isfinite(report.loss)


def test_a_client_that_counts_itself_wrongly_costs_a_round_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give = Ranges.give

    def lies(self: Ranges, client: int, round: int, *told: Any) -> Given:
        given = give(self, client, round, *told)
        return replace(given, numbers={**given.numbers, "count": int(round != 2)})

    monkeypatch.setattr(Ranges, "give", lies)
    done, _ = served(tmp_path, METHODS["fedsubavg"])
    assert [len(report.lost) for report in done.reports] == [0, 5, 0]
    assert "counted themselves" in " ".join(done.reports[1].notes)


@pytest.mark.parametrize("rows", ["union", "perturbed:3"])
def test_nodes_that_stay_up_play_another_run(rows: str, tmp_path: Path) -> None:
    """Its rounds begin at 1 again. Rows that are perturbed are named as they were, so that it tells nothing new."""

    def method() -> fs.Method:
        return fs.methods.fedsubavg(heat="secure", secure=fs.SecureSum(0.5, rows=rows), **COMMON)

    nodes = {
        n: Node(at, objective, method(), n, tmp_path / f"m{n}") for n, at in hand_out(data(), tmp_path / "d").items()
    }
    params = {n: p.detach().clone() for n, p in objective(SIZES).module.named_parameters()}
    found, names = [], []
    for run in (1, 2):
        channels = {n: Channel(node) for n, node in nodes.items()}
        found.append(serve(method(), params, population(), channels, rounds=ROUNDS, seed=SEED, run=run))
        ups = [(n, wire.read(up)) for n, c in channels.items() for up in c.crossed[1::2] if up[:4] != sums.MAGIC]
        names.append([(n, up.round, str(up.tensors)) for n, up in ups if up.kind == wire.NAME_ROWS])
    assert [len(report.lost) for one in found for report in one.reports] == [0] * 2 * ROUNDS
    assert all(torch.equal(found[1].params[name], value) for name, value in found[0].params.items())
    assert names[0] == names[1]
    assert bool(names[0]) == (rows != "union")


def test_what_a_node_refuses(tmp_path: Path) -> None:
    """Rows in the clear, a second count of a round, a union without its rows, and what comes out of turn."""
    found, channels = served(tmp_path, METHODS["fedsubavg"])
    me, run = int(found.reports[-1].clients[0]), 1
    node, told = channels[me].node, [d for d in channels[me].crossed[::2] if d[:4] != sums.MAGIC]
    assert node.sums.round == ROUNDS

    def kind_of(kind: int) -> wire.Envelope:
        return [m for m in map(wire.read, told) if m.kind == kind][-1]

    with pytest.raises(WireError, match="in the clear"):
        node.answer(wire.write(wire.Envelope(wire.INVITE, 9, me, run=run)))
    with pytest.raises(WireError, match="of the past"):
        node.answer(wire.write(kind_of(wire.COUNT_ROWS)))
    with pytest.raises(WireError, match="lacks 'setting'"):
        node.answer(wire.write(wire.Envelope(wire.COUNT_ROWS, 9, me, run=run)))
    union = kind_of(wire.UNION)
    with pytest.raises(WireError, match="trained already"):
        node.answer(wire.write(union))
    add = kind_of(wire.ADD_UP)
    fewer = torch.from_numpy(np.frombuffer(encode_rows(np.array([0]), 40), np.uint8).copy())
    with pytest.raises(WireError, match="other segments"):
        node.answer(wire.write(replace(add, tensors={**add.tensors, "rows/item": fewer})))
    with pytest.raises(WireError, match=r"may be missing|not those that the setting"):
        node.answer(wire.write(replace(add, tensors={**add.tensors, "spare": torch.tensor(-1)})))
    node.sums.trained = None
    with pytest.raises(WireError, match="Nothing was trained"):
        node.answer(wire.write(add))
    with pytest.raises(WireError, match="Waited for nothing"):
        node.answer(sums.write(sums.ROSTER, 1, ROUNDS, me, bytes(32)))
    with pytest.raises(MethodError, match="union"):
        served(tmp_path / "clear", lambda: METHODS["fedsubavg"](rows="clear"))
