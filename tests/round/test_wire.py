"""Messages as bytes: they come back as they were, and nothing else is taken for one."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from node.processes import METHODS, SEED, objective
from node.test_node import SIZES, Direct, nodes, population
from worlds import there

from fedsub.errors import WireError
from fedsub.method.groups import Cohort
from fedsub.node import serve
from fedsub.node.serve import welcome
from fedsub.round import wire
from fedsub.round.letters import Letters
from fedsub.round.server import ServerHalf

NAMES = st.text(st.characters(codec="utf-8"), max_size=12)
SHAPES = st.lists(st.integers(0, 4), max_size=3)


@given(st.dictionaries(NAMES, st.tuples(st.sampled_from(wire.TYPES), SHAPES), max_size=5), st.integers(0, 2**63 - 1))
def test_a_message_comes_back_as_it_was(layout: dict, number: int) -> None:
    draw = np.random.default_rng(number % 1000)
    tensors = {n: torch.from_numpy(draw.integers(0, 2, shape)).to(dtype) for n, (dtype, shape) in layout.items()}
    message = wire.Envelope(wire.UP, number, number // 2, number % 2**32, number // 3, 5, number // 5, tensors)
    data = wire.write(message)
    found = wire.read(data, wire.UP)
    assert (found.round, found.client, found.repeat, found.run, found.flags, found.accepted) == (
        message.round, message.client, message.repeat, message.run, message.flags, message.accepted,
    )  # fmt: skip
    assert found.tensors.keys() == tensors.keys()
    for name, value in tensors.items():
        assert torch.equal(found.tensors[name], value)
        assert found.tensors[name].dtype == value.dtype
    sizes = [(name, value.ndim) for name, value in tensors.items()]
    assert len(data) == wire.length(sizes) + sum(v.numel() * v.element_size() for v in tensors.values())


def seal(body: bytes) -> bytes:
    """A forged message with a digest that fits."""
    return body + blake2b(body, digest_size=16).digest()


def sample(tmp_path: Path, name: str = "scaffold + fedsubavg") -> tuple[bytes, bytes]:
    """A downlink and an uplink of a real round."""
    kept: list[bytes] = []

    class Tap(Direct):
        def send(self, data: bytes) -> None:
            super().send(data)
            if wire.read(data).kind == wire.DOWN:
                kept.extend([data, self.waiting[-1] or b""])

    channels = {n: Tap(node) for n, node in nodes(tmp_path, name).items()}
    params = {n: p.detach().clone() for n, p in objective(SIZES).module.named_parameters()}
    serve(METHODS[name](), params, population(), channels, rounds=1, seed=SEED)
    return kept[0], kept[1]


def mutations(data: bytes, draw: np.random.Generator) -> Callable[[], bytes]:
    """A random way to spoil a message: damage, and forgeries whose digest fits."""
    body = bytearray(data[:-16])
    message = wire.read(data)

    def flip() -> bytes:
        out = bytearray(data)
        out[draw.integers(len(out))] ^= 1 << draw.integers(8)
        return bytes(out)

    def cut() -> bytes:
        return data[: draw.integers(len(data))]

    def longer() -> bytes:
        return data + draw.bytes(int(draw.integers(1, 50)))

    def version() -> bytes:
        body[4:6] = struct.pack("<H", draw.integers(2, 60_000))
        return seal(bytes(body))

    def other_round() -> bytes:
        body[16:24] = struct.pack("<Q", draw.integers(2, 2**62))
        return seal(bytes(body))

    def other_client() -> bytes:
        body[24:32] = struct.pack("<Q", draw.integers(100, 2**62))
        return seal(bytes(body))

    def huge() -> bytes:
        """A dimension that announces more than there is."""
        at = 48 + 4 + 8 * int(draw.integers(0, 1))
        body[at : at + 8] = struct.pack("<Q", int(draw.integers(2**40, 2**63)))
        return seal(bytes(body))

    def many() -> bytes:
        body[44:48] = struct.pack("<I", draw.integers(1000, 2**32 - 1))
        return seal(bytes(body))

    def reshaped() -> bytes:
        tensors = dict(message.tensors)
        name = list(tensors)[draw.integers(len(tensors))]
        value = tensors[name]
        shaped = [value.unsqueeze(0), torch.cat([value.reshape(-1), value.reshape(-1)[:1]]), value.double().half()]
        tensors[name] = shaped[draw.integers(3)]
        return wire.write(wire.Envelope(message.kind, message.round, message.client, tensors=tensors, run=message.run))

    def renamed() -> bytes:
        tensors = dict(message.tensors)
        tensors["other/thing"] = tensors.pop(list(tensors)[draw.integers(len(tensors))])
        return wire.write(wire.Envelope(message.kind, message.round, message.client, tensors=tensors, run=message.run))

    def infinite() -> bytes:
        tensors = {n: v.clone() for n, v in message.tensors.items()}
        floats = [n for n, v in tensors.items() if v.is_floating_point() and v.numel()]
        tensors[floats[draw.integers(len(floats))]].reshape(-1)[0] = [np.nan, np.inf][draw.integers(2)]
        return wire.write(wire.Envelope(message.kind, message.round, message.client, tensors=tensors, run=message.run))

    def garbage() -> bytes:
        return seal(bytes(body[:48]) + draw.bytes(len(body) - 48))

    def nothing() -> bytes:
        return draw.bytes(int(draw.integers(0, 200)))

    ways = [flip, flip, flip, cut, longer, version, other_round, other_client, huge, many, reshaped, renamed, infinite,
            garbage, nothing]  # fmt: skip
    return ways[draw.integers(len(ways))]


def test_two_thousand_mutated_messages_are_refused(tmp_path: Path) -> None:
    """Each with a clear error; none takes memory beyond the message's size, and none changes the model."""
    draw = np.random.default_rng(0)
    name = "scaffold + fedsubavg"
    down, up = sample(tmp_path / "sample", name)
    node = nodes(tmp_path / "nodes", name)[wire.read(down).client]
    channel = Direct(node)
    params = {n: p.detach().clone() for n, p in objective(SIZES).module.named_parameters()}
    # The server that waits for this uplink, and the node that waits for this downlink.
    server = ServerHalf(METHODS[name](), population(), params, seed=SEED)
    letters = Letters(server.schema, population().rows, 1, population().padding)
    welcome(server, letters, {}, node.number, channel, SEED)
    who, counts = Cohort.of(np.array([node.number])), dict(node.counts)
    weight = float(server.method.average.weight(population().sizes[who.clients])[0])
    letters.read_up(up, 1, who, counts, weight=weight)  # as it is, it is taken
    node.answer(letters.invite(1, node.number, 0))
    there(node.letters).read_down(down, node.number, node.counts)
    before = {n: v.clone() for n, v in server.params.items()}
    memory = {n: v.clone() for n, v in node.memory.tensors.items()}
    tracemalloc.start()
    for n in range(2000):
        data = down if n % 2 else up
        spoilt = mutations(data, draw)()
        tracemalloc.reset_peak()
        start = tracemalloc.get_traced_memory()[0]
        take = node.answer if n % 2 else lambda data: letters.read_up(data, 1, who, counts, weight=weight)
        with pytest.raises(WireError) as refused:
            take(spoilt)
        assert tracemalloc.get_traced_memory()[1] - start < 8 * len(data) + 200_000
        assert len(str(refused.value)) > 20
    tracemalloc.stop()
    assert all(torch.equal(before[n], v) for n, v in server.params.items())
    assert all(torch.equal(memory[n], v) for n, v in node.memory.tensors.items())


@pytest.mark.parametrize("name", ["ef-sign", "top-k, prox", "fednova"])
def test_spoilt_answers_are_lost_and_the_run_goes_on(name: str, tmp_path: Path) -> None:
    """Client 3's answers never arrive whole: the model is that of a run in which it is lost."""
    draw = np.random.default_rng(1)

    def trained(spoil: Callable[[bytes], bytes | None], folder: Path):
        channels = {n: Direct(node) for n, node in nodes(folder, name).items()}
        channels[3].spoil = spoil
        params = {n: p.detach().clone() for n, p in objective(SIZES).module.named_parameters()}
        return serve(METHODS[name](), params, population(), channels, rounds=4, seed=SEED)

    spoilt = trained(lambda data: mutations(data, draw)(), tmp_path / "spoilt")
    lost = trained(lambda data: None, tmp_path / "lost")
    assert spoilt.refused
    assert all(3 not in report.rejected for report in spoilt.reports)
    for parameter, value in lost.params.items():
        assert torch.equal(spoilt.params[parameter], value)


def test_an_answer_of_another_weight_is_refused(tmp_path: Path) -> None:
    """A client cannot count for more than it declared."""

    def heavier(data: bytes) -> bytes:
        message = wire.read(data)
        tensors = {n: v * 100 if n.startswith(("update", "sum/weight")) else v for n, v in message.tensors.items()}
        return wire.write(
            wire.Envelope(wire.UP, message.round, message.client, message.repeat, message.run, tensors=tensors)
        )

    channels = {n: Direct(node) for n, node in nodes(tmp_path, "fedsubavg").items()}
    for channel in channels.values():
        channel.spoil = heavier if channel.node.number == 3 else None
    params = {n: p.detach().clone() for n, p in objective(SIZES).module.named_parameters()}
    done = serve(METHODS["fedsubavg"](), params, population(), channels, rounds=4, seed=SEED)
    assert any("declared one of" in sentence for sentence in done.refused)
