"""For tests of your own: does a part do the same in every engine, grouping, process and after an interruption?

from fedsub.testing import check_part
check_part(Latest())
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedsub.data.clients import Clients
from fedsub.disk.checkpoint import Checkpoints
from fedsub.method.average import OverHolders
from fedsub.method.local import SGD
from fedsub.method.part import Part
from fedsub.method.sampling import Uniform
from fedsub.method.servers import Add
from fedsub.method.slots import Method
from fedsub.node import Node, serve
from fedsub.node.share import only
from fedsub.objective.losses import Binary
from fedsub.objective.objective import Objective
from fedsub.objective.population import Population
from fedsub.objective.problem import Problem
from fedsub.round import wire
from fedsub.running.callbacks import Callback
from fedsub.running.result import Result
from fedsub.running.run import run
from fedsub.secure.wire import MAGIC
from fedsub.trees import Tree

ROUNDS, SEED = 4, 7
CLOSE = 1e-9  # between engines, in double precision


def check_part(part: Part, *beside: Part, method: Method | None = None) -> None:
    """Raise AssertionError, with what was seen, unless a part does the same however it is run.

    On small data with tables of its own (one with padding) and a model in double precision it is compared: the serial
    engine with the batched one, by what clients send and keep and by the trained model; chunks of several sizes and two
    workers, bit for bit; a run that is interrupted and resumed, bit for bit, its state too; and clients that have only
    bytes, bit for bit, with the bytes that the simulation counts. ``beside`` are parts that stand before it;
    ``method`` gives the other slots.
    """
    base = method or Method(
        local=SGD(lr=0.2, local_steps=3, batch_size=3), average=OverHolders("samples"), server=Add(), sampler=Uniform(4)
    )
    tried = Method(
        local=base.local, parts=(*beside, part), average=base.average, server=base.server, sampler=base.sampler,
        name="checked",
    )  # fmt: skip
    name = type(part).__name__
    serial = _run(tried, "serial")
    batched = _run(tried, "batched", chunk=4)
    if batched.engine != "batched":
        raise AssertionError(f"{name} cannot be batched: {'; '.join(batched.events)}")
    gap = max(_gap(serial.params[n], batched.params[n]) for n in serial.params)
    if not gap <= CLOSE:
        raise AssertionError(
            f"{name} trains another model in the batched engine: {gap:.2g} apart after {ROUNDS} rounds. What is one "
            "number per client goes through Group.spread, what sums one client's values through Group.total."
        )
    for what, options in (("chunk=2", {"chunk": 2}), ("chunk=3, workers=2", {"chunk": 3, "workers": 2})):
        _same(name, f"in the batched engine with {what}", batched.params, _run(tried, "batched", **options).params)
    for engine, whole in (("serial", serial), ("batched", batched)):
        _check_resume(name, tried, engine, whole)
    _check_bytes(name, tried, serial)


def _check_resume(name: str, method: Method, engine: str, whole: Result) -> None:
    with tempfile.TemporaryDirectory() as folder:
        plain, broken = Path(folder) / "plain", Path(folder) / "broken"
        _run(method, engine, out=plain, checkpoint_every=2)
        with suppress(InterruptedError):
            _run(method, engine, out=broken, checkpoint_every=2, callbacks=[_Halt()])
        resumed = _run(method, engine, out=broken, checkpoint_every=2, resume=True)
        _same(name, f"after an interruption ({engine})", whole.params, resumed.params)
        states = [Checkpoints(at / "checkpoints").load()[0] for at in (plain, broken)]
        kept = [{**state.tensors, **state.tables} for state in states]
        _same(name, f"in what is kept after an interruption ({engine})", kept[0], kept[1])


def _check_bytes(name: str, method: Method, serial: Result) -> None:
    """Clients in nodes of their own, which share nothing with the server but bytes."""
    clients = _data()
    population = Population.of(Problem.bind(_objective({s: one.size for s, one in clients.spaces.items()}), clients))
    params = {n: p.detach().clone() for n, p in _objective(population.rows).module.named_parameters()}
    with tempfile.TemporaryDirectory() as folder:
        nodes = {n: Node(only(clients, n), _objective, method, n, Path(folder) / str(n)) for n in range(len(clients))}
        for node in nodes.values():
            node.plays = method  # noise as in the simulation, where it is not every client's own
        channels = {number: _Direct(node) for number, node in nodes.items()}
        served = serve(method, params, population, channels, rounds=ROUNDS, seed=SEED)
    _same(name, "where clients have only bytes", serial.params, served.params)
    for number, (report, record) in enumerate(zip(served.reports, serial.history[1:], strict=True), 1):
        if (seen := (report.total_down, report.total_up)) != (record["down"], record["up"]):
            raise AssertionError(
                f"{name} is counted wrong: in round {number} {record['down']:,} bytes down and {record['up']:,} up "
                f"were reported, and {seen[0]:,} and {seen[1]:,} crossed. Are payloads, numbers and slots declared?"
            )


def _run(method: Method, engine: str, **options: Any) -> Result:
    clients = _data()
    objective = _objective({name: space.size for name, space in clients.spaces.items()})
    return run(method, objective, clients, rounds=ROUNDS, seed=SEED, engine=engine, **options)


def _same(name: str, where: str, expected: Tree, got: Tree) -> None:
    for parameter, value in expected.items():
        if not torch.equal(value, got[parameter]):
            raise AssertionError(
                f"{name} is not the same {where}: {parameter} differs by {_gap(value, got[parameter]):.2g}. Does it "
                "keep something outside its slots, or draw random numbers other than from work.words?"
            )


def _gap(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).abs().max()) if a.numel() else 0.0


class _Halt(Callback):
    def on_round(self, record: dict[str, Any]) -> None:
        if record["round"] == 3:
            raise InterruptedError


@dataclass
class _Direct:
    """A channel to a node in this process."""

    node: Node
    waiting: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.waiting.append(self.node.hello())

    def send(self, data: bytes) -> None:
        if data[: len(MAGIC)] != MAGIC and wire.read(data).kind == wire.WELCOME:  # the others are of a secure sum
            self.node.join(data)
        else:
            self.waiting.append(self.node.answer(data))

    def receive(self) -> bytes | None:
        return self.waiting.pop(0)


class _Clicks(nn.Module):
    def __init__(self, items: int, slots: int):
        super().__init__()
        self.items = nn.Embedding(items, 2, padding_idx=0, dtype=torch.float64)
        self.slots, self.out = nn.Embedding(slots, 1, dtype=torch.float64), nn.Linear(5, 1, dtype=torch.float64)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        history = self.items(batch["history"]).sum(1)
        return self.out(torch.cat([self.items(batch["item"]), history, self.slots(batch["slot"])], -1)).squeeze(-1)


def _objective(sizes: Mapping[str, int]) -> Objective:
    generator = torch.Generator().manual_seed(0)
    module = _Clicks(sizes["item"], sizes["slot"])
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    tables = {"items.weight": ["item", "history"], "slots.weight": "slot"}
    return Objective(module, Binary("label"), tables)


def _data() -> Clients:
    draw = np.random.default_rng(0)
    sizes = np.array([2, 7, 4, 9, 1, 5, 6])
    count = int(sizes.sum())
    return Clients.from_arrays(
        {
            "item": draw.integers(1, 15, count),
            "history": [draw.integers(1, 15, draw.integers(0, 4)).tolist() for _ in range(count - 1)] + [[1, 2, 3]],
            "slot": draw.integers(0, 4, count),
            "label": draw.integers(0, 2, count),
        },
        offsets=np.concatenate([[0], np.cumsum(sizes)]), ids={"item": ["item", "history"], "slot": ["slot"]},
        label="label", sizes={"item": 15, "slot": 4},
    )  # fmt: skip
