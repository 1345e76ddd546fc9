"""What clients and server refuse, and what a client never does whatever the server claims."""

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from runs import Run

from fedsub.errors import MethodError, MissingExtra, SecureSumError, WireError
from fedsub.secure import RowRule, SecureClient, SecureServer, Segment, Setting, shamir, wire
from fedsub.secure.ciphers import Modern
from fedsub.secure.setting import one_more


class Table:
    """Clients and a server, taken stage by stage."""

    def __init__(self, count: int = 5, **plan):
        self.run = Run.of(count, **plan)
        self.clients, self.server = self.run.clients(), SecureServer(self.run.setting)
        self.up = {c: one.hello() for c, one in self.clients.items()}
        self.down: dict[int, bytes] = {}

    def to(self, stage: int) -> "Table":
        """Until the server has sent ``stage``."""
        while not self.down or wire.read(next(iter(self.down.values())), tuple(range(1, 10))).stage < stage:
            if self.down:
                self.up = {c: self.clients[c].receive(data) for c, data in self.down.items()}
            for data in self.up.values():
                self.server.receive(data)
            self.down = self.server.advance()
        return self

    @property
    def first(self) -> int:
        return self.run.setting.participants[0]

    def survivors(self, client: int, *places: int) -> bytes:
        s = self.run.setting
        who = np.zeros(len(s.participants), bool)
        who[list(places)] = True
        view = one_more(self.server.views[2], who)
        return wire.write(wire.SURVIVORS, s.run, s.round, client, view, np.packbits(who).tobytes())


@pytest.mark.parametrize("stage", [wire.ROSTER, wire.INBOX, wire.SURVIVORS, wire.AGREED])
def test_damage_is_refused_and_changes_nothing(stage):
    table = Table().to(stage)
    client, data = table.clients[table.first], table.down[table.first]
    rng = np.random.default_rng(stage)
    for cut in range(0, len(data), max(1, len(data) // 60)):
        with pytest.raises(WireError):
            client.receive(data[:cut])
    for _ in range(100):
        damaged = bytearray(data)
        damaged[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        with pytest.raises(WireError):
            client.receive(bytes(damaged))
    with pytest.raises(WireError):
        client.receive(data + b"\0")
    answer = client.receive(data)
    assert client.receive(data) == answer  # a duplicate gets the same answer


@pytest.mark.parametrize("stage", [wire.KEYS, wire.SHARES, wire.MASKED, wire.AGREE, wire.UNMASK])
def test_the_server_refuses_damage_and_second_answers(stage):
    table = Table()
    if stage > wire.KEYS:
        table.to(stage - 1)
        table.up = {c: table.clients[c].receive(data) for c, data in table.down.items()}
    data = table.up[table.first]
    rng = np.random.default_rng(stage)
    for _ in range(100):
        damaged = bytearray(data)
        damaged[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        with pytest.raises(WireError):
            table.server.receive(bytes(damaged))
    note = wire.read(data, (stage,))
    for wrong in (
        dict(run=8), dict(round=4), dict(client=999_999_999), dict(view=bytes(32)), dict(stage=(stage + 2) % 10)
    ):  # fmt: skip
        odd = replace(note, **wrong)
        with pytest.raises(WireError):
            table.server.receive(wire.write(odd.stage, odd.run, odd.round, odd.client, odd.view, note.body))
    for body in (bytes(note.body)[:-1], bytes(note.body) + b"\0", b""):
        with pytest.raises(WireError):
            table.server.receive(wire.write(stage, 7, 3, table.first, note.view, body))
    table.server.receive(data)
    table.server.receive(data)  # the same again is no matter
    other = bytearray(note.body)
    other[-1] ^= 1
    with pytest.raises(WireError, match="answered twice"):
        table.server.receive(wire.write(stage, 7, 3, table.first, note.view, bytes(other)))
    assert table.first not in table.server.waiting
    assert len(table.server.waiting) == 4


def test_messages_of_another_session_are_refused():
    """A round that is played again has another session, and what was recorded in the first is worth nothing."""
    table, again = Table(), Table()
    assert table.run.setting.participants == again.run.setting.participants
    for stage in (wire.ROSTER, wire.INBOX, wire.SURVIVORS):
        table.to(stage)
        again.to(stage)
        with pytest.raises(WireError, match="another session"):
            again.clients[again.first].receive(table.down[table.first])
        with pytest.raises(WireError):
            again.server.receive(table.up[table.first])


def test_messages_for_others_and_of_other_stages_are_refused():
    table = Table().to(wire.ROSTER)
    second = table.run.setting.participants[1]
    with pytest.raises(WireError, match="reached client"):
        table.clients[table.first].receive(table.down[second])
    early = table.down[table.first]
    table.to(wire.INBOX)
    table.clients[table.first].receive(table.down[table.first])
    with pytest.raises(WireError, match="late, early or replayed"):
        table.clients[table.first].receive(early)


def test_a_client_accepts_one_list_of_survivors():
    table = Table(7).to(wire.SURVIVORS)
    client = table.clients[table.first]
    client.receive(table.survivors(table.first, 0, 1, 2, 3, 4))
    with pytest.raises(WireError):
        client.receive(table.survivors(table.first, 0, 1, 2, 3, 5))
    with pytest.raises(WireError):
        client.receive(table.down[table.first])


@pytest.mark.parametrize(
    ("places", "said"), [((0, 1, 2), "has 3 clients"), ((1, 2, 3, 4, 5), "not on the list"), ((), "not on the list")]
)
def test_a_client_refuses_lists_that_make_the_sum_small(places, said):
    table = Table(7).to(wire.SURVIVORS)
    client = table.clients[table.first]
    with pytest.raises(SecureSumError, match=said):
        client.receive(table.survivors(table.first, *places))
    with pytest.raises(SecureSumError, match="has left"):
        client.receive(table.down[table.first])
    assert not client.held  # its shares of others are gone


def test_a_client_refuses_survivors_who_were_gone():
    table = Table(7)
    del table.clients[table.run.setting.participants[6]], table.up[table.run.setting.participants[6]]
    table.to(wire.SURVIVORS)
    with pytest.raises(SecureSumError, match="that were gone"):
        table.clients[table.first].receive(table.survivors(table.first, 0, 1, 2, 3, 6))


def test_an_answer_for_unmasking_has_one_share_of_each():
    table = Table(7)
    table.to(wire.INBOX)
    late = table.run.setting.participants[3]
    table.up = {c: table.clients[c].receive(data) for c, data in table.down.items() if c != late}
    for data in table.up.values():
        table.server.receive(data)
    table.down = table.server.advance()
    table.to(wire.AGREED)
    client = table.clients[table.first]
    held = dict(client.held)
    answer = client.receive(table.down[table.first])
    told = wire.read(answer, (wire.UNMASK,)).body
    rows = [bytes(told[i : i + shamir.SHARE]) for i in range(0, len(told), shamir.SHARE)]
    assert rows == [held[at][shamir.SHARE :] if at == 3 else held[at][: shamir.SHARE] for at in range(7)]
    assert not client.held
    with pytest.raises(WireError):
        client.receive(table.survivors(table.first, *range(7)))


@pytest.mark.parametrize("zeros", [False, True])
def test_agreements_of_another_list_are_refused(zeros):
    """Client 0 is shown other survivors than the rest: their agreements do not fit, and it tells nothing."""
    table = Table(7).to(wire.SURVIVORS)
    client, told = table.clients[table.first], []
    client.receive(table.survivors(table.first, 0, 1, 2, 3, 4, 5))
    for c in table.run.setting.participants[1:5]:
        answer = table.clients[c].receive(table.survivors(c, 0, 1, 2, 3, 4, 6))
        told.append(bytes(16) if zeros else bytes(wire.read(answer, (wire.AGREE,)).body[:16]))  # that for client 0
    agreed = np.packbits(np.array([1, 1, 1, 1, 1, 0, 0], bool)).tobytes()
    with pytest.raises(SecureSumError, match="vouches for another list"):
        client.receive(wire.write(wire.AGREED, 7, 3, table.first, client.view, agreed, *told))


def test_too_few_agreements_are_refused():
    table = Table(7).to(wire.AGREED)
    client = table.clients[table.first]
    body = bytes(wire.read(table.down[table.first], (wire.AGREED,)).body)
    agreed = np.packbits(np.array([1, 1, 1, 0, 0, 0, 0], bool)).tobytes()
    with pytest.raises(SecureSumError, match="3 of those who hold shares"):
        client.receive(wire.write(wire.AGREED, 7, 3, table.first, client.view, agreed, body[1 : 1 + 32]))


def test_points_of_low_order_end_a_clients_part():
    table = Table()
    table.server.receive(table.up[table.first])
    second = table.run.setting.participants[1]
    own = wire.read(table.up[second], (wire.KEYS,))
    table.server.receive(wire.write(wire.KEYS, 7, 3, second, own.view, bytes(32), bytes(own.body[32:])))
    for c in table.run.setting.participants[2:]:
        table.server.receive(table.up[c])
    down = table.server.advance()
    with pytest.raises(SecureSumError, match=f"key of client {second} is refused.*low order"):
        table.clients[table.first].receive(down[table.first])


def test_one_key_for_two_clients_is_refused():
    table = Table()
    second, third = table.run.setting.participants[1:3]
    stolen, own = (bytes(wire.read(table.up[c], (wire.KEYS,)).body) for c in (second, third))
    table.up[third] = wire.write(wire.KEYS, 7, 3, third, table.run.setting.digest, stolen[:32] + own[32:])
    table.to(wire.ROSTER)
    with pytest.raises(SecureSumError, match="same key"):
        table.clients[table.first].receive(table.down[table.first])


@pytest.mark.parametrize("at", [0, 40, 90])
def test_a_changed_share_ends_a_clients_part_before_it_sent_values(at):
    table = Table().to(wire.INBOX)
    data = table.down[table.first]
    body = bytearray(wire.read(data, (wire.INBOX,)).body)
    body[1 + at] ^= 1
    client = table.clients[table.first]
    view = wire.read(data, (wire.INBOX,)).view
    with pytest.raises(SecureSumError, match="does not open"):
        client.receive(wire.write(wire.INBOX, 7, 3, table.first, view, bytes(body)))


@pytest.mark.parametrize("at", [2, 4])
def test_a_wrong_share_is_noticed(at):
    """A client that tells wrong shares for unmasking: what they open is compared with what was announced. The last
    of five dropped out, so that its lock is opened, and the others' own secrets."""
    table = Table().to(wire.INBOX)
    table.up = {c: table.clients[c].receive(data) for c, data in list(table.down.items())[:4]}
    for data in table.up.values():
        table.server.receive(data)
    table.down = table.server.advance()
    table.to(wire.AGREED)
    table.up = {c: table.clients[c].receive(data) for c, data in table.down.items()}
    note = wire.read(table.up[table.first], (wire.UNMASK,))
    body = bytearray(note.body)
    body[at * shamir.SHARE] ^= 1
    table.up[table.first] = wire.write(wire.UNMASK, 7, 3, table.first, note.view, bytes(body))
    for data in table.up.values():
        table.server.receive(data)
    with pytest.raises(SecureSumError, match="gave wrong ones"):
        table.server.advance()
    assert table.server.summed is None
    with pytest.raises(SecureSumError):
        table.server.advance()


@pytest.mark.parametrize("change", [dict(context=b"other rows"), dict(round=4), dict(session=bytes(16)), dict(least=4)])
def test_clients_with_another_setting_share_no_keys(change):
    """Nobody sends a value masked under a setting that others do not have."""
    run = Run.of(5)
    odd = Setting(**{**run.setting.__dict__, **change, "session": change.get("session", run.setting.session)})
    clients = run.clients()
    first, second = run.setting.participants[:2]
    clients[first] = SecureClient(odd, first, run.values[first])
    server = SecureServer(run.setting)
    with pytest.raises(WireError):
        server.receive(clients[first].hello())
    # A server that plays along on both sides gets no further: the shares do not open.
    view = one_more(odd.digest, np.ones(5, bool))
    publics = [clients[c]._public for c in run.setting.participants[1:]]
    bits = np.packbits(np.ones(5, bool)).tobytes()
    clients[first].receive(wire.write(wire.ROSTER, odd.run, odd.round, first, view, bits, *publics))
    others = [clients[c]._public for c in run.setting.participants if c != second]
    theirs = one_more(run.setting.digest, np.ones(5, bool))
    shares = clients[second].receive(wire.write(wire.ROSTER, 7, 3, second, theirs, bits, *others))
    sealed = bytes(wire.read(shares, (wire.SHARES,)).body)[32 : 32 + 84]
    inbox = wire.write(wire.INBOX, odd.run, odd.round, first, one_more(view, np.ones(5, bool)), bits, sealed * 4)
    with pytest.raises(SecureSumError, match="does not open"):
        clients[first].receive(inbox)


def test_a_client_that_does_not_take_part_is_refused():
    run = Run.of(3)
    with pytest.raises(MethodError, match="not among"):
        SecureClient(run.setting, -1, {})


@pytest.mark.parametrize(
    "change",
    [
        dict(threshold=3), dict(threshold=7), dict(degree=3), dict(degree=4, threshold=2), dict(least=2), dict(least=7),
        dict(run=-1), dict(run=1.5), dict(round=2**64), dict(threshold=4.5), dict(session=b""), dict(segments=()),
        dict(participants=(1, 2, 2, 3, 4, 5)), dict(participants=(1,)),
        dict(segments=(Segment("a", 1), Segment("a", 2))), dict(segments=(Segment("a", 2**40, 64),)),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(change):
    fine = Setting.plan(1, 1, range(6), [Segment("v", 3)])
    with pytest.raises(MethodError):
        Setting(**{**fine.__dict__, **change})
    for plan in ({"adversarial": np.nan}, {"dropping": np.nan}, {"participants": [1.5, 2]}):
        asked: dict[str, Any] = {"participants": range(6), **plan}
        with pytest.raises(MethodError):
            Setting.plan(1, 1, segments=[Segment("v", 3)], **asked)


@pytest.mark.parametrize(
    "wrong", [dict(bits=12), dict(length=0), dict(name=""), dict(most=0), dict(most=1.5), dict(length=2.5)]
)
def test_segments_that_make_no_sense_are_refused(wrong):
    with pytest.raises(MethodError):
        Segment(**{"name": "v", "length": 3, **wrong})


def test_without_the_package_it_says_what_to_install(monkeypatch):
    for name in [n for n in sys.modules if n.startswith("cryptography")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(MissingExtra, match=r"pip install -e '\.\[secure\]'"):
        Modern()


def test_rows_of_too_few_are_left_out():
    rule = RowRule.of(np.array([5, 1, 2, 3, 0]), np.array([3, 7, 8, 20, 21]), threshold=2, spare=1)
    np.testing.assert_array_equal(rule.rows, [3, 20])
    setting = rule.plan(1, 1, [4, 5, 6, 9], [Segment("v", 2)])
    assert setting.least == 3
    rule.check(setting, np.array([3, 7, 8, 20]), [4, 5, 6, 9])
    for odd, people, said in (
        (RowRule(np.array([3, 9]), 2, 1), [4, 5, 6, 9], "not in the union"),
        (RowRule(np.array([3, 3]), 2, 1), [4, 5, 6, 9], "not in the union"),
        (RowRule(np.array([3]), 2, 1), [4, 5, 6, 9], "not those"),
        (RowRule(np.array([3, 20]), 1, 1), [4, 5, 6, 9], "at least 2"),
        (rule, [4, 5, 6], "not counted"),
        (rule, [4, 5, 6, 9, 10], "fewer than 2 contributors"),
    ):
        with pytest.raises(SecureSumError, match=said):
            odd.check(setting, np.array([3, 7, 8, 20]), people)
    for wrong in (dict(threshold=1), dict(spare=-1)):
        with pytest.raises(MethodError):
            RowRule.of(np.array([5]), np.array([3]), **wrong)
