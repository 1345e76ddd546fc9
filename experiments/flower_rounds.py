"""Seconds and bytes of a round over Flower: resident nodes beside stock ones, and the socket beside what is predicted.

    python experiments/flower_rounds.py speed --nodes 20 --rounds 5
    python experiments/flower_rounds.py bytes --rows 20 20000

A SuperLink with TLS and registered keys, and nodes, all on this machine. ``speed`` plays the same run with both kinds
of nodes, one after the other, and prints the median round of each without the first. ``bytes`` puts a relay that only
counts before one node, and prints what crossed it in a run, less what a run of two rounds crossed, beside the payload
that metrics predict. Needs fedsub[flower], and the folder tests/ beside this one.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from flower.loopback import Loopback

from fedsub.node import hand_out

TASK = """
import sys
from pathlib import Path
import torch
from torch import nn
import fedsub as fs
from fedsub.flower import Task
FOLDER = Path({folder!r})


class Scorer(nn.Module):
    def __init__(self, items):
        super().__init__()
        self.items, self.out = nn.Embedding(items, 8), nn.Linear(8, 1)

    def forward(self, batch):
        return self.out(self.items(batch["item"])).squeeze(-1)


def objective(sizes):
    torch.manual_seed(0)
    return fs.Objective(Scorer(sizes["item"]), fs.losses.binary("label"), tables={{"items.weight": "item"}})


def method(config):
    return fs.methods.fedsubavg(lr=0.1, local_steps=2, batch_size=16, clients_per_round=int(config["nodes"]))


task = Task(
    objective=objective, method=method, data=lambda node: str(FOLDER / "data" / f"client-{{int(node['client']):06d}}"),
    outline=lambda config: str(FOLDER / "data" / "outline"),
)
"""


def some_data(nodes: int, rows: int):
    """Every client holds ``rows`` rows of its own and a few that all hold."""
    import numpy as np

    import fedsub as fs

    own = [np.concatenate([np.arange(8), 8 + client * rows + np.arange(rows)]) for client in range(nodes)]
    item, draw = np.concatenate(own), np.random.default_rng(0)
    return fs.Clients.from_arrays(
        {"item": item, "label": draw.integers(0, 2, len(item))},
        offsets=np.cumsum([0, *map(len, own)]), ids=["item"], label="label", sizes={"item": 8 + nodes * rows},
    )  # fmt: skip


class Relay:
    """Counts the bytes of one node's connections, both ways."""

    def __init__(self, port: int):
        self.to, self.up, self.down = port, 0, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self.listener.accept()
            far = socket.create_connection(("127.0.0.1", self.to))
            threading.Thread(target=self._pass, args=(near, far, "up"), daemon=True).start()
            threading.Thread(target=self._pass, args=(far, near, "down"), daemon=True).start()

    def _pass(self, source: socket.socket, to: socket.socket, side: str) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                setattr(self, side, getattr(self, side) + len(data))
                to.sendall(data)
        for one in (source, to):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def link_of(folder: Path, nodes: int, rows: int, rounds: int) -> Loopback:
    hand_out(some_data(nodes, rows), folder / "data")
    config = {"nodes": nodes, "rounds": rounds, "out": str(folder / "out"), "poll": 0.1, "patience": 1800.0}
    link = Loopback(folder, config | {"deadline": 1800.0}, task=TASK.format(folder=str(folder)))
    link.superlink()
    for client in range(nodes):
        link.register(client)
    return link


def median_round(nodes: int, rounds: int, resident: bool) -> float:
    with tempfile.TemporaryDirectory() as name:
        link = link_of(Path(name), nodes, 20, rounds)
        try:
            for client in range(nodes):
                link.node(client, resident=resident)
            status = link.wait(link.submit(), 3600)
            assert status == "finished:completed", link.log("superlink")
            lines = (Path(name) / "out" / "timing.jsonl").read_text().splitlines()
            return statistics.median([json.loads(line)["seconds"] for line in lines][1:])
        finally:
            link.close()


def crossed(rows: int, rounds: int) -> tuple[dict[str, int], dict[str, int]]:
    """(bytes at the socket of node 0, bytes of its messages), by side."""
    with tempfile.TemporaryDirectory() as name:
        link = link_of(Path(name), 2, rows, rounds)
        try:
            relay, port = Relay(link.port), link.port
            link.port = relay.port
            link.node(0)
            link.port = port
            link.node(1)
            status = link.wait(link.submit(), 1800)
            assert status == "finished:completed", link.log("superlink")
            lines = [json.loads(line) for line in (Path(name) / "out" / "traffic.jsonl").read_text().splitlines()]
            own = {side: sum(line[side][line["clients"].index(0)] for line in lines) for side in ("down", "up")}
            time.sleep(1)
            return {"down": relay.down, "up": relay.up}, own
        finally:
            link.close()


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("what", choices=("speed", "bytes"))
    asked.add_argument("--nodes", type=int, default=20)
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--rows", type=int, nargs="+", default=[20, 2000, 200_000])
    given = asked.parse_args()
    if given.what == "speed":
        resident = median_round(given.nodes, given.rounds + 1, True)
        print(f"{given.nodes} resident nodes: {resident:.2f} s a round", flush=True)
        stock = median_round(given.nodes, given.rounds + 1, False)
        print(f"{given.nodes} stock nodes: {stock:.2f} s a round, {stock / resident:.1f} times as long")
        return
    print(f"{'rows':>8}  {'side':>4}  {'messages':>12}  {'socket':>12}  {'beside':>10}   bytes a round")
    for rows in given.rows:
        (first, few), (last, many) = crossed(rows, 2), crossed(rows, 2 + given.rounds)
        for side in ("down", "up"):
            payload = (many[side] - few[side]) / given.rounds
            socket_ = (last[side] - first[side]) / given.rounds
            beside = socket_ - payload
            print(f"{rows:>8}  {side:>4}  {payload:>12,.0f}  {socket_:>12,.0f}  {beside:>10,.0f}", flush=True)


if __name__ == "__main__":
    main()
