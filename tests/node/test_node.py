"""A server that sees bytes alone and nodes that have their own data alone: the simulation, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from node.processes import LOST, METHODS, ROUNDS, SEED, data, objective

import fedsub as fs
from fedsub.errors import CheckpointError, NoUsableClient, WireError
from fedsub.method.groups import Cohort
from fedsub.node import Node, Served, hand_out, serve
from fedsub.node.share import alone, only
from fedsub.node.store import Store
from fedsub.objective.population import Population
from fedsub.objective.problem import Problem
from fedsub.round import wire
from fedsub.round.here import delivers

SIZES = {"item": 40, "slot": 6}


@dataclass
class Direct:
    """A channel to a node in this process: bytes in, bytes out. ``spoil`` may change an answer on its way."""

    node: Node
    lost: float = 0.0
    spoil: Any = None
    waiting: list[bytes | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.waiting.append(self.node.hello())

    def send(self, data: bytes) -> None:
        message = wire.read(data)
        if message.kind == wire.WELCOME:
            self.node.join(data)
            return
        answer: bytes | None = self.node.answer(data)
        who = Cohort(np.array([message.client]), np.array([message.repeat]))
        trains = message.kind == wire.DOWN and message.flags == 0
        if trains and not delivers(who, self.lost, seed=SEED, round=message.round)[0]:
            answer = None
        elif trains and self.spoil is not None:
            answer = self.spoil(answer)
        self.waiting.append(answer)

    def receive(self) -> bytes | None:
        return self.waiting.pop(0)


def population() -> Population:
    return Population.of(Problem.bind(objective(SIZES), data()))


def nodes(folder: Path, name: str) -> dict[int, Node]:
    directories = hand_out(data(), folder / "data")
    return {n: Node(at, objective, METHODS[name](), n, folder / f"memory-{n}") for n, at in directories.items()}


def served(folder: Path, name: str, lost: float = 0.0, rounds: int = ROUNDS, **options: Any) -> Served:
    (folder / "data").mkdir(parents=True, exist_ok=True)
    channels = {number: Direct(node, lost) for number, node in nodes(folder, name).items()}
    population().save(folder / "population.safetensors")
    known = Population.open(folder / "population.safetensors")
    params = {n: p.detach().clone() for n, p in objective(known.rows).module.named_parameters()}
    return serve(METHODS[name](), params, known, channels, rounds=rounds, seed=SEED, **options)


LOSING = ("scaffold + fedsubavg", "ef-sign", "ucb-cs", "fedsubavg + adam", "drawn twice", "fedper, a table")


@pytest.mark.parametrize(("name", "lost"), [*((m, 0.0) for m in METHODS), *((m, LOST) for m in LOSING)])
def test_nodes_are_the_simulation(name: str, lost: float, tmp_path: Path) -> None:
    found = served(tmp_path, name, lost)
    simulated = fs.run(
        METHODS[name](), objective(SIZES), data(), rounds=ROUNDS, seed=SEED, engine="serial", lost=lost
    )  # fmt: skip
    for parameter, value in simulated.params.items():
        assert torch.equal(found.params[parameter], value), parameter
    for report, record in zip(found.reports, simulated.history[1:], strict=True):
        assert [report.total_down, report.total_up] == [record["down"], record["up"]]
        assert [report.loss, len(report.lost)] == [record["loss"], record["lost"]]


def test_a_table_on_a_node_has_only_its_own_rows(tmp_path: Path) -> None:
    clients = data()
    for number, node in nodes(tmp_path, "fedsubavg").items():
        for name, space in node.problem.tables.items():
            assert len(node.params[name]) == len(clients.spaces[space.name].rows_of(number))


def test_one_client_alone_has_the_same_samples() -> None:
    clients = data()
    for number in range(len(clients)):
        own = only(clients, number)
        ids = np.arange(int(clients.offsets[number]), int(clients.offsets[number + 1]))
        for local in (True, False):
            theirs, mine = clients.gather(ids, local=local), own.gather(np.arange(own.samples), local=local)
            assert all(np.array_equal(theirs[c], mine[c]) for c in theirs)
        assert alone(own).gather(np.arange(own.samples), local=False).keys() == mine.keys()


def test_a_lost_answer_does_not_fork_what_a_client_keeps(tmp_path: Path) -> None:
    """The node has trained round 1 and saved; the server never heard of it, and asks again from the beginning."""
    node = nodes(tmp_path, "scaffold + fedsubavg")[1]
    sent: list[bytes] = []

    class Twice(Direct):
        def send(self, data: bytes) -> None:
            if wire.read(data).kind == wire.DOWN:
                sent.append(self.node.answer(data))  # computed and saved, and lost on its way
            super().send(data)

    method = METHODS["scaffold + fedsubavg"]()
    everyone = fs.Method(
        local=method.local, parts=method.parts, average=method.average, server=method.server,
        sampler=fs.sampling.Available(fs.Everyone(), fs.sampling.Mask(np.arange(8) == 1)), name=method.name,
    )  # fmt: skip
    node.method = everyone
    params = {n: p.detach().clone() for n, p in objective(SIZES).module.named_parameters()}
    channel = Twice(node)
    serve(everyone, params, population(), {1: channel}, rounds=3, seed=SEED)
    assert len(sent) == 3
    assert Store(node.folder, 1).rounds == [2, 3]  # older ones are forgotten once the server named a later one


def test_memory_that_is_gone_is_said(tmp_path: Path) -> None:
    node = nodes(tmp_path, "scaffold + fedsubavg")[0]
    with pytest.raises(CheckpointError, match="after round 7"):
        Store(node.folder, 1).load(node.memory, 7)


def test_nodes_that_all_run_another_method_are_refused(tmp_path: Path) -> None:
    channels = {n: Unread(node) for n, node in nodes(tmp_path, "fedsubavg").items()}
    params = {n: p.detach().clone() for n, p in objective(SIZES).module.named_parameters()}
    with pytest.raises(NoUsableClient, match="another method"):
        serve(METHODS["fednova"](), params, population(), channels, rounds=1)


class Unread(Direct):
    """A channel that keeps the welcome for the test."""

    told = b""

    def send(self, data: bytes) -> None:
        self.told = data


@pytest.mark.parametrize("said", ["another method", "nothing", "damaged"])
def test_a_node_that_cannot_take_part_is_left_out(said: str, tmp_path: Path) -> None:
    """The others train on, as if it were lost whenever it is drawn."""
    everyone, odd = nodes(tmp_path / "here", "fedsubavg"), 3
    unread = Unread(nodes(tmp_path / "odd", "fednova" if said == "another method" else "fedsubavg")[odd])
    channels = {n: unread if n == odd else Direct(node) for n, node in everyone.items()}
    hello = unread.waiting[0]
    unread.waiting[0] = {"another method": hello, "nothing": None, "damaged": (hello or b"")[:-1] + b"?"}[said]

    def trained(folder: Path, channels: Mapping[int, Direct]) -> Served:
        params = {n: p.detach().clone() for n, p in objective(SIZES).module.named_parameters()}
        return serve(METHODS["fedsubavg"](), params, population(), channels, rounds=ROUNDS, seed=SEED)

    found = trained(tmp_path, channels)
    assert list(found.left_out) == [odd]
    assert any(odd in report.clients[report.lost] for report in found.reports)
    assert all((report.down[report.clients == odd] == 0).all() for report in found.reports)
    absent = nodes(tmp_path / "absent", "fedsubavg")
    del absent[odd]  # no channel at all
    expected = trained(tmp_path, {n: Direct(node) for n, node in absent.items()})
    assert all(torch.equal(found.params[n], value) for n, value in expected.params.items())
    if said != "nothing":
        with pytest.raises(WireError, match="leaves client 3 out"):
            unread.node.join(unread.told)


def test_a_client_that_refuses_itself_is_counted(tmp_path: Path) -> None:
    """NaN in what a client would send: the server is told, adds nothing and goes on."""
    found, bad = nodes(tmp_path, "fedsubavg"), 3
    column = found[bad].problem.clients.columns["label"]
    object.__setattr__(column, "values", column.values * np.float32("nan"))
    channels = {n: Direct(node) for n, node in found.items()}
    params = {n: p.detach().clone() for n, p in objective(SIZES).module.named_parameters()}
    done = serve(METHODS["fedsubavg"](), params, population(), channels, rounds=6, seed=SEED)
    assert any(bad in report.rejected for report in done.reports)
    assert all(torch.isfinite(value).all() for value in done.params.values())
