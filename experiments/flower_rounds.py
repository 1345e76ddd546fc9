"""Seconds and bytes of a round over Flower: resident nodes beside stock ones, and the socket beside what is predicted.

    python experiments/flower_rounds.py speed --nodes 20 --rounds 10
    python experiments/flower_rounds.py bytes --rows 50 2000 100000 2000000

A SuperLink with TLS and registered keys, and nodes, all on this machine. ``speed`` plays the same run with both kinds
of nodes, one after the other, and prints every round, and the median of each kind without the first. Stock nodes start
a process of about 4 CPU seconds for every message: 20 of them on two cores take minutes for each round, and several
before the first; fewer (``--stock 6``) are a lower bound. ``bytes`` puts a relay that only
counts before one node, and prints what crossed it after the first round beside what `fedsub.costs.at_socket` says:
the payload that metrics count, and Flower's part. Needs fedsub[flower], and the folder tests/ beside this one.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from flower.loopback import Loopback, cpu_seconds
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
    config = {"nodes": nodes, "rounds": rounds, "out": str(folder / "out"), "patience": 1800.0}
    link = Loopback(folder, config | {"deadline": 1800.0}, task=TASK.format(folder=str(folder)))
    link.superlink()
    link.register(*range(nodes))
    return link


def median_round(nodes: int, rounds: int, resident: bool, pause: float) -> tuple[float, float]:
    """(seconds of the median round without the first, the SuperLink's CPU seconds a round)."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        link, kind = link_of(Path(name), nodes, 20, 1 + rounds), "resident" if resident else "stock"
        try:
            for client in range(nodes):
                link.node(client, resident=resident)
                time.sleep(pause)
            begun, path, seen = time.monotonic(), Path(name) / "out" / "timing.jsonl", 0
            run, asked, first, cpu = link.submit(), 0.0, 0.0, 0.0
            while seen <= rounds:
                time.sleep(0.05)
                lines = path.read_text().splitlines() if path.exists() else []
                if len(lines) > seen:
                    seen, cpu = len(lines), cpu_seconds(link.processes["superlink"])
                    first = first or cpu
                    spent, all_in_all = json.loads(lines[-1])["seconds"], time.monotonic() - begun
                    print(
                        f"  {kind}, round {seen}: {spent:.2f} s; {all_in_all:.0f} s, the SuperLink {cpu:.1f}",
                        flush=True,
                    )
                elif time.monotonic() - asked > 30:
                    asked = time.monotonic()
                    status = link.status(run)
                    if status.startswith("finished") and status != "finished:completed":
                        raise SystemExit(f"{status}: {link.log('superlink')}")
            found = [json.loads(line)["seconds"] for line in path.read_text().splitlines()]
            return statistics.median(found[1:]), (cpu - first) / rounds
        finally:
            link.close()


def speed(nodes: int, rounds: int, stock_nodes: int, stock_rounds: int) -> None:
    print(f"flwr {version('flwr')}, TLS and registered keys, all on one machine with {os.cpu_count()} CPUs")
    resident, cpu = median_round(nodes, rounds, True, 0.0)
    print(f"{nodes} resident nodes: {resident:.2f} s a round, of which the SuperLink computes {cpu:.2f} s", flush=True)
    if stock_nodes:
        stock, cpu = median_round(stock_nodes, stock_rounds, False, 2.0)
        print(
            f"{stock_nodes} stock nodes: {stock:.2f} s a round, {stock / resident:.1f} times as long; the SuperLink "
            f"computes {cpu:.2f} s"
        )


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
    asked.add_argument("--stock", type=int, help="stock nodes, if not as many as resident ones; 0: none")
    asked.add_argument("--stock-rounds", type=int, default=2, help="rounds of theirs after the first")
    asked.add_argument("--rows", type=int, nargs="+", default=[50, 2000, 100_000, 2_000_000])
    given = asked.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended; so are all processes that it started"))
    if given.what == "bytes":
        compare(given.rows, given.rounds)
        return
    stock = given.nodes if given.stock is None else given.stock
    speed(given.nodes, given.rounds, stock, given.stock_rounds)


if __name__ == "__main__":
    main()
