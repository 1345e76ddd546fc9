"""Every schedule of a small world: all orders in which the messages of a secure sum can be sent, lost, repeated and
delayed, with the real state machines and a server that may lie about survivors.

A state is the server's machine, all clients' machines, and every message that was ever sent. From it one may deliver
any of those messages to whom it is for, at any time and as often as one likes (a message that is never delivered is
lost, one that is delivered again is a duplicate, one that overtakes another is reordered), or have the server end its
stage. A lying server may besides send any list of survivors to any client, and any selection of the agreements it has.

What is looked at in each state is what the server could compute, from the bytes that clients have sent: which secrets
the told shares open, by interpolation and comparison with what was announced, and of which sets of clients the sum
follows.

Machines are deterministic: what one makes of a message is worked out once, on a copy, and looked up from then on. All
machines that have stopped are one state.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from itertools import combinations
from typing import Any

import numpy as np

from fedsub.errors import FedsubError, WireError
from fedsub.secure import shamir, wire
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
    if machine.stopped:
        return b"stopped"
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


class Numbers:
    """Things by number, the same for equal ones."""

    def __init__(self) -> None:
        self.things: list[Any] = []
        self.known: dict[Any, int] = {}

    def of(self, thing: Any, key: Any) -> int:
        if key not in self.known:
            self.known[key] = len(self.things)
            self.things.append(thing)
        return self.known[key]

    def __getitem__(self, number: int) -> Any:
        return self.things[number]


@dataclass(frozen=True, order=True)
class Told:
    """A share that a client told the server."""

    holder: int
    owner: int
    kind: str  # "own" or "lock"
    point: int
    share: bytes


@dataclass(frozen=True)
class Message:
    up: bool
    client: int
    stage: int
    data: bytes
    told: frozenset[Told] = frozenset()  # of an answer for unmasking
    peers: frozenset[int] = frozenset()  # of masked values: with whom they were masked


State = tuple[int, tuple[int, ...], int]  # the server's machine, the clients', the messages that were sent (bits)
ANY = tuple(range(1, 10))


@dataclass
class World:
    """``count`` clients, each with some of three rows that are summed; ``spare`` of them may be missing at the end."""

    count: int
    spare: int = 1
    threshold: int = 2  # contributors that a row must have
    lies: bool = True
    client: type[SecureClient] = SecureClient
    server: type[SecureServer] = SecureServer
    setting: Setting = field(init=False)

    def __post_init__(self) -> None:
        # One row is held by all, the others by threshold + spare: the fewest that are let through.
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
        self.machines, self.messages = Numbers(), Numbers()
        self.receives, self.lied, self.found = cache(self._receives), cache(self._lied), cache(self._found)
        self.takes, self.advances = cache(self._takes), cache(self._advances)

    def machine(self, made: Any) -> int:
        return self.machines.of(made, (type(made), getattr(made, "me", -1), fingerprint(made)))

    def message(self, made: Message) -> int:
        return self.messages.of(made, (made.up, made.client, made.data))

    def start(self) -> State:
        clients = [self.client(self.setting, c, {"v": self.values[c]}, ciphers=Stub(c)) for c in range(self.count)]
        sent = 0
        for c, one in enumerate(clients):
            sent |= 1 << self.message(Message(True, c, wire.KEYS, one.hello()))
        server = self.server(self.setting, ciphers=Stub(99))
        return self.machine(server), tuple(self.machine(c) for c in clients), sent

    def steps(self, state: State) -> Iterator[State]:
        """All states that follow."""
        server, clients, sent = state
        after, made = self.advances(server)
        yield after, clients, sent | made
        sent_ = list(bits(sent))
        for number in sent_:
            message: Message = self.messages[number]
            if message.up:
                yield self.takes(server, number), clients, sent
            else:
                yield self.given(state, message.client, number)
        if self.lies:
            vouched = tuple(n for n in sent_ if self.messages[n].stage == wire.AGREE)
            for c in range(self.count):
                for number in self.lied(server, clients[c], vouched):
                    yield self.given(state, c, number)

    def given(self, state: State, c: int, number: int) -> State:
        server, clients, sent = state
        after, answer = self.receives(clients[c], number)
        return server, (*clients[:c], after, *clients[c + 1 :]), sent | answer

    def _advances(self, number: int) -> tuple[int, int]:
        server = clone(self.machines[number])
        if server.stopped or not server.stage:
            return number, 0
        try:
            down = server.advance()
        except FedsubError:
            down = {}
        made = 0
        for c, data in down.items():
            made |= 1 << self.message(Message(False, c, wire.read(data, ANY).stage, data))
        return self.machine(server), made

    def _takes(self, number: int, message: int) -> int:
        server = clone(self.machines[number])
        try:
            server.receive(self.messages[message].data)
        except FedsubError:
            return number
        return self.machine(server)

    def _receives(self, number: int, message: int) -> tuple[int, int]:
        client = clone(self.machines[number])
        held = dict(client.held)
        try:
            data = client.receive(self.messages[message].data)
        except FedsubError:
            return self.machine(client), 0
        stage = wire.read(data, ANY).stage
        told = self.shares(client, held, data) if stage == wire.UNMASK and held else frozenset()
        peers = [v for v in client.near.tolist() if client.listed[-1][v]] if stage == wire.MASKED else []
        sent = Message(True, client.me, stage, data, told, frozenset(peers))
        return self.machine(client), 1 << self.message(sent)

    def shares(self, client: SecureClient, held: dict[int, bytes], answer: bytes) -> frozenset[Told]:
        """Which shares an answer tells, found by their bytes and not by what the client thinks that it told."""
        body = bytes(wire.read(answer, (wire.UNMASK,)).body)
        rows = {body[i : i + shamir.SHARE] for i in range(0, len(body), shamir.SHARE)}
        holders = sorted([*client.near.tolist(), client.me])  # of few clients all hold shares of all
        point = 1 + holders.index(client.me)
        return frozenset(
            Told(client.me, owner, kind, point, share)
            for owner, both in held.items()
            for kind, share in (("own", both[: shamir.SHARE]), ("lock", both[shamir.SHARE :]))
            if share in rows
        )

    def _lied(self, server: int, number: int, vouched: tuple[int, ...]) -> list[int]:
        """What a lying server may send to a client: any survivors, any of the agreements that it has."""
        client, views, s, out = self.machines[number], self.machines[server].views, self.setting, []
        if client.stopped or len(views) < 3:
            return out
        me = client.me
        if client.waits == wire.SURVIVORS:
            for mask in range(2**self.count):
                who = np.array([mask >> i & 1 for i in range(self.count)], bool)
                data = wire.write(
                    wire.SURVIVORS, s.run, s.round, me, one_more(views[2], who), np.packbits(who).tobytes()
                )
                out.append(self.message(Message(False, me, wire.SURVIVORS, data)))
        elif client.waits == wire.AGREED:
            others = [n for n in vouched if self.messages[n].client != me]
            for size in range(len(others) + 1):
                for chosen in combinations(others, size):
                    tags = {self.messages[n].client: self.tag(n, me) for n in chosen}
                    agreed = np.zeros(self.count, bool)
                    agreed[[me, *tags]] = True
                    body = [np.packbits(agreed).tobytes(), *[tags[c] for c in sorted(tags)]]
                    data = wire.write(wire.AGREED, s.run, s.round, me, client.view, *body)
                    out.append(self.message(Message(False, me, wire.AGREED, data)))
        return out

    def tag(self, number: int, receiver: int) -> bytes:
        """The tag for one client in another's agreement; zeros if it has none for it."""
        note = wire.read(self.messages[number].data, (wire.AGREE,))
        for machine in self.machines.things:
            if isinstance(machine, SecureClient) and machine.me == note.client and machine.view == note.view:
                told = [c for c in machine.near.tolist() if machine.listed[-1][c]] if machine.listed else []
                at = told.index(receiver) if receiver in told else -1
                return bytes(note.body)[16 * at : 16 * at + 16] if at >= 0 else bytes(16)
        raise AssertionError("nobody vouched for this")

    def wrong(self, state: State) -> str:
        """What must never be, or nothing."""
        server, _, sent = state
        # Every client masks once, and answers for unmasking once: only those messages matter here.
        matters = tuple(n for n in bits(sent) if self.messages[n].stage in (wire.MASKED, wire.UNMASK))
        return self.bad_sum(self.machines[server]) or self.found(matters)

    def bad_sum(self, server: SecureServer) -> str:
        if server.summed is not None:
            who = server.summed.clients
            if (server.summed.sums["v"] != sum(self.values[c] for c in who)).any() or len(set(who)) < len(who):
                return f"the sum over {who} is wrong"
            if self.too_few(set(who)):
                return f"a row is revealed with {self.too_few(set(who))} contributors"
        return ""

    def _found(self, numbers: tuple[int, ...]) -> str:
        """What is wrong with what clients have sent: what anybody who has it all can make of it."""
        told: set[Told] = set().union(*[self.messages[n].told for n in numbers])
        kinds: dict[tuple[int, int], set[str]] = {}
        for one in told:
            kinds.setdefault((one.holder, one.owner), set()).add(one.kind)
        if both := [pair for pair, found in kinds.items() if len(found) > 1]:
            return f"both shares were told by and of {both}"
        own, lock = ({c for c in range(self.count) if self.opens(told, c, kind)} for kind in ("own", "lock"))
        if own & lock:
            return f"both secrets of {own & lock} are open"
        answered = {one.holder for one in told}
        if (own | lock) and len(answered) < self.setting.threshold:
            return f"{len(answered)} answers opened secrets of {own | lock}"
        masked = {
            self.messages[n].client: self.messages[n].peers for n in numbers if self.messages[n].stage == wire.MASKED
        }
        able = sorted(c for c in own if c in masked)
        for size in range(1, len(able) + 1):
            for chosen in combinations(able, size):
                group = set(chosen)
                # Its sum follows when every mask that does not cancel within the group is open.
                if not all(c in lock or v in lock for c in group for v in masked[c] - group):
                    continue
                if len(group) < self.setting.least:
                    return f"the sum over {group} follows, {self.setting.least} are the least"
                if self.too_few(group):
                    return f"a row of {self.too_few(group)} contributors follows"
        return ""

    def too_few(self, who: set[int]) -> int:
        """The contributors of a row that has fewer than it must, or 0."""
        counts = [len(held & who) for held in self.holds]
        return next((n for n in counts if n < self.threshold), 0)

    def opens(self, told: set[Told], owner: int, kind: str) -> bool:
        """Do some of the shares that were told give the secret?"""
        found = sorted(one for one in told if (one.owner, one.kind) == (owner, kind))
        drawn = Stub(owner).random(64)
        secret = drawn[:32] if kind == "own" else drawn[32:]
        for size in range(1, len(found) + 1):
            for some in combinations(found, size):
                points = np.array([[one.point for one in some]])
                rows = np.frombuffer(b"".join(one.share for one in some), np.uint8).reshape(1, size, -1)
                try:
                    if shamir.combine(points, shamir.read(rows)) == [secret]:
                        return True
                except FedsubError:
                    continue
        return False

    def search(self, most: int = 10**7) -> tuple[int, str, int]:
        """(states, what is wrong in one of them or nothing, in how many a sum came out)."""
        first = self.start()
        seen, waiting, sums = {first}, [first], 0
        while waiting:
            state = waiting.pop()
            if bad := self.wrong(state):
                return len(seen), bad, sums
            sums += self.machines[state[0]].summed is not None
            for after in self.steps(state):
                if after not in seen:
                    seen.add(after)
                    waiting.append(after)
            if len(seen) > most:
                raise AssertionError(f"more than {most} states")
        return len(seen), "", sums


def bits(number: int) -> Iterator[int]:
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low
