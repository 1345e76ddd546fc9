"""A server process and client processes that share nothing but pipes of bytes.

Run as `python processes.py server|client …` by `test_processes.py`; the folder holds what each of them may see.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

import fedsub as fs
from fedsub.method.groups import Cohort
from fedsub.node import Node, serve
from fedsub.objective.population import Population
from fedsub.round import wire
from fedsub.round.here import delivers

ROUNDS, SEED = 5, 3


class Clicks(nn.Module):
    """Two tables (one with padding) and a dense layer."""

    def __init__(self, items: int, slots: int):
        super().__init__()
        self.items, self.slots = nn.Embedding(items, 3, padding_idx=0), nn.Embedding(slots, 2)
        self.hidden, self.out = nn.Linear(8, 3), nn.Linear(3, 1)

    def forward(self, batch):
        x = torch.cat([self.items(batch["item"]), self.items(batch["history"]).mean(1), self.slots(batch["slot"])], -1)
        return self.out(torch.tanh(self.hidden(x))).squeeze(-1)


def objective(sizes: Mapping[str, int]) -> fs.Objective:
    torch.manual_seed(1)
    return fs.Objective(
        Clicks(sizes["item"], sizes["slot"]),
        fs.losses.binary("label"),
        {"items.weight": ["item", "history"], "slots.weight": "slot"},
    )


COMMON: dict[str, Any] = {"lr": 0.3, "local_steps": 3, "batch_size": 4, "clients_per_round": 4}
LOST = 0.3


def common_but(**changed: Any) -> dict[str, Any]:
    return COMMON | changed


def scaffold_sub() -> fs.Method:
    method = fs.methods.scaffold(**COMMON)
    return fs.Method(
        local=method.local, parts=method.parts, average=fs.OverHolders("samples"), server=method.server,
        sampler=method.sampler, name="scaffold + fedsubavg",
    )  # fmt: skip


METHODS = {
    "fedsubavg": lambda: fs.methods.fedsubavg(**COMMON),
    "scaffold + fedsubavg": scaffold_sub,
    "fedper": lambda: fs.methods.fedper(**COMMON),
    "fedper, a table": lambda: fs.methods.fedper(personal=["slots.*", "out.*"], **COMMON),
    "ef-sign": lambda: fs.methods.ef_signsgd(**COMMON),
    "ucb-cs": lambda: fs.methods.ucb_cs(**COMMON),
    "power-of-choice": lambda: fs.methods.power_of_choice(candidates=7, **COMMON),
    "cpow": lambda: fs.methods.power_of_choice(variant="cpow", candidates=7, **COMMON),
    "fednova": lambda: fs.methods.fednova(**common_but(local_steps=None, local_epochs=2)),
    "fedsubavg + adam": lambda: fs.methods.fedsubadam(**COMMON),
    "drawn twice": lambda: fs.methods.scaffold(**common_but(clients_per_round=9, replacement=True)),
    "top-k, prox": lambda: fs.methods.fedsubavg(codec="topk:0.3", mu=0.1, **COMMON),
}


def data() -> fs.Clients:
    draw = np.random.default_rng(0)
    sizes = np.array([3, 9, 5, 12, 1, 7, 4, 6])
    n = int(sizes.sum())
    return fs.Clients.from_arrays(
        {
            "item": draw.integers(1, 40, n),
            "history": [draw.integers(1, 40, draw.integers(0, 5)).tolist() for _ in range(n - 1)] + [[1] * 4],
            "slot": draw.integers(0, 6, n),
            "label": draw.integers(0, 2, n),
        },
        offsets=np.concatenate([[0], np.cumsum(sizes)]), ids={"item": ["item", "history"], "slot": ["slot"]},
        label="label", sizes={"item": 40, "slot": 6},
    )  # fmt: skip


def put(out: BinaryIO, data: bytes) -> None:
    out.write(struct.pack("<q", len(data)) + data)
    out.flush()


def take(source: BinaryIO) -> bytes | None:
    """The next message; None: nothing comes (length −1), or the other side is gone."""
    head = source.read(8)
    size = struct.unpack("<q", head)[0] if len(head) == 8 else -1
    return source.read(size) if size >= 0 else None


def client(number: int, folder: Path, name: str, lost: float) -> None:
    """Reads from standard input, writes to standard output. A lost round ends in silence (the length −1)."""
    source, out = sys.stdin.buffer, sys.stdout.buffer
    node = Node(folder / f"client-{number:06d}", objective, METHODS[name](), number, folder / f"memory-{number}")
    put(out, node.hello())
    welcome = take(source)
    assert welcome is not None
    node.join(welcome)
    while (task := take(source)) is not None:
        message, answer = wire.read(task), node.answer(task)
        who = Cohort(np.array([number]), np.array([message.repeat]))
        gone = not delivers(who, lost, seed=SEED, round=message.round)[0]
        if message.kind == wire.DOWN and message.flags == 0 and gone:
            out.write(struct.pack("<q", -1))
            out.flush()
        else:
            put(out, answer)


class Pair:
    """The server's end of two pipes to a client."""

    def __init__(self, to: Path, back: Path):
        self.to, self.back = open(to, "wb"), open(back, "rb")  # noqa: SIM115

    def send(self, data: bytes) -> None:
        put(self.to, data)

    def receive(self) -> bytes | None:
        return take(self.back)


def server(folder: Path, name: str) -> None:
    """Plays the rounds over named pipes. Before round 3 client 1 is a new process behind new pipes."""
    population = Population.open(folder / "population.safetensors")
    params = {n: p.detach().clone() for n, p in objective(population.rows).module.named_parameters()}

    def pair(number: int, life: int) -> Pair:
        return Pair(folder / f"to-{number}-{life}", folder / f"from-{number}-{life}")

    channels = {number: pair(number, 0) for number in range(len(population))}

    def before(number: int) -> None:
        if number == 3:
            print("killed, please", flush=True)
            sys.stdin.readline()
            channels[1] = pair(1, 1)

    served = serve(METHODS[name](), params, population, channels, rounds=ROUNDS, seed=SEED, before_round=before)
    save_file({n: v.contiguous() for n, v in served.params.items()}, folder / "trained.safetensors")
    reports = [
        [r.clients.tolist(), r.down.tolist(), r.up.tolist(), r.total_down, r.total_up, r.loss] for r in served.reports
    ]
    (folder / "reports.json").write_text(
        json.dumps({"reports": reports, "refused": [*served.refused, *served.left_out.values()]})
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "server":
        server(Path(sys.argv[2]), sys.argv[3])
    else:
        client(int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], float(sys.argv[5]))
