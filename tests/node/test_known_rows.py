"""A server remembers which rows its clients named: one exchange a round, and who holds other rows is noticed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from node.processes import METHODS, SEED, data, objective
from node.test_node import SIZES, nodes
from node.test_node_run import SOON, Inside, remote, simulated

import fedsub as fs
from fedsub.errors import WireError
from fedsub.node import Node, hand_out, outline, run
from fedsub.node.known import KnownRows
from fedsub.node.post import Letter
from fedsub.round import wire


class Written(Inside):
    """Notes what every exchange that has letters was about: (client, kind) of each."""

    def __init__(self, nodes: Any):
        super().__init__(nodes)
        self.exchanges: list[list[tuple[int, int]]] = []

    def exchange(self, letters: Iterable[Letter]) -> list[bytes | None]:
        known = list(letters)
        if known:
            self.exchanges.append([(client, wire.read(letter).kind) for client, letter in known])
        return super().exchange(known)


class Refusing(Inside):
    """A task that does not fit a node is refused by it, as over any post."""

    def answer(self, client: int, letter: bytes) -> bytes | None:
        try:
            return super().answer(client, letter)
        except WireError:
            return None


def test_an_invitation_travels_with_the_task_once_rows_are_known(tmp_path: Path) -> None:
    post = Written(nodes(tmp_path, "fedsubavg"))
    found, expected = remote(post, "fedsubavg", None, rounds=6, patience=SOON), simulated("fedsubavg", rounds=6)
    assert all(torch.equal(found.params[n], value) for n, value in expected.params.items())
    assert [row["up"] for row in found.history[1:]] == [row["up"] for row in expected.history[1:]]
    heard: set[int] = set()
    for exchange in post.exchanges:
        if {kind for _, kind in exchange} == {wire.INVITE}:
            assert not heard & {client for client, _ in exchange}
            heard |= {client for client, _ in exchange}
        else:  # each task, behind its invitation where that was not sent before
            assert {client for client, kind in exchange if kind == wire.DOWN} <= heard
    assert len(post.exchanges) < 2 * 6
    assert sum(kind == wire.INVITE for exchange in post.exchanges for _, kind in exchange) == 6 * 4


def test_a_client_that_holds_other_rows_is_lost_once_and_then_asked_anew(tmp_path: Path) -> None:
    """Its data are another client's, without a word."""
    method = fs.methods.fedsubavg(weighting="clients", lr=0.3, local_steps=2, batch_size=4, clients_per_round=8)
    places = hand_out(data(), tmp_path / "data")
    made = {n: Node(at, objective, method, n, tmp_path / f"m{n}") for n, at in places.items()}
    post = Refusing(made)

    class Swapped(fs.Callback):
        def on_round(self, record: dict[str, Any]) -> None:
            if record["round"] == 3:
                post.nodes[2] = Node(places[5], objective, method, 2, tmp_path / "changed")
                post.nodes[2].join(made[2].store.welcome)  # type: ignore[arg-type, union-attr]

    found = run(
        method, objective(SIZES), outline(data()), post, rounds=6, seed=SEED, patience=SOON, callbacks=[Swapped()]
    )
    assert [row["lost"] for row in found.history[1:]] == [0, 0, 0, 1, 0, 0]
    assert any("other rows than before" in said for said in found.events)


def test_a_node_whose_data_changed_says_hello_again(tmp_path: Path) -> None:
    first = nodes(tmp_path / "n", "scaffold + fedsubavg")
    remote(Inside(first), "scaffold + fedsubavg", None, rounds=1, patience=SOON)
    run, welcome = first[2].letters.run, first[2].store.welcome  # type: ignore[union-attr]
    own = tmp_path / "n" / "data" / "client-000002"
    same = Node(own, objective, METHODS["scaffold + fedsubavg"](), 2, first[2].folder)
    assert same.rejoin(run)
    other = hand_out(data(), tmp_path / "other")[5]
    changed = Node(other, objective, METHODS["scaffold + fedsubavg"](), 2, first[2].folder)
    assert not changed.rejoin(run)
    with pytest.raises(WireError, match="other rows than when it joined"):
        changed.join(welcome)  # type: ignore[arg-type]


def test_the_rows_that_were_heard_last_are_kept() -> None:
    known, rows = KnownRows(100), {"item": np.arange(5)}  # 40 bytes
    for client in (1, 2):
        known.learn(client, rows)
    known.learn(1, rows)
    known.learn(3, rows)
    assert [known.of(client) is rows for client in (1, 2, 3)] == [True, False, True]
    known.learn(4, {"item": np.arange(50)})  # more than all that is kept
    assert known.of(4) is None
    assert known.of(3) is rows
