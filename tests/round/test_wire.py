"""Messages as bytes: they come back as they were, and nothing else is taken for one."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from node.processes import METHODS, SEED, objective
from node.test_node import SIZES, Direct, nodes, population

from fedsub.errors import WireError
from fedsub.method.groups import Cohort
from fedsub.node import serve
from fedsub.node.door import Door
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


def sample(folder: Path, name: str) -> dict[int, bytes]:
    """A message of every kind, of one client in a real round."""
    kept: dict[int, dict[int, bytes]] = {}

    class Tap(Direct):
        def note(self, data: bytes | None) -> None:
            if data is not None:
                kept.setdefault(self.node.number, {}).setdefault(wire.read(data).kind, data)

        def send(self, data: bytes) -> None:
            self.note(data)
            super().send(data)

        def receive(self) -> bytes | None:
            self.note(data := super().receive())
            return data

    channels = {n: Tap(node) for n, node in nodes(folder, name).items()}
    serve(METHODS[name](), first_model(), population(), channels, rounds=1, seed=SEED)
    return next(messages for messages in kept.values() if len(messages) == 6)


def first_model() -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in objective(SIZES).module.named_parameters()}


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

    def other_run() -> bytes:
        body[8:16] = struct.pack("<Q", draw.integers(2, 2**62))
        return seal(bytes(body))

    def empty() -> bytes:
        """A tensor without values and with lengths that no machine can multiply."""
        shapes = [(2**40, 2**40, 0), (2**62, 2**62, 0), (0, 2**62, 2**62), (2**63, 0, 2**63), (0, 2**64 - 1, 1)]
        name = (list(message.tensors) or ["x"])[0].encode()
        body[44:48] = struct.pack("<I", 1)
        entry = struct.pack("<HBB3Q", len(name), 0, 3, *shapes[draw.integers(len(shapes))])
        return seal(bytes(body[:48]) + entry + name)

    def other_client() -> bytes:
        body[24:32] = struct.pack("<Q", draw.integers(100, 2**62))
        return seal(bytes(body))

    def huge() -> bytes:
        """A dimension that announces more than there is."""
        at = 48 + 4
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

    ways = [flip, flip, flip, cut, longer, version, other_client, empty, huge, many, nothing]
    if message.kind != wire.INVITE:  # to any round
        ways.append(other_round)
    if message.kind not in (wire.HELLO, wire.WELCOME):  # before there is a run
        ways.append(other_run)
    if message.tensors:
        ways += [reshaped, renamed, garbage]
    if any(v.is_floating_point() and v.numel() for v in message.tensors.values()):
        ways.append(infinite)
    return ways[draw.integers(len(ways))]


KINDS = {"hello": wire.HELLO, "welcome": wire.WELCOME, "invite": wire.INVITE, "rows": wire.ROWS, "down": wire.DOWN,
         "up": wire.UP}  # fmt: skip


class Waiting:
    """A server and a client of a run, each waiting for its messages, and a way to take one of every kind."""

    def __init__(self, folder: Path, name: str):
        self.messages = sample(folder / "sample", name)
        number = wire.read(self.messages[wire.UP]).client
        known = population()
        self.server = ServerHalf(METHODS[name](), known, first_model(), seed=SEED)
        self.letters = Letters(self.server.schema, known.rows, 1, known.padding)
        self.door = Door(self.server.method, self.server.params, known)
        self.weight = float(self.server.method.average.weight(known.sizes[[number]])[0])
        self.node = nodes(folder / "nodes", name)[number]
        self.node.join(self.messages[wire.WELCOME])
        self.node.answer(self.messages[wire.INVITE])

    def take(self, kind: int, data: bytes) -> None:
        number, counts = self.node.number, self.node.counts
        who = Cohort.of(np.array([number]))
        if kind == wire.HELLO:
            self.door.welcome(self.door.read(number, data), self.letters.run, SEED, self.server.schema.reports)
        elif kind == wire.WELCOME:
            self.node.join(data)
        elif kind == wire.ROWS:
            self.letters.read_asked(data, 1, number, 0)
        elif kind == wire.UP:
            self.letters.read_up(data, 1, who, counts, weight=self.weight)
        else:
            self.node.answer(data)

    def kept(self) -> dict[str, torch.Tensor]:
        return {**self.server.params, **{f"memory/{n}": v for n, v in self.node.memory.tensors.items()}}


class Said:
    """A channel over which one message came; what is sent is forgotten."""

    def __init__(self, data: bytes):
        self.data = data

    def send(self, data: bytes) -> None:
        pass

    def receive(self) -> bytes | None:
        return self.data


@pytest.mark.parametrize("name", ["scaffold + fedsubavg", "ef-sign", "top-k, prox", "fedper, a table"])
def test_two_thousand_mutated_messages_are_refused(name: str, tmp_path: Path) -> None:
    """Of every kind, each with a clear error; none takes memory beyond the message's size or changes a value."""
    draw = np.random.default_rng(0)
    waiting = Waiting(tmp_path, name)
    for kind, message in Waiting(tmp_path / "whole", name).messages.items():  # as they are, they are taken
        waiting.take(kind, message)
    before = {n: v.clone() for n, v in waiting.kept().items()}
    tracemalloc.start()
    for n in range(2000 if name.startswith("scaffold") else 500):
        kind = list(KINDS.values())[n % len(KINDS)]
        spoilt = mutations(waiting.messages[kind], draw)()
        tracemalloc.reset_peak()
        start = tracemalloc.get_traced_memory()[0]
        with pytest.raises(WireError) as refused:
            waiting.take(kind, spoilt)
        assert tracemalloc.get_traced_memory()[1] - start < 8 * len(waiting.messages[kind]) + 200_000
        assert len(str(refused.value)) > 20
    tracemalloc.stop()
    assert all(torch.equal(before[n], v) for n, v in waiting.kept().items())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(2**40, 2**40, 0), (2**62, 2**62, 0), (0, 2**62, 2**62)])
def test_an_empty_tensor_of_huge_lengths_is_refused(kind: str, shape: tuple[int, ...]) -> None:
    head = struct.pack("<4sHBBQQQQII", b"fsub", 1, KINDS[kind], 0, 1, 1, 1, 0, 0, 1)
    forged = seal(head + struct.pack("<HBB3Q", 3, 0, 3, *shape) + b"one")
    assert len(forged) == 95
    with pytest.raises(WireError, match="larger than any"):
        wire.read(forged)


def changed(data: bytes, name: str, value: torch.Tensor | None = None) -> bytes:
    """A message with another tensor, or without it, whose digest fits."""
    message = wire.read(data)
    found = {n: v for n, v in message.tensors.items() if n != name} | ({} if value is None else {name: value})
    return wire.write(replace(message, tensors=found))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda data: changed(data, "first/out.bias"), "it lacks 'first/out.bias'"),
        (lambda data: changed(data, "first/out.bias", torch.tensor([torch.nan])), "first/out.bias holds NaN"),
        (lambda data: changed(data, "moments/out.bias", torch.tensor([0, torch.inf]).double()), "holds NaN"),
        (lambda data: changed(data, "moments/out.bias", torch.zeros(3).double()), r"\[3\]"),
        (lambda data: changed(data, "more", torch.zeros(1)), "it has 'more'"),
        (lambda data: changed(data, "seed", torch.tensor(-1)), "seed must be"),
        (lambda data: wire.write(replace(wire.read(data), round=7)), "round 0, got one of round 7"),
    ],
    ids=["lacks", "nan", "infinite", "shape", "more", "seed", "round"],
)
def test_a_welcome_is_checked(spoil: Callable[[bytes], bytes], says: str, tmp_path: Path) -> None:
    waiting = Waiting(tmp_path, "fedper, a table")
    with pytest.raises(WireError, match=says):
        waiting.node.join(spoil(waiting.messages[wire.WELCOME]))


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
