"""Over TLS, with registered keys: a SuperLink and nodes as processes end with the simulation's bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr")

from flower.loopback import Loopback, node_key
from flower.world import config_of
from node.processes import data

import fedsub as fs
from fedsub.node import hand_out


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Any]:
    links: list[Loopback] = []

    def make(method: str, clients: int, **config: Any) -> Loopback:
        database = config.pop("database", False)
        hand_out(few(clients), tmp_path / "data")
        given = config_of(tmp_path, method, patience=120.0, deadline=120.0, returns=100.0, back=60.0, poll=0.1)
        links.append(Loopback(tmp_path, given | config, database))
        return links[-1]

    yield make
    for link in links:
        link.close()


def few(clients: int) -> fs.Clients:
    from fedsub.data.split import select

    return select(data(), range(clients))


def simulated(method: str, clients: int, rounds: int) -> fs.Result:
    from node.processes import METHODS, SEED, objective

    own = few(clients)
    sizes = {n: s.size for n, s in own.spaces.items()}
    return fs.run(METHODS[method](), objective(sizes), own, rounds=rounds, seed=SEED, engine="serial")


def check(link: Loopback, run: str, expected: fs.Result, seconds: float = 120) -> None:
    status = link.wait(run, seconds)
    assert status == "finished:completed", (status, link.log("superlink"), link.log("node-0"))
    found = load_file(link.folder / "out" / "model.safetensors")
    assert expected.params is not None
    assert all(torch.equal(found[name], value) for name, value in expected.params.items())


def test_resident_nodes_over_tls_are_the_simulation(made: Any, tmp_path: Path) -> None:
    """An unregistered key is refused; SIGTERM takes a node offline."""
    link = made("scaffold + fedsubavg", 4, rounds=2)
    link.superlink()
    link.register(*range(4))
    for client in range(4):
        link.node(client)
    node_key(tmp_path / "node-9")
    link.node(9)
    run = link.submit()
    check(link, run, simulated("scaffold + fedsubavg", 4, 2))
    assert "HTTP 4" in link.log("node-9")
    link.processes["node-1"].terminate()
    assert link.processes["node-1"].wait(20) == 0


@pytest.mark.slow
@pytest.mark.parametrize("resident", [True, False], ids=["resident", "stock"])
@pytest.mark.parametrize("method", ["fedsubavg + adam", "scaffold + fedsubavg", "ef-sign", "fedper"])
def test_four_nodes_ten_rounds_are_the_simulation(method: str, resident: bool, made: Any) -> None:
    link = made(method, 4, rounds=10, deadline=300.0, patience=600.0)
    link.superlink()
    link.register(*range(4))
    for client in range(4):
        link.node(client, resident=resident)
    check(link, link.submit(), simulated(method, 4, 10), seconds=1200)


def rounds_of(link: Loopback) -> int:
    """The rounds that were played so far."""
    path = link.folder / "out" / "metrics.jsonl"
    return len(path.read_text().splitlines()) - 1 if path.exists() else -1


def reach(link: Loopback, rounds: int, seconds: float = 300) -> None:
    until = time.monotonic() + seconds
    while rounds_of(link) < rounds:
        assert time.monotonic() < until, (rounds_of(link), link.log("superexec"), link.log("node-0"))
        time.sleep(0.05)


@pytest.mark.slow
def test_a_node_the_superlink_and_the_server_app_are_killed_and_no_bit_is_lost(made: Any) -> None:
    """Each once, in the middle of rounds. The SuperLink's crash does not even end the run; the app's needs one more
    submission, which goes on from the last checkpoint.
    """
    link, rounds = made("scaffold + fedsubavg", 4, rounds=24, database=True, deadline=300.0, returns=200.0), 24
    link.superlink()
    link.register(*range(4))
    for client in range(4):
        link.node(client)
    run = link.submit()
    reach(link, 2)
    link.kill("node-1")
    link.node(1)  # refused until the SuperLink has noticed, and asks again
    reach(link, 5)
    link.kill("superlink")
    time.sleep(3)
    link.superlink()
    reach(link, 9)
    assert link.status(run) == "running"
    app = server_app_of(link)
    os.kill(app, signal.SIGKILL)
    link.flwr("stop", run, "site", "--format", "json")
    assert link.wait(run) != "finished:completed"
    played = rounds_of(link)
    assert 9 <= played < rounds
    check(link, link.submit(), simulated("scaffold + fedsubavg", 4, rounds), seconds=600)
    live = json.loads((link.folder / "out" / "live.json").read_text())
    assert (live["state"], live["round"]) == ("finished", rounds)
    assert "resumed after round" in (link.folder / "out" / "events.jsonl").read_text()
    history = [json.loads(line) for line in (link.folder / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [row["lost"] for row in history[1:]] == [0] * rounds


def server_app_of(link: Loopback) -> int:
    """The process that the superexec started for the run: with its group, and the app's name."""
    group = link.processes["superexec"].pid
    said = subprocess.run(["ps", "-ww", "-eo", "pid=,pgid=,args="], capture_output=True, text=True, check=True).stdout
    found = [line.split(None, 2) for line in said.splitlines()]
    apps = [int(pid) for pid, owner, args in found if int(owner) == group and "serverapp" in args]
    assert apps, said
    return apps[-1]
