"""Seconds and bytes of a round over Flower: resident nodes beside stock ones, and the socket beside what is predicted.

    python experiments/flower_rounds.py speed --nodes 20 --rounds 5
    python experiments/flower_rounds.py bytes --rows 50 2000 100000 2000000

A SuperLink with TLS and registered keys, and nodes, all on this machine. ``speed`` plays the same run with both kinds
of nodes, one after the other, and prints the median round of each without the first. ``bytes`` puts a relay that only
counts before one node, and prints what crossed it after the first round beside what `fedsub.costs.at_socket` says:
the payload that metrics count, and Flower's part. Needs fedsub[flower], and the folder tests/ beside this one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from flower.loopback import Loopback
from flower.relay import Counted, Relay, after

from fedsub.node import hand_out
from fedsub.study.costs import Bytes, at_socket

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


def crossed(rows: int, rounds: int) -> tuple[Counted, Bytes, float]:
    """Of so many rounds after the first: what crossed the socket of node 0, bytes of its messages, and seconds."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        link, out = link_of(Path(name), 2, rows, 1 + rounds), Path(name) / "out"
        relay, port = Relay(link.port), link.port
        try:
            link.port = relay.port
            link.node(0)
            link.port = port
            link.node(1)
            run = link.submit()
            (counted,), seconds = after(out / "traffic.jsonl", [relay], (1, 1 + rounds))
            status = link.wait(run, 1800)
            assert status == "finished:completed", link.log("superlink")
            lines = [json.loads(line) for line in (out / "traffic.jsonl").read_text().splitlines()][1:]
            own = [sum(line[side][line["clients"].index(0)] for line in lines) for side in ("down", "up")]
            return counted, Bytes(*own), seconds
        finally:
            link.close()
            relay.close()


def compare(sizes: list[int], rounds: int) -> None:
    """Bytes of a round of node 0 at its socket, beside what `costs.at_socket` says of messages of that size."""
    print(f"flwr {version('flwr')}, a resident node, TLS and registered keys; bytes a round, mean of {rounds}")
    print("   rows side     messages        fixed   looks    predicted     measured  measured/predicted")
    for rows in sizes:
        counted, own, seconds = crossed(rows, rounds)
        made = at_socket(own.down / rounds, own.up / rounds, seconds=seconds / rounds)
        for side in ("down", "up"):
            payload, fixed, total = (getattr(part, side) for part in (made.payload, made.fixed, made.total))
            measured = getattr(counted, side) / rounds
            print(
                f"{rows:>7} {side:>4} {payload:>12,.0f} {fixed:>12,.0f} {made.looks:>7} {total:>12,.0f} "
                f"{measured:>12,.0f} {measured / total:>19.3f}", flush=True,
            )  # fmt: skip
        print(
            f"        {counted.requests / rounds:.1f} requests a round, {made.requests + made.looks} predicted; "
            f"{counted.connections} new connections in {seconds:.1f} s", flush=True,
        )  # fmt: skip


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("what", choices=("speed", "bytes"))
    asked.add_argument("--nodes", type=int, default=20)
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--rows", type=int, nargs="+", default=[50, 2000, 100_000, 2_000_000])
    given = asked.parse_args()
    if given.what == "bytes":
        compare(given.rows, given.rounds)
        return
    resident = median_round(given.nodes, given.rounds + 1, True)
    print(f"{given.nodes} resident nodes: {resident:.2f} s a round", flush=True)
    stock = median_round(given.nodes, given.rounds + 1, False)
    print(f"{given.nodes} stock nodes: {stock:.2f} s a round, {stock / resident:.1f} times as long")


if __name__ == "__main__":
    main()
