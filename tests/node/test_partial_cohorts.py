"""Rounds of which some clients are lost, some send what would spoil the sum, and servers that come back to the past."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from node.processes import METHODS, data
from node.test_node import SIZES, nodes
from node.test_node_run import SEED, SOON, Inside, objective, outline, remote, simulated

import fedsub as fs
from fedsub.errors import WireError
from fedsub.node import Node, hand_out, run
from fedsub.node.post import WORDS, Letter, plain
from fedsub.node.store import Store
from fedsub.round import wire
from fedsub.round.letters import LARGEST, check_finite

COMMON: dict[str, Any] = {"lr": 0.3, "local_steps": 2, "batch_size": 4, "clients_per_round": 8}
LOST = {1, 4, 6}
AVERAGES = {
    "mean": lambda: fs.methods.fedavg(weighting="clients", **COMMON),
    "mean by samples": lambda: fs.methods.fedavg(weighting="samples", **COMMON),
    "holders": lambda: fs.methods.fedsubavg(weighting="clients", **COMMON),
    "holders by samples": lambda: fs.methods.fedsubavg(weighting="samples", **COMMON),
}


class Kept(Inside):
    """Some clients' trained replies are lost; all that came is kept."""

    def __init__(self, nodes: Any):
        super().__init__(nodes)
        self.up: dict[int, wire.Envelope] = {}

    def answer(self, client: int, letter: bytes) -> bytes | None:
        found = super().answer(client, letter)
        if found is None or wire.read(found).kind != wire.UP:
            return found
        self.up[client] = wire.read(found)
        return None if client in LOST else found


@pytest.mark.parametrize("name", AVERAGES)
def test_the_estimate_is_over_those_who_answered(name: str, tmp_path: Path) -> None:
    """Δ[m] = c[m] · Σ_A a_i Δ_i[m] / Σ_A a_i over who answered, A; c[m] = W/W_m over everybody, or 1."""
    clients, method = data(), AVERAGES[name]()
    places = hand_out(clients, tmp_path / "data")
    post = Kept({n: Node(at, objective, method, n, tmp_path / f"m{n}") for n, at in places.items()})
    found = run(method, objective(SIZES), outline(clients), post, rounds=1, seed=SEED, patience=SOON)
    assert found.history[-1]["lost"] == len(LOST)
    weights = np.diff(clients.offsets).astype(np.float64) if "samples" in name else np.ones(len(clients))
    there = [client for client in range(len(clients)) if client not in LOST]
    begin = {n: p.detach().double().numpy() for n, p in objective(SIZES).module.named_parameters()}
    tables = {"items.weight": "item", "slots.weight": "slot"}
    for parameter, before in begin.items():
        total, held = np.zeros_like(before), np.zeros(len(before))
        for client in range(len(clients)):
            rows = slice(None)
            if parameter in tables:
                rows = clients.spaces[tables[parameter]].rows_of(client)
                held[rows] += weights[client]
            if client in there:
                total[rows] += (
                    post.up[client].tensors[f"update/{parameter}"].double().numpy().reshape(total[rows].shape)
                )
        change = total / weights[there].sum()
        if parameter in tables and "holders" in name:
            change *= (weights.sum() / np.where(held > 0, held, weights.sum()))[:, None]
        np.testing.assert_allclose(found.params[parameter].numpy(), before + change, rtol=2e-5, atol=2e-6)


def test_a_server_comes_back_to_its_last_checkpoint_and_nodes_still_have_what_they_kept_then(tmp_path: Path) -> None:
    """Three rounds between checkpoints: killed in the sixth, it goes on after the third."""
    name, places = "scaffold + fedsubavg", hand_out(data(), tmp_path / "data")

    class Dies(Inside):
        def answer(self, client: int, letter: bytes) -> bytes | None:
            if wire.read(letter).round == 6 and wire.read(letter).kind == wire.DOWN:
                raise KeyboardInterrupt
            return super().answer(client, letter)

    def made() -> dict[int, Node]:
        return {n: Node(at, objective, METHODS[name](), n, tmp_path / f"m{n}") for n, at in places.items()}

    with pytest.raises(KeyboardInterrupt):
        remote(Dies(made()), name, tmp_path / "out", rounds=9, checkpoint_every=3)
    again = Inside(made())
    found = remote(again, name, tmp_path / "out", rounds=9, checkpoint_every=3, resume=True)
    expected = simulated(name, rounds=9)
    assert all(torch.equal(found.params[n], value) for n, value in expected.params.items())
    assert [row["lost"] for row in found.history[1:]] == [0] * 9
    kept = [store.rounds for node in again.nodes.values() if (store := node.store) is not None]
    assert any(rounds[0] > 0 for rounds in kept)  # what no checkpoint can come back to is gone
    assert all(len(rounds) <= 5 for rounds in kept)


def test_nothing_is_forgotten_for_a_round_that_is_not_there(tmp_path: Path) -> None:
    node = nodes(tmp_path, "scaffold + fedsubavg")[0]
    store = Store(node.folder, 7)
    for number in (0, 2, 3):
        store.save(node.memory, number)
    store.forget(9)
    assert store.rounds == [0, 2, 3]
    store.forget(2)
    assert store.rounds == [2, 3]


def test_a_node_that_cannot_write_has_not_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its disk is full when it joins: it answers no letter before it has a beginning on its disk."""
    welcomes: dict[int, bytes] = {}

    class Heard(Inside):
        def tell(self, letters: Iterable[Letter]) -> None:
            for client, letter in letters:
                welcomes[client] = letter
                super().tell([(client, letter)])

    remote(Heard(nodes(tmp_path / "a", "scaffold + fedsubavg")), "scaffold + fedsubavg", None, rounds=1)
    node = nodes(tmp_path / "b", "scaffold + fedsubavg")[2]

    def full(self: Store, memory: Any, round: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as short:
        short.setattr(Store, "save", full)
        with pytest.raises(OSError, match="No space"):
            node.join(welcomes[2])
    run = wire.read(welcomes[2]).run
    assert node.letters is None
    assert not node.rejoin(run)
    node.join(welcomes[2])
    assert node.letters is not None
    assert Store(node.folder, run).rounds == [0]


def test_values_that_would_spoil_the_sum_are_left_out(tmp_path: Path) -> None:
    """Finite, and too large to be added or squared: the round is that of a client that was lost."""

    class Huge(Inside):
        def __init__(self, nodes: Any, value: float):
            super().__init__(nodes)
            self.value = value

        def answer(self, client: int, letter: bytes) -> bytes | None:
            found = super().answer(client, letter)
            if client != 2 or found is None or (up := wire.read(found)).kind != wire.UP:
                return found
            changed = {
                n: torch.full_like(v, self.value) if n.startswith("update/") else v for n, v in up.tensors.items()
            }
            return wire.write(wire.Envelope(**{**vars(up), "tensors": changed}))

    class Deaf(Inside):
        def answer(self, client: int, letter: bytes) -> bytes | None:
            found = super().answer(client, letter)
            return None if client == 2 and found is not None and wire.read(found).kind == wire.UP else found

    found = remote(Huge(nodes(tmp_path / "a", "fedsubavg + adam"), 3e38), "fedsubavg + adam", None, patience=SOON)
    expected = remote(Deaf(nodes(tmp_path / "b", "fedsubavg + adam")), "fedsubavg + adam", None, patience=SOON)
    assert sum(row.get("refused", 0) for row in found.history[1:]) > 0
    assert all(torch.equal(found.params[n], value) for n, value in expected.params.items())
    check_finite({"x": torch.tensor([LARGEST / 2])}, LARGEST)
    with pytest.raises(WireError, match="are not added"):
        check_finite({"x": torch.tensor([0.0, -2 * LARGEST])}, LARGEST)


def test_what_clients_say_is_one_bounded_line() -> None:
    assert plain("a\nb\x1b[31mc\u202e") == "a b [31mc "
    assert len(plain("x" * 100_000)) == WORDS + 2
