"""A client of a secure sum: a state machine that knows its own values and what it was sent, and nothing else.

    hello → ;  roster → shares ;  inbox → masked values ;  survivors → agreement ;  agreements → shares for unmasking

Whatever the server claims:

- it masks only with whom it holds authenticated shares of, and only if enough others hold its own to open the sum;
- it accepts one list of survivors in its life, with itself on it and at least ``least`` names, and vouches for it to
  every neighbour. It answers for unmasking only after enough neighbours vouched for the same list;
- of every peer it then gives one share: of b if the peer survived, of the lock if not. It never gives the other.

A message that is damaged, foreign or replayed is refused with WireError and changes nothing; one that is whole and
wrong (a key that fixes the secret, shares that do not open, too few clients, lists that differ) makes the client leave
for good with SecureSumError. Its secrets are drawn fresh, live in this object only, and are gone with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256

import numpy as np

from fedsub.errors import DataError, MethodError, SecureSumError, WireError
from fedsub.secure import keys, shamir, wire
from fedsub.secure.ciphers import KEY, SIGNATURE, TAG, Ciphers, Modern, same
from fedsub.secure.identities import Identity
from fedsub.secure.masks import add_masks
from fedsub.secure.ring import Array, to_bytes
from fedsub.secure.setting import Setting, one_more

SEALED = 2 * shamir.SHARE + TAG
Values = Mapping[str, Array] | Callable[[], Mapping[str, Array]]


class SecureClient:
    """With an ``identity`` keys and lists are signed, and a server cannot invent clients, stand in for them or split
    them; all or none of a sum's clients have one."""

    def __init__(
        self, setting: Setting, me: int, values: Values, *, identity: Identity | None = None,
        ciphers: Ciphers | None = None,
    ):  # fmt: skip
        if me not in setting.places:
            raise MethodError(f"Client {me} is not among the {len(setting.participants)} of this secure sum.")
        if identity is not None:
            identity.known.check(setting)
        self.setting, self.me, self.place, self.values = setting, me, setting.places[me], values
        self.identity, self.ciphers = identity, ciphers or Modern()
        self.waits: int = wire.ROSTER  # the stage it can answer; 0 when done
        self.stopped = ""  # why it left
        self.view = setting.digest
        self.near = np.zeros(0, np.int64)  # neighbours, as places
        self.pairs: dict[int, keys.PairKeys] = {}  # by place
        self.held: dict[int, bytes] = {}  # by place: shares of b and of the lock
        self.listed: list[Array] = []  # who was there, stage by stage
        self._secret, self._public = self.ciphers.pair()
        drawn = self.ciphers.random(2 * KEY)
        self._own, self._lock = drawn[:KEY], drawn[KEY:]
        self._last: tuple[bytes, bytes] = b"", b""  # digest of the last message down, and its answer

    def hello(self) -> bytes:
        """The first message: a key, and what the two secrets can be checked against."""
        own, lock = keys.commitments(self._own, self._lock, self.me, self.setting.digest, self.ciphers)
        signed = b""
        if self.identity is not None:
            text = keys.keys_text(self.setting.digest, self.me, self._public)
            signed = self.ciphers.sign(self.identity.secret, text)
        return self._write(wire.KEYS, self._public, own, lock, signed, view=self.setting.digest)

    def receive(self, data: bytes) -> bytes:
        """The answer to a message from the server; to the same message again the same answer."""
        if self.stopped:
            raise SecureSumError(f"Client {self.me} has left this secure sum: {self.stopped}")
        digest = sha256(data).digest()
        if same(digest, self._last[0]):
            return self._last[1]
        note = wire.read(data, (self.waits,) if self.waits else ())
        s = self.setting
        if (note.run, note.round, note.client) != (s.run, s.round, self.me):
            raise WireError(
                f"A message for client {note.client} in round {note.round} of run {note.run} reached client {self.me} "
                f"in round {s.round} of run {s.run}; it is left out."
            )
        steps = {
            wire.ROSTER: self._share, wire.INBOX: self._mask, wire.SURVIVORS: self._vouch, wire.AGREED: self._unmask
        }  # fmt: skip
        try:
            answer = steps[self.waits](note)
        except (SecureSumError, DataError) as err:
            self.stopped = str(err)
            self._forget()
            raise
        self.waits = {wire.ROSTER: wire.INBOX, wire.INBOX: wire.SURVIVORS, wire.SURVIVORS: wire.AGREED}.get(
            self.waits, 0
        )  # fmt: skip
        self._last = digest, answer
        return answer

    def _write(self, stage: int, *parts: bytes | memoryview, view: bytes | None = None) -> bytes:
        return wire.write(stage, self.setting.run, self.setting.round, self.me, view or self.view, *parts)

    def _forget(self) -> None:
        self._secret = self._own = self._lock = b""
        self.pairs, self.held = {}, {}

    def _list(self, note: wire.Note, cursor: wire.Cursor, publics: bool = False) -> tuple[Array, bytes, Array]:
        """(who is there, the view with it, and where they are told the keys of all); WireError unless sender and
        client know the same."""
        present = cursor.clients(len(self.setting.participants))
        told = cursor.matrix(int(present.sum()) if publics else 0, KEY)
        view = one_more(self.view, present, told.tobytes())
        if not same(view, note.view):
            raise WireError(
                f"A message belongs to another session than client {self.me}'s, or was sent by a server that told "
                "others something else; it is left out."
            )
        return present, view, told

    def _check(self, present: Array, what: str) -> None:
        """Refuse a list that makes the sum too small, adds people, or forgets who reads it."""
        count = int(present.sum())
        if not present[self.place]:
            raise SecureSumError(f"Client {self.me} is not on the list of {what}, and answers nobody.")
        if self.listed and (present & ~self.listed[-1]).any():
            raise SecureSumError(f"The list of {what} names clients that were gone; client {self.me} leaves.")
        if count < self.setting.least:
            raise SecureSumError(
                f"The list of {what} has {count} clients, client {self.me} opens no sum of fewer than "
                f"{self.setting.least}."
            )
        if self.listed and int(present[self.near].sum()) + 1 < self.setting.threshold:
            raise SecureSumError(
                f"Of those who hold shares of client {self.me} too few are among the {what}: the sum of "
                f"{self.setting.threshold} of them is needed to open it; client {self.me} leaves."
            )

    def _share(self, note: wire.Note) -> bytes:
        """Roster → agree on keys with every neighbour, share out b and the lock, sealed."""
        s, cursor = self.setting, wire.Cursor(note.body)
        present, view, everybody = self._list(note, cursor, publics=self.identity is not None)
        near = s.neighbours(present, self.place) if present[self.place] else self.near
        publics = cursor.rows(len(near), KEY) if self.identity is None else self._publics(present, near, everybody)
        signed = cursor.rows(len(near), SIGNATURE if self.identity is not None else 0)
        cursor.end()
        self._check(present, "keys")
        if len(near) + 1 < s.threshold:
            raise SecureSumError(f"{len(near) + 1} clients are too few to hold shares, {s.threshold} open them.")
        if len({*publics, self._public}) <= len(publics):
            raise SecureSumError("Two clients have the same key; somebody answers for several.")
        pairs: dict[int, keys.PairKeys] = {}
        for at, public, signature in zip(near.tolist(), publics, signed, strict=True):
            peer = s.participants[at]
            try:
                if self.identity is not None:
                    text = keys.keys_text(s.digest, peer, public)
                    self.ciphers.verify(self.identity.known[peer], signature, text)
                pairs[at] = keys.pair_keys(self._secret, self.me, self._public, peer, public, view, self.ciphers)
            except WireError as err:
                raise SecureSumError(f"The key of client {peer} is refused by client {self.me}: {err}") from err
        holders = np.sort(np.append(near, self.place))
        shares = shamir.write(shamir.share([self._own, self._lock], len(holders), s.threshold, self.ciphers))
        mine = dict(zip(holders.tolist(), wire.cut(shares.tobytes(), 2 * shamir.SHARE), strict=True))
        masks = np.frombuffer(b"".join(pairs[at].mask for at in near.tolist()), np.uint8).reshape(len(near), KEY)
        hidden = keys.locked(self._lock, self.me, masks, view, self.ciphers)
        parts: list[bytes] = []
        for at, lock in zip(near.tolist(), wire.cut(hidden.tobytes(), KEY), strict=True):
            text = keys.shares_text(view, self.me, s.participants[at])
            parts += [lock, self.ciphers.seal(pairs[at].seal, mine[at], text)]
        self.held = {self.place: mine[self.place]}
        self.view, self.near, self.pairs, self.listed = view, near, pairs, [present]
        return self._write(wire.SHARES, b"".join(parts))

    def _publics(self, present: Array, near: Array, told: Array) -> list[bytes]:
        """The neighbours' keys out of everybody's, among which must be this client's own: what is signed from here on
        was signed after it had drawn its key."""
        row = np.cumsum(present) - 1
        if present[self.place] and not same(told[row[self.place]].tobytes(), self._public):
            raise SecureSumError(f"Another key than its own is passed on for client {self.me}; it leaves.")
        return [told[at].tobytes() for at in row[near].tolist()]

    def _mask(self, note: wire.Note) -> bytes:
        """Inbox → open the peers' shares, mask the values."""
        s, cursor = self.setting, wire.Cursor(note.body)
        present, view, _ = self._list(note, cursor)
        near = self.near[present[self.near]]
        sealed = cursor.rows(len(near), SEALED)
        cursor.end()
        self._check(present, "shares")
        for at, row in zip(near.tolist(), sealed, strict=True):
            peer = s.participants[at]
            text = keys.shares_text(self.view, peer, self.me)
            try:
                self.held[at] = self.ciphers.open(self.pairs[at].open, row, text)
            except WireError as err:
                raise SecureSumError(f"Client {self.me} leaves; the shares of client {peer}: {err}") from err
        given = self.values() if callable(self.values) else self.values
        if given.keys() != {segment.name for segment in s.segments}:
            raise DataError(f"The sum is over {[g.name for g in s.segments]}, client {self.me} gave {list(given)}.")
        masked = {segment.name: segment.accept(given[segment.name]) for segment in s.segments}
        own = keys.own_mask(self._own, self.me, self.view, self.ciphers)
        signs = [(self.pairs[at].mask, self.place < at) for at in near.tolist()]
        add_masks(masked, s.segments, [(own, True), *signs], self.ciphers)
        self.view = view
        self.listed.append(present)
        self.values = {}
        return self._write(wire.MASKED, *to_bytes(s.segments, masked))

    def _vouch(self, note: wire.Note) -> bytes:
        """Survivors → hold on to this list, and tell every neighbour on it which one it is."""
        cursor = wire.Cursor(note.body)
        present, view, _ = self._list(note, cursor)
        cursor.end()
        self._check(present, "survivors")
        near = self.near[present[self.near]]
        text = keys.agree_text(view, self.me)
        parts = [self.ciphers.tag(self.pairs[at].tag, text) for at in near.tolist()]
        if self.identity is not None:
            parts.append(self.ciphers.sign(self.identity.secret, text))
        self.view = view
        self.listed.append(present)
        return self._write(wire.AGREE, b"".join(parts))

    def _unmask(self, note: wire.Note) -> bytes:
        """Agreements → one share of every peer, once enough vouched for the list of survivors."""
        s, cursor = self.setting, wire.Cursor(note.body)
        if not same(note.view, self.view):
            raise WireError(f"Agreements are of another list than client {self.me}'s; they are left out.")
        agreed = cursor.clients(len(s.participants))
        near = self.near[agreed[self.near]]
        tags = cursor.rows(len(near), TAG)
        signed = cursor.rows(int(agreed.sum()), SIGNATURE if self.identity is not None else 0)
        cursor.end()
        survivors, shared = self.listed[-1], self.listed[-2]
        if (agreed & ~survivors).any() or len(near) + 1 < s.threshold:
            raise SecureSumError(
                f"{len(near) + 1} of those who hold shares with client {self.me} vouch for the list of survivors, "
                f"{s.threshold} are needed; nothing is told."
            )
        for at, row in zip(near.tolist(), tags, strict=True):
            expected = self.ciphers.tag(self.pairs[at].tag, keys.agree_text(self.view, s.participants[at]))
            if not same(expected, row):
                raise SecureSumError(
                    f"Client {s.participants[at]} vouches for another list of survivors; nothing is told."
                )
        if self.identity is not None:
            self._signed(self.identity.known, agreed, signed)
        asked = np.sort(np.append(self.near[shared[self.near]], self.place)).tolist()
        size = shamir.SHARE
        answer = [self.held[at][:size] if survivors[at] else self.held[at][size:] for at in asked]
        self._forget()
        return self._write(wire.UNMASK, b"".join(answer))

    def _signed(self, known: Mapping[int, bytes], agreed: Array, signatures: list[bytes]) -> None:
        """With identities: at least ``least`` clients of the whole round signed the same list."""
        if int(agreed.sum()) < self.setting.least:
            raise SecureSumError(f"{int(agreed.sum())} clients signed the survivors, {self.setting.least} are needed.")
        for at, row in zip(agreed.nonzero()[0].tolist(), signatures, strict=True):
            peer = self.setting.participants[at]
            try:
                self.ciphers.verify(known[peer], row, keys.agree_text(self.view, peer))
            except WireError as err:
                raise SecureSumError(f"The list of survivors is not signed by client {peer}; nothing is told.") from err
