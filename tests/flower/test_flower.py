"""fedsub's apps over a Grid in this process: the simulation bit for bit, and what is refused, lost and gone on with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flower.world import ROUNDS, config_of, grid, has_task, letters_of, over_grid, packed, same, simulated, task
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from node.processes import METHODS, data

import fedsub as fs
from fedsub.errors import ConfigError, DataError, NoUsableClient, WireError
from fedsub.flower import Settings, client_app, parcel, serve
from fedsub.flower.client import Hosts
from fedsub.node import hand_out
from fedsub.round import wire

QUICK = ("fedsubavg + adam", "scaffold + fedsubavg", "ef-sign", "fedper, a table", "cpow", "drawn twice")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in METHODS])
def test_every_method_is_the_simulation(name: str, tmp_path: Path) -> None:
    found, expected = over_grid(tmp_path, name), simulated(name)
    assert same(found, expected)
    for mine, theirs in zip(found.history[1:], expected.history[1:], strict=True):
        assert [mine[k] for k in ("loss", "down", "up", "lost")] == [theirs[k] for k in ("loss", "down", "up", "lost")]
    live = json.loads((tmp_path / "out" / "live.json").read_text())
    assert (live["state"], live["round"], live["counts"]["refused"]) == ("finished", ROUNDS, 0)
    assert all(one["online"] and one["joined"] for one in live["clients"].values())
    assert fs.load(tmp_path / "out").finished


@pytest.mark.parametrize("name", ["scaffold + fedsubavg", "ef-sign", "fedper, a table"])
def test_nodes_that_begin_anew_with_every_message_are_the_simulation(name: str, tmp_path: Path) -> None:
    """As stock SuperNodes do: what a node remembers is on its disk."""
    assert same(over_grid(tmp_path, name, fast=False), simulated(name))


def test_sums_that_nobody_looks_into_are_the_simulation(tmp_path: Path) -> None:
    """Four stages of messages a sum, that of the heat and of the union first. No node names its rows."""
    assert same(over_grid(tmp_path, "secure sum"), simulated("secure sum"))
    assert same(over_grid(tmp_path / "plain", "secure sum, no heat"), simulated("secure sum, no heat"))
    with pytest.raises(DataError, match="name their rows to nobody"):
        over_grid(tmp_path / "counted", "secure sum, counted heat")


def test_private_heat_is_asked_of_the_nodes(tmp_path: Path) -> None:
    """Their answers follow from secrets of their own, so the model is another one than the simulation's."""
    found = over_grid(tmp_path, "private heat")
    assert any("randomised response" in said for said in found.events)
    assert json.loads((tmp_path / "out" / "live.json").read_text())["counts"]["refused"] == 0


def test_large_letters_are_cut_into_pieces(tmp_path: Path) -> None:
    assert same(over_grid(tmp_path, "fedsubavg + adam", piece=1024), simulated("fedsubavg + adam"))


def test_pieces_are_checked() -> None:
    letter = bytes(range(256)) * 40
    assert parcel.unpack(parcel.pack("letter", letter, 1000)) == ("letter", letter)
    assert len(parcel.pack("letter", letter, 1000).array_records["fedsub.pieces"]) == 11
    with pytest.raises(parcel.TooLarge, match="10,240 bytes"):
        parcel.unpack(parcel.pack("letter", letter, 1000), most=10_000)
    with pytest.raises(parcel.TooLarge):
        parcel.unpack(parcel.pack("letter", letter), most=10_000)
    lacking = parcel.pack("letter", letter, 1000)
    del lacking.array_records["fedsub.pieces"]["000003"]
    with pytest.raises(WireError, match="without its pieces"):
        parcel.unpack(lacking)
    with pytest.raises(WireError, match="did not write"):
        parcel.unpack(RecordDict())
    lying = parcel.pack("letter", letter, 1000)
    lying.config_records["fedsub"]["bytes"] = 1 << 62
    with pytest.raises(WireError, match="announces"):
        parcel.unpack(lying)


class Spoiler:
    """Replaces the trained replies of some clients by others of all bad kinds."""

    def __init__(self, seed: int, nodes: set[int]):
        self.draw, self.nodes, self.old, self.count = np.random.default_rng(seed), nodes, list[bytes](), 0

    def __call__(self, node: int, message: Message, reply: Message) -> Message | None:
        if node - 100 not in self.nodes or not has_task(message):
            return reply
        *before, data = letters_of(reply.content)
        self.old.append(data)
        self.count += 1
        return Message(self.spoilt(before, data), reply_to=message)

    def spoilt(self, before: list[bytes], data: bytes) -> RecordDict:
        """``before``: the answer to an invitation that came with the task."""
        kind, raw = int(self.draw.integers(8)), bytearray(data)
        if kind in (0, 1) and before:  # of the whole message
            raw = bytearray(parcel.fold([*before, data]))
        if kind == 0:  # cut short
            return parcel.pack(parcel.LETTER, bytes(raw[: int(self.draw.integers(len(raw)))]))
        if kind == 1:  # a bit flipped
            raw[int(self.draw.integers(len(raw)))] ^= 1 << int(self.draw.integers(8))
            return parcel.pack(parcel.LETTER, bytes(raw))
        if kind == 2:  # other shapes, with a good digest
            whole = wire.read(data)
            tensors = {n: torch.zeros((*v.shape, 1), dtype=v.dtype) for n, v in whole.tensors.items()}
            return packed([*before, wire.write(changed(whole, tensors=tensors))])
        if kind == 3:  # NaN, with a good digest
            whole = wire.read(data)
            tensors = {n: v * float("nan") if v.is_floating_point() else v for n, v in whole.tensors.items()}
            return packed([*before, wire.write(changed(whole, tensors=tensors))])
        if kind == 4:  # huge lengths
            at = int(self.draw.integers(60, len(raw) - 24))
            raw[at : at + 8] = b"\xff" * 7 + b"\x3f"
            return packed([*before, bytes(raw)])
        if kind == 5:  # of another round
            whole = wire.read(data)
            return packed([*before, wire.write(changed(whole, round=whole.round + 1))])
        if kind == 6 and len(self.old) > 1:  # replayed
            return packed([*before, self.old[int(self.draw.integers(len(self.old) - 1))]])
        odd = (
            RecordDict(),
            RecordDict({"fedsub": ConfigRecord({"about": "letter", "bytes": 1 << 62})}),
            RecordDict({"other": ArrayRecord({"x": Array(np.zeros(3))})}),
            parcel.pack(parcel.LETTER, b""),
            parcel.pack(parcel.LETTER, bytes(self.draw.bytes(200))),
        )
        return odd[int(self.draw.integers(len(odd)))]


def changed(message: wire.Envelope, **what: Any) -> wire.Envelope:
    return wire.Envelope(**{**vars(message), **what})


@pytest.mark.parametrize("replies", [140, pytest.param(1000, marks=pytest.mark.slow)])
def test_corrupted_replies_change_nothing(replies: int, tmp_path: Path) -> None:
    """All clients but one send rubbish in every round: the model is that of a run in which they are lost."""
    bad = {0, 1, 2, 3, 4, 6, 7}
    rounds = -(-replies // len(bad))
    spoil = Spoiler(0, bad)
    found = over_grid(tmp_path, "everyone", spoil=spoil, rounds=rounds, checkpoints=100)
    assert spoil.count >= replies
    counted = json.loads((tmp_path / "out" / "live.json").read_text())["counts"]
    assert counted["refused"] + counted["failed"] + counted["too_large"] == spoil.count
    silent = over_grid(tmp_path / "silent", "everyone", spoil=Silent(bad), rounds=rounds, checkpoints=100)
    assert same(found, silent)
    assert {row["lost"] for row in found.history[1:]} == {7}


class Silent(Spoiler):
    """The same clients say in words that they cannot answer."""

    def __init__(self, nodes: set[int]):
        super().__init__(0, nodes)

    def spoilt(self, before: list[bytes], data: bytes) -> RecordDict:
        return parcel.refusal(parcel.REFUSED, "no")


def test_a_server_that_died_goes_on_when_the_app_is_submitted_again(tmp_path: Path) -> None:
    hand_out(data(), tmp_path / "data")
    config = config_of(tmp_path, "scaffold + fedsubavg")
    sent = 0

    def dies(node: int, message: Message, reply: Message) -> Message:
        nonlocal sent
        sent += 1
        if sent == 36:
            raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        serve(task(tmp_path), grid(tmp_path, config, spoil=dies), config)  # type: ignore[arg-type]
    assert json.loads((tmp_path / "out" / "live.json").read_text())["state"] == "failed"
    found = serve(task(tmp_path), grid(tmp_path, config), config)  # type: ignore[arg-type]
    assert same(found, simulated("scaffold + fedsubavg"))


def test_a_node_that_is_gone_in_mid_round_is_waited_for_and_asked_again(tmp_path: Path) -> None:
    """It was given its task and died with it; it is back under another activation, and the bits are the same."""
    hand_out(data(), tmp_path / "data")
    config = config_of(tmp_path, "scaffold + fedsubavg", returns=30.0, deadline=30.0)
    inproc = grid(tmp_path, config)
    died: list[int] = []

    def dies(node: int, message: Message, reply: Message) -> Message | None:
        if not died and has_task(message):
            died.append(node)
            inproc.infos[node].last_activated_at = "again"  # as a new process with the same key
            inproc.apps[node] = inproc.app(node - 100)
            return None
        return reply

    inproc.spoil = dies
    found = serve(task(tmp_path), inproc, config)  # type: ignore[arg-type]
    assert same(found, simulated("scaffold + fedsubavg"))
    assert json.loads((tmp_path / "out" / "live.json").read_text())["counts"]["sent again"] == 1


def test_a_node_that_stays_away_is_lost_and_not_waited_for_again(tmp_path: Path) -> None:
    hand_out(data(), tmp_path / "data")
    config = config_of(tmp_path, "fedsubavg", rounds=6)
    inproc = grid(tmp_path, config)

    def leaves(node: int, message: Message, reply: Message) -> Message | None:
        if node == 106 and any(wire.read(letter).round == 2 for letter in letters_of(message.content)):
            inproc.away.add(node)
            return Message(Error(5, "Node Unavailable"), reply_to=message)
        return reply

    inproc.spoil = leaves
    found = serve(task(tmp_path), inproc, config)  # type: ignore[arg-type]
    lost = [row["lost"] for row in found.history[1:]]
    assert lost[0] == 0
    assert sum(lost) > 0
    live = json.loads((tmp_path / "out" / "live.json").read_text())
    assert not live["clients"]["6"]["joined"]
    assert live["counts"]["gone"] >= 1


def test_nodes_that_were_absent_at_the_start_join_the_run_that_is_under_way(tmp_path: Path) -> None:
    hand_out(data(), tmp_path / "data")
    config = config_of(tmp_path, "fedsubavg", rounds=6, patience=0.3, fewest=6)
    inproc = grid(tmp_path, config)
    inproc.away = {102, 105}

    class Come(fs.Callback):
        def on_round(self, record: dict[str, Any]) -> None:
            if record["round"] == 2:
                inproc.away = set()

    found = serve(task(tmp_path), inproc, config, callbacks=[Come()])  # type: ignore[arg-type]
    assert any("came late take part: 2, 5; there are 8 now" in said for said in found.events)
    assert sum(row["lost"] for row in found.history[1:]) == 0
    live = json.loads((tmp_path / "out" / "live.json").read_text())
    assert all(client["joined"] for client in live["clients"].values())


def test_another_method_is_left_out_and_an_unknown_name_is_nobody(tmp_path: Path) -> None:
    hand_out(data(), tmp_path / "data")
    config = config_of(tmp_path, "fedsubavg", patience=0.3)
    odd = grid(tmp_path, config)
    odd.apps[103] = client_app(task(tmp_path, method=lambda c: METHODS["fednova"]()))
    with pytest.raises(NoUsableClient, match="joins with another method"):
        serve(task(tmp_path), odd, config)  # type: ignore[arg-type]
    (tmp_path / "names.json").write_text(json.dumps({f"node-{n}": n for n in range(7)}))
    few = config | {"names": str(tmp_path / "names.json"), "out": str(tmp_path / "few")}
    with pytest.raises(NoUsableClient, match="1 of 8 clients: 7"):
        serve(task(tmp_path), grid(tmp_path, few), few)  # type: ignore[arg-type]


def test_nodes_without_names_say_their_number_and_nobody_takes_another_one(tmp_path: Path) -> None:
    hand_out(data(), tmp_path / "data")
    config = config_of(tmp_path, "fedsubavg")
    assert same(serve(task(tmp_path), grid(tmp_path, config, names=lambda n: ""), config), simulated("fedsubavg"))  # type: ignore[arg-type]
    twice = grid(tmp_path, config | {"out": str(tmp_path / "b")}, names=lambda n: "")
    twice.node_configs = {**twice.node_configs, 5: twice.node_configs[4]}
    with pytest.raises(NoUsableClient, match="1 of 8 clients: 5"):
        serve(task(tmp_path), twice, config | {"out": str(tmp_path / "b"), "patience": 0.3})  # type: ignore[arg-type]


def test_a_node_that_does_not_stay_joins_no_secure_sum(tmp_path: Path) -> None:
    hand_out(data(), tmp_path / "data")
    config = config_of(tmp_path, "secure sum", patience=0.3)
    stock = grid(tmp_path, config, fast=False)
    with pytest.raises(NoUsableClient, match="8 of 8 clients"):
        serve(task(tmp_path), stock, config)  # type: ignore[arg-type]
    said = json.loads((tmp_path / "out" / "live.json").read_text())["refused"]
    assert any("fedsub node run" in line for line in said)


def test_settings_are_refused_in_words() -> None:
    with pytest.raises(ConfigError, match=r"rounds: Input should be greater"):
        Settings.read({"rounds": 0, "out": "x"})
    with pytest.raises(ConfigError, match="out: Field required"):
        Settings.read({"rounds": 1})
    assert Settings.read({"rounds": 1, "out": "x", "checkpoint-every": 5, "method": "own"}).checkpoint_every == 5


def test_an_app_can_be_copied_into_the_workers_of_flowers_simulation():
    made = Hosts(task(Path("nowhere")), 100, 200)
    kind, given = made.__reduce__()
    again = kind(*given)
    assert (again.piece, again.most, again._hosts) == (100, 200, {})
    assert again._turn is not made._turn
