"""Bytes at a node's socket are those that `fedsub.costs.at_socket` says."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedsub[flower]'")

from flower.loopback import Loopback
from flower.relay import Relay, after
from flower.world import config_of, data
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.task_identity import TaskIdentity

from fedsub.disk.files import JsonLines
from fedsub.flower import Settings, parcel
from fedsub.node import hand_out
from fedsub.study.costs import at_socket
from fedsub.study.costs.flower import PIECE, objects


def test_flower_sends_as_many_objects_as_are_predicted():
    TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id = 1, 1, 1
    for size in (0, 10, 100, 101, 300, 301):
        letter = bytes(k % 251 for k in range(size))
        message = Message(parcel.pack(parcel.LETTER, letter, 100), 1, parcel.TYPE)
        assert len(get_all_nested_objects(message)) == objects(size, 100), size
    assert PIECE == parcel.PIECE == Settings(rounds=1, out="x").piece


def test_the_relay_counts_every_byte_and_who_asked():
    server = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        near, _ = server.accept()
        for asked, answered in ((100, 7), (30_000, 500), (20, 90_000)):
            near.recv(asked, socket.MSG_WAITALL)
            near.sendall(bytes(answered))
        near.close()

    threading.Thread(target=answer, daemon=True).start()
    relay = Relay(server.getsockname()[1])
    with socket.create_connection(("127.0.0.1", relay.port)) as node:
        for asked, answered in ((100, 7), (30_000, 500), (20, 90_000)):
            node.sendall(bytes(asked))
            assert len(node.recv(answered, socket.MSG_WAITALL)) == answered
    assert (relay.counted.up, relay.counted.down) == (30_120, 90_507)
    assert (relay.counted.requests, relay.counted.connections) == (2, 1)  # the first turn is the handshake's
    relay.close()
    server.close()


@pytest.mark.slow
def test_what_crosses_the_socket_is_within_a_tenth_of_what_is_predicted(tmp_path: Path):
    hand_out(data(), tmp_path / "data")
    rounds = 6
    config = config_of(tmp_path, "everyone", rounds=1 + rounds, patience=300.0, deadline=300.0, back=60.0, poll=0.1)
    link = Loopback(tmp_path, config)
    try:
        link.superlink()
        relay, port = Relay(link.port), link.port
        link.register(*range(8))
        for client in range(8):
            link.port = relay.port if client == 0 else port
            link.node(client)
        link.port = port
        run, out = link.submit(), tmp_path / "out"
        (counted,), seconds = after(out / "traffic.jsonl", [relay], (1, 1 + rounds))
        assert link.wait(run, 300) == "finished:completed", link.log("superlink")
        relay.close()
    finally:
        link.close()
    lines = JsonLines.read(out / "traffic.jsonl")[1:]
    down, up = (sum(line[side][line["clients"].index(0)] for line in lines) / rounds for side in ("down", "up"))
    said = at_socket(down, up, seconds=seconds / rounds)
    assert counted.down / rounds == pytest.approx(said.total.down, rel=0.1)
    assert counted.up / rounds == pytest.approx(said.total.up, rel=0.1)
    assert said.fixed.down > down  # Flower's part is most of it here: the test is of the constants
