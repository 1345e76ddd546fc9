"""The server of a secure sum: a state machine that adds masked values, and learns the sum of the survivors.

It takes messages of the current stage in any order; `advance` ends the stage and says what to send to whom. When fewer
than needed have answered, or what they answered does not fit together, the sum is given up with SecureSumError and
nothing comes out. There is no way on from there but a new session with fresh keys.

It checks what it can: reconstructed secrets against what was announced of them, so that a wrong share cannot pass for
a sum. It cannot check the values themselves: a client may lie about its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from fedsub.errors import SecureSumError, WireError
from fedsub.secure import keys, shamir, wire
from fedsub.secure.ciphers import KEY, SIGNATURE, TAG, Ciphers, Modern, same
from fedsub.secure.client import SEALED
from fedsub.secure.identities import Registry
from fedsub.secure.masks import add_masks
from fedsub.secure.ring import Array, from_bytes, zeros
from fedsub.secure.setting import Setting, one_more


@dataclass(frozen=True)
class Summed:
    """The sums by segment, and whose values are in them: exactly once each."""

    sums: dict[str, Array]
    clients: tuple[int, ...]


@dataclass(frozen=True)
class _Keys:
    public: bytes
    own: bytes  # commitments
    lock: bytes
    signed: bytes


class SecureServer:
    """``known``: the registered public keys of the clients. Their signatures are looked at, so that one who signs badly
    is left out and does not end the sum for all, and passed on."""

    def __init__(self, setting: Setting, *, known: Registry | None = None, ciphers: Ciphers | None = None):
        if known is not None:
            known.check(setting)
        self.setting, self.known, self.ciphers = setting, known, ciphers or Modern()
        self.stage: int = wire.KEYS  # what it waits for; 0 when done
        self.stopped = ""
        self.summed: Summed | None = None
        self.view = setting.digest
        self.views = [setting.digest]
        self.lists = [np.ones(len(setting.participants), bool)]  # who was there, stage by stage
        self.came: dict[int, bytes] = {}  # in this stage, by place: the digest of the message
        self.near: dict[int, Array] = {}
        self.keys: dict[int, _Keys] = {}
        self.locked: dict[int, Array] = {}
        self.sealed: dict[int, Array] = {}
        self.tags: dict[int, Array] = {}
        self.signatures: dict[int, bytes] = {}
        self.shares: dict[int, Array] = {}
        self.total: dict[str, Array] = {}

    @property
    def present(self) -> Array:
        return self.lists[-1]

    @property
    def waiting(self) -> frozenset[int]:
        """The clients that have not answered in this stage."""
        if not self.stage or self.stopped:
            return frozenset()
        return frozenset(
            self.setting.participants[at] for at in self.present.nonzero()[0].tolist() if at not in self.came
        )

    def receive(self, data: bytes) -> None:
        """Take a message of this stage; the same again is no matter, another of the same client is refused."""
        if self.stopped:
            raise SecureSumError(f"This secure sum was given up: {self.stopped}")
        note, s = wire.read(data, (self.stage,) if self.stage else ()), self.setting
        if (note.run, note.round) != (s.run, s.round) or not same(note.view, self.view):
            raise WireError(
                f"A message of client {note.client} belongs to round {note.round} of run {note.run}, or to another "
                f"session or list than this one, of round {s.round} of run {s.run}; it is left out."
            )
        at = s.places.get(note.client, -1)
        if at < 0 or not self.present[at]:
            raise WireError(f"Client {note.client} does not take part any more; its message is left out.")
        digest = sha256(data).digest()
        if at in self.came:
            if same(digest, self.came[at]):
                return
            raise WireError(f"Client {note.client} answered twice, and not the same; the second is left out.")
        steps: dict[int, Callable[[int, wire.Cursor], None]] = {
            wire.KEYS: self._keys, wire.SHARES: self._shares, wire.MASKED: self._masked, wire.AGREE: self._agree,
            wire.UNMASK: self._unmask,
        }  # fmt: skip
        steps[self.stage](at, wire.Cursor(note.body))
        self.came[at] = digest

    def advance(self) -> dict[int, bytes]:
        """End the stage: what to send to whom; nothing when the sum is there."""
        if self.stopped or not self.stage:
            raise SecureSumError(f"This secure sum is over. {self.stopped}")
        try:
            return self._advance()
        except SecureSumError as err:
            self.stopped = str(err)
            self.total, self.shares = {}, {}
            raise

    def _advance(self) -> dict[int, bytes]:
        came = np.zeros(len(self.setting.participants), bool)
        came[list(self.came)] = True
        self.came = {}
        stage = self.stage
        if stage == wire.UNMASK:
            self._open(came)
            self.stage = 0
            return {}
        self._enough(came, stage)
        self.lists.append(came)
        if stage == wire.AGREE:
            self.stage = wire.UNMASK
            return self._send(wire.AGREED, came, self._agreements)
        self.view = one_more(self.view, came, self._publics(came) if stage == wire.KEYS else b"")
        self.views.append(self.view)
        if stage == wire.KEYS:
            self.near = self.setting.neighbourhoods(came)
            self.stage = wire.SHARES
            return self._send(wire.ROSTER, came, self._roster)
        if stage == wire.SHARES:
            self.total = zeros(self.setting.segments)
            self.stage = wire.MASKED
            messages = self._send(wire.INBOX, came, self._inbox)
            self.sealed = {}
            return messages
        self.stage = wire.AGREE
        return self._send(wire.SURVIVORS, came, lambda at: [])

    def _enough(self, came: Array, stage: int) -> None:
        """Up to the survivors, who enter the sum, the least number; after it those who can open."""
        needed = self.setting.threshold if stage == wire.AGREE else self.setting.least
        if (count := int(came.sum())) < needed:
            raise SecureSumError(
                f"{count} of {len(came)} clients sent {wire.NAMES[stage - 1]}, {needed} are needed; nothing was "
                "opened. Play the round again."
            )

    def _send(self, stage: int, to: Array, body: Callable[[int], list[bytes]]) -> dict[int, bytes]:
        s, bits = self.setting, np.packbits(to).tobytes()
        return {
            s.participants[at]: wire.write(stage, s.run, s.round, s.participants[at], self.view, bits, *body(at))
            for at in to.nonzero()[0].tolist()
        }

    def _keys(self, at: int, cursor: wire.Cursor) -> None:
        public, own, lock = (bytes(cursor.take(KEY)) for _ in range(3))
        signed = self._signature(at, cursor, lambda client: keys.keys_text(self.view, client, public))
        self.keys[at] = _Keys(public, own, lock, signed)

    def _signature(self, at: int, cursor: wire.Cursor, text: Callable[[int], bytes]) -> bytes:
        """The end of a message: nothing, or with identities the client's signature of the text."""
        signature = bytes(cursor.take(0 if self.known is None else SIGNATURE))
        cursor.end()
        if self.known is not None:
            client = self.setting.participants[at]
            self.ciphers.verify(self.known[client], signature, text(client))
        return signature

    def _publics(self, present: Array) -> bytes:
        """Everybody's key, where clients sign that they know it."""
        if self.known is None:
            return b""
        return b"".join(self.keys[at].public for at in present.nonzero()[0].tolist())

    def _roster(self, at: int) -> list[bytes]:
        near = [self.keys[v] for v in self.near[at].tolist()]
        if self.known is None:
            return [one.public for one in near]
        return [self._publics(self.present), *(one.signed for one in near)]

    def _shares(self, at: int, cursor: wire.Cursor) -> None:
        rows = cursor.matrix(len(self.near[at]), KEY + SEALED)
        cursor.end()
        self.locked[at], self.sealed[at] = rows[:, :KEY].copy(), rows[:, KEY:].copy()

    def _inbox(self, at: int) -> list[bytes]:
        there = self.near[at][self.present[self.near[at]]].tolist()
        return [self.sealed[v][int(np.searchsorted(self.near[v], at))].tobytes() for v in there]

    def _masked(self, at: int, cursor: wire.Cursor) -> None:
        values = from_bytes(self.setting.segments, cursor.take(self.setting.nbytes))
        cursor.end()
        for name, value in values.items():
            self.total[name] += value

    def _agree(self, at: int, cursor: wire.Cursor) -> None:
        near = self.near[at][self.present[self.near[at]]]
        tags = cursor.matrix(len(near), TAG).copy()
        signature = self._signature(at, cursor, lambda client: keys.agree_text(self.view, client))
        self.tags[at], self.signatures[at] = tags, signature

    def _agreements(self, at: int) -> list[bytes]:
        agreed, survivors = self.lists[-1], self.lists[-2]
        out = []
        for v in self.near[at][agreed[self.near[at]]].tolist():
            told = self.near[v][survivors[self.near[v]]]  # to whom v vouched, in order
            out.append(self.tags[v][int(np.searchsorted(told, at))].tobytes())
        return out + [self.signatures[v] for v in agreed.nonzero()[0].tolist() if self.known is not None]

    def _holdings(self, at: int, shared: Array) -> Array:
        """Whose shares a client holds, in the order of its answer."""
        return np.sort(np.append(self.near[at][shared[self.near[at]]], at))

    def _unmask(self, at: int, cursor: wire.Cursor) -> None:
        rows = cursor.matrix(len(self._holdings(at, self.lists[2])), shamir.SHARE).copy()
        cursor.end()
        self.shares[at] = rows

    def _open(self, answered: Array) -> None:
        """Reconstruct b of the survivors and the locks of those who dropped out, and take the masks off."""
        s, shared, survivors = self.setting, self.lists[2], self.lists[3]
        alive = survivors.nonzero()[0].tolist()
        gone = [
            at for at in (shared & ~survivors).nonzero()[0].tolist() if survivors[self.near[at]].any()
        ]  # of others nobody used a mask
        secrets = self._reconstruct(alive + gone, answered)
        removed = list(self._removed(alive, gone, secrets))
        add_masks(self.total, s.segments, removed, self.ciphers)
        self.summed = Summed(self.total, tuple(s.participants[at] for at in alive))
        self.shares = {}

    def _reconstruct(self, owners: list[int], answered: Array) -> dict[int, bytes]:
        """b of survivors, locks of the others, from t shares each, checked against what was announced."""
        s, shared, survivors = self.setting, self.lists[2], self.lists[3]
        points, places = [], []
        for owner in owners:
            holders = np.sort(np.append(self.near[owner], owner))
            useful = (answered[holders]).nonzero()[0][: s.threshold]
            if len(useful) < s.threshold:
                raise SecureSumError(
                    f"{len(useful)} of those who hold shares of client {s.participants[owner]} answered, "
                    f"{s.threshold} are needed; nothing was opened. Play the round again."
                )
            points.append(useful + 1)
            places.append(holders[useful])
        rows = np.empty((len(owners), s.threshold, shamir.SHARE), np.uint8)
        held = {at: self._holdings(at, shared) for at in answered.nonzero()[0].tolist()}
        for i, owner in enumerate(owners):
            for j, holder in enumerate(places[i].tolist()):
                rows[i, j] = self.shares[holder][np.searchsorted(held[holder], owner)]
        found = dict(zip(owners, shamir.combine(np.array(points), shamir.read(rows)), strict=True))
        for at, secret in found.items():
            own, lock = keys.commitments(secret, secret, s.participants[at], s.digest, self.ciphers)
            announced = self.keys[at]
            if not (same(own, announced.own) if survivors[at] else same(lock, announced.lock)):
                raise SecureSumError(
                    f"The shares of client {s.participants[at]} open to something else than it announced: somebody "
                    "gave wrong ones. Nothing was opened."
                )
        return found

    def _removed(self, alive: list[int], gone: list[int], secrets: dict[int, bytes]) -> Iterator[tuple[bytes, bool]]:
        """The masks that are still in the total, with the sign that takes them off."""
        s, view, survivors = self.setting, self.views[1], self.lists[3]
        for at in alive:
            yield keys.own_mask(secrets[at], s.participants[at], view, self.ciphers), False
        for at in gone:
            opened = keys.locked(secrets[at], s.participants[at], self.locked[at], view, self.ciphers)
            for peer, mask in zip(self.near[at].tolist(), opened, strict=True):
                if survivors[peer]:
                    yield mask.tobytes(), peer > at  # the peer added it if it comes first
