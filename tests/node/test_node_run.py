"""A run whose clients are elsewhere is a run: directory, checkpoints, resume, a model that is loaded."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from node.processes import METHODS, SEED, data, objective
from node.test_node import SIZES, Direct, nodes, population

import fedsub as fs
from fedsub.errors import ConfigError, FedsubError, NoUsableClient
from fedsub.node import Channels, Node, Patience, hand_out, outline, run
from fedsub.node.post import Letter
from fedsub.node.rounds import Seen
from fedsub.objective.population import Population
from fedsub.privacy.heat import RandomizedResponse

ROUNDS = 4
SOON = Patience(start=0.2, tries=2, pause=0.01, back=0.1)


class Inside:
    """A post to nodes in this process. ``away``: letters to these clients are not answered."""

    def __init__(self, nodes: Mapping[int, Node]):
        self.nodes, self.away, self.fresh, self.sent = dict(nodes), set[int](), set(nodes), 0

    def hellos(self) -> dict[int, bytes | None]:
        new, self.fresh = self.fresh - self.away, self.fresh & self.away
        return {client: self.nodes[client].hello() for client in sorted(new)}

    def gone(self) -> set[int]:
        return set()

    def tell(self, letters: Iterable[Letter]) -> None:
        for client, letter in letters:
            self.nodes[client].join(letter)

    def exchange(self, letters: Iterable[Letter]) -> list[bytes | None]:
        return [self.answer(client, letter) for client, letter in letters]

    def answer(self, client: int, letter: bytes) -> bytes | None:
        self.sent += 1
        return None if client in self.away else self.nodes[client].answer(letter)

    def news(self) -> dict[str, int]:
        return {}


def remote(post: Any, name: str, folder: Path | None, rounds: int = ROUNDS, **more: Any) -> fs.Result:
    return run(METHODS[name](), objective(SIZES), outline(data()), post, rounds=rounds, seed=SEED, out=folder, **more)


def simulated(name: str, rounds: int = ROUNDS) -> fs.Result:
    return fs.run(METHODS[name](), objective(SIZES), data(), rounds=rounds, seed=SEED, engine="serial")


def test_an_outline_has_the_vocabulary_and_no_sample() -> None:
    whole, bare = data(), outline(data())
    assert bare.samples == 0
    assert bare.client_ids.tolist() == whole.client_ids.tolist()
    assert {n: s.size for n, s in bare.spaces.items()} == {n: s.size for n, s in whole.spaces.items()}


@pytest.mark.parametrize("name", ["fedsubavg + adam", "scaffold + fedsubavg", "fedper, a table", "ucb-cs"])
def test_a_run_killed_anywhere_goes_on_with_the_same_bits(name: str, tmp_path: Path) -> None:
    """The server ends without a word in the middle of a round; another process goes on, and nodes are as they were."""
    directories = hand_out(data(), tmp_path / "data")

    def post() -> Inside:
        return Inside({n: Node(at, objective, METHODS[name](), n, tmp_path / f"m{n}") for n, at in directories.items()})

    class Dying(Inside):
        def answer(self, client: int, letter: bytes) -> bytes | None:
            found = super().answer(client, letter)
            if self.sent == 21:  # after nodes have trained a round that the server never saved
                raise KeyboardInterrupt
            return found

    with pytest.raises(KeyboardInterrupt):
        remote(Dying(post().nodes), name, tmp_path / "out")
    assert not (tmp_path / "out" / "result.json").exists()
    found, expected = remote(post(), name, tmp_path / "out", resume=True), simulated(name)
    assert all(torch.equal(found.params[n], value) for n, value in expected.params.items())
    shown = [{k: row[k] for k in ("round", "loss", "clients", "down", "up", "lost")} for row in found.history[1:]]
    assert shown == [{k: row[k] for k in shown[0]} for row in expected.history[1:]]
    known = Population.open(tmp_path / "out" / "population.safetensors")
    assert np.array_equal(known.heat("item"), population().heat("item"))
    assert np.array_equal(known.weighted_heat("item"), population().weighted_heat("item"))
    loaded = fs.load(tmp_path / "out")
    assert loaded.finished
    assert torch.equal(loaded.params["slots.weight"], expected.params["slots.weight"])


def test_private_heat_is_asked_once_whatever_happens(tmp_path: Path) -> None:
    method = fs.methods.fedsubavg(
        lr=0.3, local_steps=2, batch_size=4, clients_per_round=4, heat=RandomizedResponse(epsilon=8.0)
    )
    directories = hand_out(data(), tmp_path / "data")

    def trained(out: str, rounds: int, **more: Any) -> fs.Result:
        post = Inside({n: Node(at, objective, method, n, tmp_path / f"m{n}") for n, at in directories.items()})
        return run(method, objective(SIZES), outline(data()), post, rounds=rounds, out=tmp_path / out, **more)

    whole = trained("whole", 4)  # secrets lie in the nodes' folders: the same answers each time
    trained("parts", 2)
    kept = (tmp_path / "parts" / "population.safetensors").read_bytes()
    found = trained("parts", 4, resume=True)
    assert (tmp_path / "parts" / "population.safetensors").read_bytes() == kept
    assert all(torch.equal(found.params[n], value) for n, value in whole.params.items())


def test_a_round_that_nobody_answers_is_asked_again_and_then_left_out(tmp_path: Path) -> None:
    class Deaf(Inside):
        def exchange(self, letters: Iterable[Letter]) -> list[bytes | None]:
            found = super().exchange(letters)
            self.times = getattr(self, "times", 0) + 1
            return [None] * len(found) if self.times in self.silent else found

        silent: tuple[int, ...] = ()

    post = Deaf(nodes(tmp_path, "fedsubavg + adam"))
    post.silent = (3, 4, 6)  # round 2: who is new and who is not, and the answers to its second attempt
    found, expected = remote(post, "fedsubavg + adam", None, patience=SOON), simulated("fedsubavg + adam")
    assert all(torch.equal(found.params[n], value) for n, value in expected.params.items())
    assert [row.get("asked_again", 0) for row in found.history[1:]] == [0, 2, 0, 0]
    post = Deaf(nodes(tmp_path / "again", "fedsubavg"))
    post.silent = tuple(range(3, 9))
    left = remote(post, "fedsubavg", None, patience=SOON)
    assert any("left out" in said for said in left.events)
    assert [row["clients"] - row["lost"] for row in left.history[1:]] == [4, 0, 4, 4]


def test_nodes_that_leave_and_come_back(tmp_path: Path) -> None:
    post, seen = Inside(nodes(tmp_path, "fedsubavg")), list[tuple[int, ...]]()

    def tell(now: Seen) -> None:
        seen.append((*now.joined,))

    class Watch(fs.Callback):
        def on_round(self, record: dict[str, Any]) -> None:
            post.away = {0, 1, 2} if record["round"] in (1, 2) else set()

    found = remote(
        post, "fedsubavg", None, callbacks=[Watch()], patience=SOON, tell=lambda s: seen.append((*s.joined,))
    )
    drawn = [row["lost"] for row in found.history[1:]]
    assert drawn[0] == drawn[3] == 0
    assert sum(drawn) > 0
    assert len(seen[-1]) == 8


def test_whoever_is_missing_at_the_start_is_named(tmp_path: Path) -> None:
    post = Inside(nodes(tmp_path, "fedsubavg"))
    post.away = {5}
    with pytest.raises(NoUsableClient, match="1 of 8 clients: 5"):
        remote(post, "fedsubavg", None, patience=SOON)
    post.fresh = set(post.nodes)
    found = remote(post, "fedsubavg", None, patience=SOON, population=population())  # what is known need not be counted
    assert len(found.history) == ROUNDS + 1


def test_data_at_the_server_is_evaluated_and_no_outline_is_refused(tmp_path: Path) -> None:
    post = Inside(nodes(tmp_path, "fedsubavg"))
    with pytest.raises(ConfigError, match="outline"):
        run(METHODS["fedsubavg"](), objective(SIZES), data(), post, rounds=1)
    found = remote(post, "fedsubavg", tmp_path / "out", splits={"test": data()})
    expected = fs.run(
        METHODS["fedsubavg"](), objective(SIZES), data(), rounds=ROUNDS, seed=SEED, engine="serial",
        splits={"test": data()},
    )  # fmt: skip
    assert [found.history[k]["test.ce"] for k in (0, -1)] == [expected.history[k]["test.ce"] for k in (0, -1)]
    kept = [json.loads(line) for line in (tmp_path / "out" / "traffic.jsonl").read_text().splitlines()]
    assert [len(line["clients"]) for line in kept] == [4] * ROUNDS


def test_a_channel_with_a_deadline_drops_who_is_late(tmp_path: Path) -> None:
    import threading

    class Slow(Direct):
        gate = threading.Event()
        slow = False

        def receive(self) -> bytes | None:
            if self.slow:
                self.gate.wait(20)
            return super().receive()

    nodes_ = nodes(tmp_path, "fedsubavg")
    channels = {n: Slow(node) for n, node in nodes_.items()}
    post = Channels(channels, deadline=0.3)
    assert len(post.hellos()) == 8
    channels[2].slow = True
    channels[2].waiting.append(b"late")
    channels[3].waiting.append(b"in time")
    for channel in channels.values():
        channel.send = lambda data: None  # type: ignore[method-assign]
    assert post.exchange([(2, b"x"), (3, b"x")]) == [None, b"in time"]
    assert post.news() == {"late": 1}
    assert post.exchange([(2, b"y")]) == [None]  # it still owes the last answer
    channels[2].gate.set()
    while not post._readers[2].idle:
        pass
    channels[2].slow = False
    channels[2].waiting.append(b"in order")
    assert post.exchange([(2, b"z")]) == [b"in order"]


def test_only_compositions_of_slots_have_nodes(tmp_path: Path) -> None:
    with pytest.raises(FedsubError, match="composition"):
        run(fs.methods.fedmavg(), objective(SIZES), outline(data()), Inside({}), rounds=1)  # type: ignore[arg-type]
