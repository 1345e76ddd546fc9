"""What nodes, disks and people may do to a run over Flower: it is counted, and ends or forks no run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flower.world import Info, config_of, grid, has_task, letters_of, over_grid, packed, same, simulated, task
from flwr.app import ConfigRecord, Error, Message, RecordDict
from node.processes import data

import fedsub.flower.post as of_post
from fedsub.errors import ConfigError, FedsubError
from fedsub.flower import parcel, serve
from fedsub.flower.post import read_names
from fedsub.node import hand_out
from fedsub.node.store import Store
from fedsub.round import wire


def live(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "out" / "live.json").read_text())


def changed(message: wire.Envelope, **what: Any) -> bytes:
    return wire.write(wire.Envelope(**{**vars(message), **what}))


def silent(bad: set[int]) -> Any:
    def spoil(node: int, message: Message, reply: Message) -> Message:
        if node - 100 in bad and has_task(message):
            return Message(parcel.refusal(parcel.REFUSED, "no"), reply_to=message)
        return reply

    return spoil


class Forged:
    """Some nodes answer with values of their own choice under a good digest: what a digest cannot tell."""

    def __init__(self, bad: set[int]):
        self.bad, self.draw, self.count = bad, np.random.default_rng(0), 0

    def __call__(self, node: int, message: Message, reply: Message) -> Message:
        if node - 100 not in self.bad or not letters_of(message.content):
            return reply
        answers = letters_of(reply.content)
        if not answers:  # it was asked for more than it has: rows that it only claimed
            return reply
        which = 0 if self.draw.random() < 0.3 else len(answers) - 1  # the rows, or what came of the task
        whole = wire.read(answers[which])
        if whole.kind == wire.ROWS and self.draw.random() < 0.7:  # else nothing would get further
            return reply
        names = [name for name, value in whole.tensors.items() if value.numel()]
        coded = [name for name in names if whole.tensors[name].dtype == torch.uint8]
        if not names:
            return reply
        self.count += 1
        name = str(self.draw.choice(coded or names))
        value = whole.tensors[name].clone()
        raw = value.reshape(-1).view(torch.uint8).numpy()
        raw[self.draw.integers(len(raw), size=3)] = self.draw.integers(256, size=3)
        if name in coded and self.draw.random() < 0.5:
            value = value[: int(self.draw.integers(len(value)))] if self.draw.random() < 0.5 else value.repeat(2)
        answers[which] = changed(whole, tensors={**whole.tensors, name: value})
        return Message(packed(answers), reply_to=message)


@pytest.mark.parametrize("name", ["fedsubavg + adam", "ef-sign", "top-k, prox", "ucb-cs"])
def test_forged_answers_end_no_run(name: str, tmp_path: Path) -> None:
    spoil = Forged({0, 2, 3, 6})
    found = over_grid(tmp_path, name, spoil=spoil, rounds=12, checkpoints=100, back=0.1, tries=0)
    assert spoil.count >= 15
    assert live(tmp_path)["state"] == "finished"
    assert live(tmp_path)["counts"]["refused"] > 0
    assert found.params is not None
    assert all(bool(torch.isfinite(value).all()) for value in found.params.values())


@pytest.mark.parametrize("what", ["an earlier round", "another client", "another run", "another draw", "the future"])
def test_whole_answers_that_belong_elsewhere_are_left_out(what: str, tmp_path: Path) -> None:
    """Genuine answers, each with its good digest, in the wrong place: the model is that without their senders."""
    bad, old = {0, 3, 5}, dict[tuple[int, int], wire.Envelope]()

    def spoil(node: int, message: Message, reply: Message) -> Message:
        if not has_task(message):
            return reply
        *before_it, last = letters_of(reply.content)
        whole = wire.read(last)
        old[node, whole.round] = whole
        if node - 100 not in bad:
            return reply
        before = [one for (of, number), one in old.items() if of == node and number < whole.round]
        neighbour = [one for (of, number), one in old.items() if of != node and number == whole.round]
        forged = {
            "an earlier round": changed((before or [other_round(whole)])[0]),
            "another client": changed((neighbour or [wire.Envelope(**{**vars(whole), "client": 7})])[0]),
            "another run": changed(whole, run=whole.run + 1), "another draw": changed(whole, repeat=1),
            "the future": changed(whole, round=whole.round + 1),
        }  # fmt: skip
        return Message(packed([*before_it, forged[what]]), reply_to=message)

    def other_round(whole: wire.Envelope) -> wire.Envelope:
        return wire.Envelope(**{**vars(whole), "round": whole.round - 1})

    found = over_grid(tmp_path, "everyone", spoil=spoil)
    assert same(found, over_grid(tmp_path / "silent", "everyone", spoil=silent(bad)))
    assert live(tmp_path)["counts"]["refused"] == 4 * len(bad)


def test_what_nodes_say_is_bounded_and_plain(tmp_path: Path) -> None:
    """Megabytes with the terminal's own commands, as words and as an error: logs, memory and live.json stay small."""
    words = b"\x1b[2J<script>alert(1)</script>\n" * 50_000

    def spoil(node: int, message: Message, reply: Message) -> Message:
        if not letters_of(message.content) or node > 101:
            return reply
        if node == 101:
            return Message(Error(2, words.decode()), reply_to=message)
        return Message(RecordDict({"fedsub": ConfigRecord({"about": "refused", "data": words})}), reply_to=message)

    over_grid(tmp_path, "everyone", spoil=spoil)
    assert (tmp_path / "out" / "live.json").stat().st_size < 20_000
    assert {"refused", "failed"} <= {key for key, count in live(tmp_path)["counts"].items() if count}
    assert all(said.isprintable() and len(said) < 600 for said in live(tmp_path)["refused"])


def test_two_nodes_that_are_registered_as_one_client(tmp_path: Path) -> None:
    """The first one keeps the number; the other is counted once and never asked."""
    hand_out(data(), tmp_path / "data")
    config = config_of(tmp_path, "scaffold + fedsubavg")
    inproc = grid(tmp_path, config)
    inproc.node_configs = {**inproc.node_configs, 8: {"client": 3, "state": str(tmp_path / "second")}}
    inproc.infos[108], inproc.apps[108] = Info(108, "other-3"), inproc.app(8)
    found = serve(task(tmp_path), inproc, config)  # type: ignore[arg-type]
    assert same(found, simulated("scaffold + fedsubavg"))
    assert [live(tmp_path)["counts"][what] for what in ("refused", "rejoined")] == [1, 0]
    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize("how", ["raised", "refused", "damaged"])
def test_a_hello_that_could_not_be_used_is_asked_for_again(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_post, "AGAIN", 0.05)
    said: list[int] = []

    def spoil(node: int, message: Message, reply: Message) -> Message:
        if node != 102 or parcel.unpack(message.content)[0] != parcel.HELLO or said:
            return reply
        said.append(node)
        if how == "raised":
            return Message(Error(2, "OSError: the disk is not mounted yet"), reply_to=message)
        return Message(parcel.refusal("refused", "no") if how == "refused" else RecordDict(), reply_to=message)

    hand_out(data(), tmp_path / "data")
    config = config_of(tmp_path, "fedsubavg", patience=10.0)
    found = serve(task(tmp_path), grid(tmp_path, config, spoil=spoil), config)  # type: ignore[arg-type]
    assert said
    assert same(found, simulated("fedsubavg"))


def test_a_node_whose_disk_was_full_says_hello_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not write when it joined; it is lost until it has a beginning on its disk, and then it takes part."""
    hand_out(data(), tmp_path / "data")
    config = config_of(tmp_path, "everyone", rounds=5)
    inproc, save, failed = grid(tmp_path, config), Store.save, list[int]()
    config["method"] = inproc.config["method"] = "scaffold + fedsubavg"  # type: ignore[index]

    def full(self: Store, memory: Any, round: int) -> None:
        if "state-2" in str(self.folder) and not failed:
            failed.append(round)
            raise OSError(28, "No space left on device")
        save(self, memory, round)

    monkeypatch.setattr(Store, "save", full)
    told = inproc.apps[102]

    def app(message: Message, context: Any) -> Message:
        try:
            return told(message, context)
        except OSError as err:  # as a resident node and a SuperNode answer
            return Message(Error(2, repr(err)), reply_to=message)

    inproc.apps[102] = app  # type: ignore[assignment]
    found = serve(task(tmp_path), inproc, config)  # type: ignore[arg-type]
    assert failed == [0]
    lost = [row["lost"] for row in found.history[1:]]
    assert sum(lost) <= 1
    assert live(tmp_path)["clients"]["2"]["accepted"] > 0
    assert live(tmp_path)["counts"]["failed"] == 1


def test_a_run_directory_of_another_run_is_not_gone_on_with(tmp_path: Path) -> None:
    hand_out(data(), tmp_path / "data")
    config = config_of(tmp_path, "scaffold + fedsubavg")
    first = serve(task(tmp_path), grid(tmp_path, config), config)  # type: ignore[arg-type]
    for changed in ({"seed": 99}, {"method": "fedsubavg"}):
        with pytest.raises(FedsubError, match=r"seed|method|config"):
            serve(task(tmp_path), grid(tmp_path, config | changed), config | changed)  # type: ignore[arg-type]
    more = config | {"rounds": 6}
    found = serve(task(tmp_path), grid(tmp_path, more), more)  # type: ignore[arg-type]
    assert same(found, simulated("scaffold + fedsubavg", rounds=6))
    assert first.history[1]["loss"] == found.history[1]["loss"]
    elsewhere = config | {"out": str(tmp_path / "second")}  # the same nodes' folders, a run of its own
    again = serve(task(tmp_path), grid(tmp_path, elsewhere), elsewhere)  # type: ignore[arg-type]
    assert same(again, simulated("scaffold + fedsubavg"))


def test_names_may_be_whole_public_keys(tmp_path: Path) -> None:
    (path := tmp_path / "names.json").write_text(json.dumps({"ecdsa-sha2-nistp384 AAAA me@home": 1, "node 3 x": 2}))
    assert read_names(path) == {"ecdsa-sha2-nistp384 AAAA": 1, "node 3 x": 2}
    for bad in ({"a": True}, {"a": -1}, {"a": 1, "b": 1}, [1], {"a": 1.0}):
        path.write_text(json.dumps(bad))
        with pytest.raises(ConfigError, match="names"):
            read_names(path)
