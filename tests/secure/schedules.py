"""Every schedule of a small world: all orders in which the messages of a secure sum can be sent, lost, repeated and
delayed, with the real state machines and a server that may lie about survivors.

A state is the server's machine, all clients' machines, and every message that was ever sent. From it one may deliver
any of those messages to whom it is for, at any time and as often as one likes (a message that is never delivered is
lost, one that is delivered again is a duplicate, one that overtakes another is reordered), or have the server end its
stage. A lying server may besides send any list of survivors to any client, and any selection of the agreements it has.

What is looked at in each state is what the server could compute, from the bytes that clients have sent: which secrets
the told shares open, by interpolation and comparison with what was announced, and of which sets of clients the sum
follows.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import combinations
from typing import Any

import numpy as np

from fedsub.errors import FedsubError, WireError
from fedsub.secure import keys, shamir, wire
from fedsub.secure.client import SecureClient
from fedsub.secure.ring import Segment
from fedsub.secure.server import SecureServer
from fedsub.secure.setting import Setting, one_more

PRIME = 2**61 - 1


class Stub:
    """Ciphers that are quick and give the same every time; of no use against anybody."""

    def __init__(self, seed: int):
        self.seed = seed

    def random(self, count: int) -> bytes:
        return _bytes(b"random" + bytes([self.seed]), count)

    def pair(self) -> tuple[Any, bytes]:
        secret = int.from_bytes(_bytes(b"pair" + bytes([self.seed]), 7), "little")
        return secret, pow(3, secret, PRIME).to_bytes(32, "little")

    def agree(self, secret: Any, public: bytes) -> bytes:
        return pow(int.from_bytes(public, "little"), secret, PRIME).to_bytes(32, "little")

    def derive(self, secret: bytes, salt: bytes, info: bytes, length: int = 32) -> bytes:
        return _bytes(b"derive" + secret + salt + info, length)

    def seal(self, key: bytes, text: bytes, associated: bytes) -> bytes:
        hidden = bytes(a ^ b for a, b in zip(text, _bytes(b"seal" + key, len(text)), strict=True))
        return hidden + self.tag(key, hidden + associated)

    def open(self, key: bytes, text: bytes, associated: bytes) -> bytes:
        if self.tag(key, text[:-16] + associated) != text[-16:]:
            raise WireError("It does not open.")
        return bytes(a ^ b for a, b in zip(text[:-16], _bytes(b"seal" + key, len(text) - 16), strict=True))

    def stream(self, key: bytes):
        made, at = _bytes(b"stream" + key, 256), [0]

        def fill(into: memoryview) -> None:
            into[:] = made[at[0] : at[0] + len(into)]
            at[0] += len(into)

        return fill

    def tag(self, key: bytes, text: bytes) -> bytes:
        return blake2b(text, key=key[:32], digest_size=16).digest()

    def sign(self, identity: Any, text: bytes) -> bytes:
        raise NotImplementedError

    def verify(self, public: bytes, signature: bytes, text: bytes) -> None:
        raise NotImplementedError


def _bytes(seed: bytes, count: int) -> bytes:
    blocks = [blake2b(seed + i.to_bytes(4, "little")).digest() for i in range(-(-count // 64))]
    return b"".join(blocks)[:count]


def clone(machine: Any) -> Any:
    """A machine of its own: containers are copied, and what is changed in place."""
    new = object.__new__(type(machine))
    for name, value in machine.__dict__.items():
        if name == "total":
            value = {k: v.copy() for k, v in value.items()}
        elif isinstance(value, dict | list):
            value = value.copy()
        new.__dict__[name] = value
    return new


def fingerprint(machine: Any) -> bytes:
    told = {k: v for k, v in machine.__dict__.items() if k not in ("setting", "ciphers", "values", "known", "identity")}
    return blake2b(pickle.dumps(_plain(told)), digest_size=16).digest()


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, dict):
        return [(k, _plain(v)) for k, v in sorted(value.items())]
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "__dataclass_fields__"):
        return [_plain(v) for v in value.__dict__.values()]
    return value


@dataclass
class State:
    server: Any
    clients: dict[int, Any]
    sent: frozenset[tuple[str, int, bytes]]  # ("up" | "down", client, bytes)
    told: frozenset[tuple[int, int, str, bytes]] = frozenset()  # (holder, owner, "own" | "lock", share): told for unmasking

    def key(self) -> bytes:
        parts = [fingerprint(self.server), *[fingerprint(c) for c in self.clients.values()]]
        sent = sorted(blake2b(m[2], digest_size=8).digest() + bytes([m[1]]) for m in self.sent)
        return blake2b(b"".join(parts + sent), digest_size=16).digest()


@dataclass
class World:
    """``count`` clients with rows of their own: ``holds[i]`` are client i's, of ``rows`` that are summed."""

    count: int
    spare: int = 1
    threshold: int = 2  # contributors that a row must have
    lies: bool = True
    client: type[SecureClient] = SecureClient
    server: type[SecureServer] = SecureServer
    setting: Setting = field(init=False)

    def __post_init__(self) -> None:
        # Of three rows one is held by all, the others by threshold + spare: the fewest that are let through.
        few = set(range(self.threshold + self.spare))
        self.holds = [set(range(self.count)), few, {self.count - 1 - c for c in few}]
        self.values = {
            c: np.array([(7 * c + 3 * r + 1) % 11 if c in held else 0 for r, held in enumerate(self.holds)])
            for c in range(self.count)
        }
        plan = Setting.plan(
            1, 1, range(self.count), (Segment("v", len(self.holds), 8, most=11),), least=self.count - self.spare
        )
        self.setting = Setting(**{**plan.__dict__, "session": bytes(16)})

    def start(self) -> State:
        clients = {
            c: self.client(self.setting, c, {"v": self.values[c]}, ciphers=Stub(c)) for c in range(self.count)
        }
        sent = frozenset(("up", c, one.hello()) for c, one in clients.items())
        return State(self.server(self.setting, ciphers=Stub(99)), clients, sent)

    def steps(self, state: State):
        """All states that follow."""
        if not state.server.stopped and state.server.stage:
            server = clone(state.server)
            try:
                down = server.advance()
            except FedsubError:
                down = {}
            yield State(server, state.clients, state.sent | {("down", c, m) for c, m in down.items()}, state.told)
        lies = set(self.lied(state)) if self.lies else set()
        for way, number, data in state.sent | lies:
            if way == "up":
                server = clone(state.server)
                try:
                    server.receive(data)
                except FedsubError:
                    continue
                yield State(server, state.clients, state.sent, state.told)
                continue
            client = clone(state.clients[number])
            held, told = dict(client.held), state.told
            try:
                answer = client.receive(data)
            except FedsubError:
                answer = b""
            if answer and wire.read(answer, tuple(range(1, 10))).stage == wire.UNMASK and held:
                told = told | self.shares(number, held, answer)
            sent = state.sent | {("up", number, answer)} if answer else state.sent
            yield State(state.server, {**state.clients, number: client}, sent, told)

    def shares(self, holder: int, held: dict[int, bytes], answer: bytes) -> frozenset[tuple[int, int, str, bytes]]:
        """Which shares an answer tells, found by their bytes and not by what the client thinks that it told."""
        body = bytes(wire.read(answer, (wire.UNMASK,)).body)
        rows = {body[i : i + shamir.SHARE] for i in range(0, len(body), shamir.SHARE)}
        out = set()
        for owner, both in held.items():
            for kind, share in (("own", both[: shamir.SHARE]), ("lock", both[shamir.SHARE :])):
                if share in rows:
                    out.add((holder, owner, kind, share))
        return frozenset(out)

    def lied(self, state: State):
        """What a lying server may send besides: any survivors to anybody, any of the agreements that it has."""
        views, s = state.server.views, self.setting
        vouched = {
            c: data for way, c, data in state.sent
            if way == "up" and wire.read(data, tuple(range(1, 10))).stage == wire.AGREE
        }  # fmt: skip
        for number, client in state.clients.items():
            if client.stopped or len(views) < 3:
                continue
            if client.waits == wire.SURVIVORS:
                for mask in range(2**self.count):
                    list_ = np.array([mask >> i & 1 for i in range(self.count)], bool)
                    view = one_more(views[2], list_)
                    data = wire.write(wire.SURVIVORS, s.run, s.round, number, view, np.packbits(list_).tobytes())
                    yield "down", number, data
            elif client.waits == wire.AGREED:
                others = [c for c in vouched if c != number]
                for size in range(len(others) + 1):
                    for chosen in combinations(others, size):
                        agreed = np.zeros(self.count, bool)
                        agreed[[number, *chosen]] = True
                        tags = [self.tag(state, c, number, vouched[c]) for c in sorted(chosen)]
                        bits = np.packbits(agreed).tobytes()
                        yield "down", number, wire.write(wire.AGREED, s.run, s.round, number, client.view, bits, *tags)

    def tag(self, state: State, sender: int, receiver: int, data: bytes) -> bytes:
        """The tag for one client in another's agreement; zeros if it has none for it."""
        peer = state.clients[sender]
        told = [c for c in peer.near.tolist() if peer.listed[-1][c]]
        body = bytes(wire.read(data, (wire.AGREE,)).body)
        at = told.index(receiver) if receiver in told else -1
        return body[16 * at : 16 * at + 16] if at >= 0 else bytes(16)

    def wrong(self, state: State) -> str:
        """What must never be, or nothing."""
        server = state.server
        if server.summed is not None:
            who = server.summed.clients
            if (server.summed.sums["v"] != sum(self.values[c] for c in who)).any() or len(set(who)) < len(who):
                return f"the sum over {who} is wrong"
            if self.too_few(set(who)):
                return f"a row is revealed with {self.too_few(set(who))} contributors"
        kinds: dict[tuple[int, int], set[str]] = {}
        for holder, owner, kind, _ in state.told:
            kinds.setdefault((holder, owner), set()).add(kind)
        if both := [pair for pair, found in kinds.items() if len(found) > 1]:
            return f"both shares were told by and of {both}"
        opened = {kind: {c for c in range(self.count) if self.opens(state, c, kind)} for kind in ("own", "lock")}
        if opened["own"] & opened["lock"]:
            return f"both secrets of {opened['own'] & opened['lock']} are open"
        answered = {holder for holder, *_ in state.told}
        if (opened["own"] | opened["lock"]) and len(answered) < self.setting.threshold:
            return f"{len(answered)} answers opened {opened}"
        for group in self.follows(state, opened["own"], opened["lock"]):
            if len(group) < self.setting.least:
                return f"the sum over {group} follows, {self.setting.least} are the least"
            if self.too_few(group):
                return f"a row of {self.too_few(group)} contributors follows"
        return ""

    def too_few(self, who: set[int]) -> int:
        """The contributors of a row that has fewer than it must, or 0."""
        counts = [len(held & who) for held in self.holds]
        return next((n for n in counts if n < self.threshold), 0)

    def opens(self, state: State, owner: int, kind: str) -> bool:
        """Do the shares that were told give the secret? Interpolated from all there are."""
        found = sorted({(holder, share) for holder, o, k, share in state.told if (o, k) == (owner, kind)})
        if not found:
            return False
        holders = sorted([*state.clients[owner].near.tolist(), owner])
        points = np.array([[1 + holders.index(h) for h, _ in found]])
        rows = np.frombuffer(b"".join(share for _, share in found), np.uint8).reshape(1, len(found), -1)
        try:
            (secret,) = shamir.combine(points, shamir.read(rows))
        except FedsubError:
            return False
        made = keys.commitments(secret, secret, owner, self.setting.digest, Stub(0))
        announced = state.server.keys[owner]
        return made[0] == announced.own if kind == "own" else made[1] == announced.lock

    def follows(self, state: State, own: set[int], lock: set[int]):
        """The sets of clients whose sum follows from what they sent: every mask of theirs that does not cancel is open."""
        masked = {
            c for way, c, data in state.sent
            if way == "up" and wire.read(data, tuple(range(1, 10))).stage == wire.MASKED
        }  # fmt: skip
        for size in range(1, len(masked & own) + 1):
            for chosen in combinations(sorted(masked & own), size):
                group = set(chosen)
                outside = [
                    (c, v) for c in group for v in state.clients[c].near.tolist()
                    if v not in group and state.clients[c].listed[1][v]
                ]  # fmt: skip
                if all(c in lock or v in lock for c, v in outside):
                    yield group

    def search(self, most: int = 10**7) -> tuple[int, str, int]:
        """(states, what is wrong in one of them or nothing, in how many a sum came out)."""
        first = self.start()
        seen, waiting, sums = {first.key()}, [first], 0
        while waiting:
            state = waiting.pop()
            if bad := self.wrong(state):
                return len(seen), bad, sums
            sums += state.server.summed is not None
            for after in self.steps(state):
                key = after.key()
                if key not in seen:
                    seen.add(key)
                    if len(seen) > most:
                        raise AssertionError(f"more than {most} states")
                    waiting.append(after)
        return len(seen), "", sums
