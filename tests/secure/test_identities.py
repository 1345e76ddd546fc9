"""Registered identities: whatever a lying server makes up, honest clients notice and tell nothing."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from runs import Run, Silent

from fedsub.errors import DataError, MethodError, SecureSumError, WireError
from fedsub.secure import (
    Identity,
    Registry,
    SecureClient,
    SecureServer,
    Segment,
    Setting,
    keys,
    new_identity,
    register,
    run_protocol,
    sum_bytes,
    wire,
)
from fedsub.secure.ciphers import KEY, SIGNATURE, TAG, Modern
from fedsub.secure.setting import one_more

SPARSE: dict[str, Any] = {"degree": 4, "threshold": 3}


class Believes(SecureServer):
    """Passes on whatever came, signed or not: a server that lies would."""

    def _signature(self, at, cursor, text):
        signature = bytes(cursor.take(SIGNATURE))
        cursor.end()
        return signature


class Signed:
    """Clients with identities and a server of a kind, taken stage by stage."""

    def __init__(self, count: int = 5, kind: type[SecureServer] = Believes, **plan: Any):
        self.run = Run.of(count, **plan)
        self.setting = self.run.setting
        self.identities = register(self.setting.participants)
        self.begin(kind)

    def begin(self, kind: type[SecureServer] = Believes) -> None:
        """All over again, with fresh keys under the same setting, as after a restart of everybody."""
        self.known = next(iter(self.identities.values())).known
        self.clients = {
            c: SecureClient(self.setting, c, self.run.values[c], identity=self.identities[c])
            for c in self.setting.participants
        }
        self.server = kind(self.setting, known=self.known)
        self.up = {c: one.hello() for c, one in self.clients.items()}
        self.down: dict[int, bytes] = {}

    @property
    def first(self) -> int:
        return self.setting.participants[0]

    def next(self) -> dict[int, bytes]:
        """One stage: what was sent up arrives, and what goes down is not yet delivered."""
        if self.down:
            self.up = {c: self.clients[c].receive(data) for c, data in self.down.items()}
        for data in self.up.values():
            self.server.receive(data)
        self.down = self.server.advance()
        return self.down

    def to(self, stage: int) -> Signed:
        while not self.down or wire.read(next(iter(self.down.values())), tuple(range(1, 10))).stage < stage:
            self.next()
        return self

    def survivors(self, client: int, *places: int) -> bytes:
        who = np.zeros(len(self.setting.participants), bool)
        who[list(places)] = True
        view = one_more(self.server.views[2], who)
        s = self.setting
        return wire.write(wire.SURVIVORS, s.run, s.round, client, view, np.packbits(who).tobytes())


def changed(data: bytes, body: bytes, stage: int) -> bytes:
    note = wire.read(data, (stage,))
    return wire.write(note.stage, note.run, note.round, note.client, note.view, body)


@pytest.mark.parametrize("plan", [{}, SPARSE, {"least": 5}])
def test_the_sum_is_the_plain_one_and_its_bytes_are_the_counted_ones(plan):
    """With two of nine gone after they shared their secrets; every message is as long as `sum_bytes` says."""
    run = Run.of(9, **plan)
    known = register(run.setting.participants)
    clients = {c: SecureClient(run.setting, c, run.values[c], identity=known[c]) for c in run.setting.participants}
    gone = run.setting.participants[3:5]
    sent = {True: dict.fromkeys(clients, 0), False: dict.fromkeys(clients, len(run.setting.write()))}

    class Counting(Silent):
        def carry(self, messages):
            kept = super().carry(messages)
            for client, data in kept:
                sent[wire.HEAD.unpack_from(data)[2] % 2 == 1][client] += len(data)
            return kept

    server = SecureServer(run.setting, known=next(iter(known.values())).known)
    summed = run_protocol(clients, server, Counting(dict.fromkeys(gone, int(wire.MASKED))))
    run.assert_exact(summed)
    assert len(summed.clients) == 7
    masked = np.array([c not in gone for c in run.setting.participants])
    down, up = sum_bytes(run.setting, masked, signed=True)
    assert [sent[True][c] for c in run.setting.participants] == up.tolist()
    assert [sent[False][c] for c in run.setting.participants] == down.tolist()


def test_a_key_that_the_server_swaps_is_refused():
    """It stands in for client 2: its own key, under a signature that client 2 made of another."""
    table = Signed()
    second, data = table.setting.participants[1], table.up[table.setting.participants[1]]
    body = bytes(wire.read(data, (wire.KEYS,)).body)
    table.up[second] = changed(data, Modern().pair()[1] + body[KEY:], wire.KEYS)
    table.next()
    for c in table.setting.participants:
        said = "passed on for client" if c == second else f"key of client {second} is refused.*does not fit"
        with pytest.raises(SecureSumError, match=said):
            table.clients[c].receive(table.down[c])


def test_a_swapped_key_that_the_server_signs_itself_is_refused():
    table = Signed()
    second, (secret, public) = table.setting.participants[1], Modern().pair()
    assert secret is not None
    forged = Modern().sign(new_identity()[0], keys.keys_text(table.setting.digest, second, public))
    table.up[second] = changed(table.up[second], public + bytes(2 * KEY) + forged, wire.KEYS)
    table.next()
    with pytest.raises(SecureSumError, match="does not fit the identity"):
        table.clients[table.first].receive(table.down[table.first])


def test_a_client_that_the_server_invents_is_refused_before_anything_is_sent():
    run = Run.of(5)
    known = register(run.setting.participants)
    people = tuple(sorted((*run.setting.participants, 999_999_999)))
    more = Setting.plan(7, 3, people, run.setting.segments)
    first = people[0]
    with pytest.raises(SecureSumError, match=r"999999999.*no identity is registered.*invented"):
        SecureClient(more, first, run.values[first], identity=known[first])
    with pytest.raises(SecureSumError, match="no identity is registered"):
        SecureServer(more, known=known[first].known)


@pytest.mark.parametrize("other", ["round", "session"])
def test_a_signed_key_of_another_round_is_refused(other):
    """What client 2 signed in another round, or in another session of this one, is shown to the others."""
    table = Signed()
    setting = replace(table.setting, **{"round": 2} if other == "round" else {"session": os.urandom(16)})
    second = table.setting.participants[1]
    earlier = SecureClient(setting, second, {}, identity=table.identities[second]).hello()
    table.up[second] = changed(table.up[second], bytes(wire.read(earlier, (wire.KEYS,)).body), wire.KEYS)
    table.next()
    with pytest.raises(SecureSumError, match=f"key of client {second} is refused.*does not fit"):
        table.clients[table.first].receive(table.down[table.first])


@pytest.mark.parametrize("signed", [True, False])
def test_different_survivors_for_different_arcs_of_a_ring_open_nothing(signed):
    """On a sparse graph a server shows the halves of the ring two lists, and answers each with what it has vouched.
    Nobody meets a contradiction among its neighbours: without identities both halves tell their shares."""
    table = Signed(12, **SPARSE)
    if not signed:
        table.clients, table.server = table.run.clients(), SecureServer(table.setting)
        table.up = {c: one.hello() for c, one in table.clients.items()}
    table.to(wire.SURVIVORS)
    order, people = table.setting._ring(np.ones(12, bool)).order.tolist(), table.setting.participants
    told = 0
    for arc, gone in ((order[:6], order[8:10]), (order[6:], order[2:4])):
        listed = [at for at in range(12) if at not in gone]
        notes = {
            at: wire.read(table.clients[people[at]].receive(table.survivors(people[at], *listed)), (wire.AGREE,))
            for at in sorted(arc)
        }
        who = np.packbits(np.isin(np.arange(12), arc)).tobytes()
        for at, note in notes.items():
            parts = [who]
            for v in [v for v in table.clients[people[at]].near.tolist() if v in notes]:
                place = [w for w in table.clients[people[v]].near.tolist() if w in listed].index(at)
                parts.append(bytes(notes[v].body)[TAG * place :][:TAG])
            parts += [bytes(one.body)[-SIGNATURE:] for one in notes.values() if signed]
            data = wire.write(wire.AGREED, 7, 3, people[at], note.view, b"".join(parts))
            if signed:
                with pytest.raises(SecureSumError, match="6 clients signed the survivors, 7 are needed"):
                    table.clients[people[at]].receive(data)
            else:
                told += wire.read(table.clients[people[at]].receive(data), (wire.UNMASK,)).client == people[at]
    assert told == (0 if signed else 12)


@pytest.mark.parametrize("plan", [{}, SPARSE])
def test_a_list_with_a_forged_signature_is_refused(plan):
    table = Signed(7, **plan).to(wire.AGREED)
    body = bytearray(wire.read(table.down[table.first], (wire.AGREED,)).body)
    body[-1] ^= 1
    with pytest.raises(SecureSumError, match="not signed by client"):
        table.clients[table.first].receive(changed(table.down[table.first], bytes(body), wire.AGREED))


def test_a_signed_list_of_an_earlier_sum_is_refused_even_under_the_same_setting():
    """Everybody was started again and the server repeats the setting, session and all: the lists are the same, but
    what was signed before was signed about other keys."""
    table = Signed(9, **SPARSE).to(wire.AGREED)
    before = bytes(wire.read(table.down[table.first], (wire.AGREED,)).body)[-9 * SIGNATURE :]
    table.begin()
    table.to(wire.AGREED)
    assert [a.tolist() for a in table.server.lists] == [[True] * 9] * 5
    note = wire.read(table.down[table.first], (wire.AGREED,))
    tags = bytes(note.body)[: -9 * SIGNATURE]
    with pytest.raises(SecureSumError, match="not signed by client"):
        table.clients[table.first].receive(changed(table.down[table.first], tags + before, wire.AGREED))
    assert table.clients[table.setting.participants[1]].receive(table.down[table.setting.participants[1]])


def test_keys_are_the_same_for_everybody_or_nobody_goes_on():
    """A key of its own for one client alone, signed by a client that plays along: the views part ways."""
    table = Signed(9, **SPARSE)
    table.next()
    first, last = table.setting.participants[0], table.setting.participants[-1]
    other = SecureClient(table.setting, last, {}, identity=table.identities[last]).hello()
    s, own = table.setting, bytes(wire.read(other, (wire.KEYS,)).body)
    publics = b"".join(table.server.keys[at].public for at in range(8)) + own[:KEY]
    who = np.ones(9, bool)
    near = table.clients[first].setting.neighbours(who, 0)
    signed = [own[-SIGNATURE:] if at == 8 else table.server.keys[at].signed for at in near.tolist()]
    odd = wire.write(
        wire.ROSTER, 7, 3, first, one_more(s.digest, who, publics), np.packbits(who).tobytes(), publics, *signed
    )
    shares = table.clients[first].receive(odd)
    with pytest.raises(WireError, match="another session or list"):
        table.server.receive(shares)
    for c in s.participants[1:]:
        table.server.receive(table.clients[c].receive(table.down[c]))
    with pytest.raises(WireError, match="told others something else"):
        table.clients[first].receive(
            wire.write(wire.INBOX, 7, 3, first, one_more(table.server.view, who), np.packbits(who).tobytes())
        )


def test_a_server_leaves_out_who_signs_badly_and_goes_on():
    table = Signed(7, kind=SecureServer)
    last = table.setting.participants[-1]
    stranger = Identity(new_identity()[0], table.known)
    table.clients[last] = SecureClient(table.setting, last, table.run.values[last], identity=stranger)
    with pytest.raises(MethodError, match="does not fit the public key"):
        stranger.check(last)
    table.identities[last].check(last)
    summed = run_protocol(table.clients, SecureServer(table.setting, known=table.known))
    assert last not in summed.clients
    assert len(summed.clients) == 6
    table.run.assert_exact(summed)


def test_who_has_no_identity_does_not_get_in():
    table = Signed(5, kind=SecureServer)
    plain = SecureClient(table.setting, table.first, table.run.values[table.first])
    with pytest.raises(WireError, match="in the middle"):
        table.server.receive(plain.hello())
    honest = SecureServer(table.setting)  # and a server that knows of none gets nothing from those who have one
    with pytest.raises(WireError, match="more than it should hold"):
        honest.receive(table.up[table.first])


def test_a_sum_that_two_groups_could_open_is_refused():
    setting = Setting.plan(1, 1, range(12), (Segment("v", 3, 32, 9),), degree=4, threshold=3, least=6)
    identity = register(range(12))[0]
    with pytest.raises(SecureSumError, match=r"opened by 6.*more than half"):
        SecureClient(setting, 0, {}, identity=identity)
    SecureClient(replace(setting, least=7), 0, {}, identity=identity)


def test_identities_on_disk(tmp_path):
    mine = register([3, 70_000])[3]
    mine.save(tmp_path)
    found = Identity.find(tmp_path)
    assert found == mine
    assert found is not None
    found.check(3)
    assert (tmp_path / "identity.key").stat().st_mode & 0o077 == 0
    assert Registry.open(tmp_path / "identities.json").digest == mine.known.digest
    assert register([3, 70_000])[3].known.digest != mine.known.digest
    assert mine.secret.hex() not in repr(mine)
    assert Identity.find(tmp_path / "nothing") is None
    (tmp_path / "identity.key").write_text("00")
    with pytest.raises(DataError, match="1 bytes, not 32"):
        Identity.find(tmp_path)
    (tmp_path / "identity.key").unlink()
    with pytest.raises(DataError, match="Restore it, or register"):
        Identity.find(tmp_path)
    for text in ("[]", "{", '{"format": "x"}', '{"format": "fedsub identities 1", "clients": {"a": "00"}}'):
        (tmp_path / "identities.json").write_text(text)
        with pytest.raises(DataError, match="is no registry"):
            Registry.open(tmp_path / "identities.json")
    with pytest.raises(MethodError, match="one key"):
        Registry({1: bytes(32), 2: bytes(32)})
    with pytest.raises(MethodError, match="has 32 bytes"):
        Registry({1: bytes(31)})
