"""Over TLS, with registered keys: a SuperLink and nodes as processes end with the simulation's bits."""

from __future__ import annotations

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
    link = made("scaffold + fedsubavg", 2, rounds=2)
    link.superlink()
    for client in range(2):
        link.register(client)
        link.node(client)
    node_key(tmp_path / "node-9")
    link.node(9)
    run = link.submit()
    check(link, run, simulated("scaffold + fedsubavg", 2, 2))
    assert "HTTP 4" in link.log("node-9")
    link.processes["node-1"].terminate()
    assert link.processes["node-1"].wait(20) == 0
