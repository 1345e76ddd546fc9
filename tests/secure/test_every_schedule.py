"""Every schedule of a small world; and that the search finds bugs that are put there."""

import numpy as np
import pytest
from schedules import Message, Stub, World, bits

from fedsub.secure import SecureClient, client, wire
from fedsub.secure.ciphers import Modern
from fedsub.secure.masks import add_masks
from fedsub.secure.ring import Segment, zeros
from fedsub.secure.setting import one_more


@pytest.mark.parametrize(
    ("clients", "spare", "lies", "states"),
    [
        (3, 1, False, 798), (3, 0, True, 6123), (3, 1, True, 24542), (4, 1, False, 2678),
        pytest.param(4, 0, True, 100528, marks=pytest.mark.slow),
        pytest.param(4, 1, True, 532276, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_no_schedule_goes_wrong(clients, spare, lies, states, capsys):
    found, wrong, sums = World(clients, spare=spare, lies=lies).search()
    with capsys.disabled():
        who = f"{clients} clients of whom {spare} may be missing, {'a lying' if lies else 'an honest'} server"
        print(f"\n{who}: {found} states, {sums} with a sum")
    assert not wrong
    assert sums
    assert found == states  # a search that became smaller would have to be explained


class BelievesAnyList(SecureClient):
    """Seeded bug: the list of survivors is not looked at."""

    def _check(self, present, what):
        if what != "survivors":
            super()._check(present, what)


class BelievesItIsAlone(SecureClient):
    """Seeded bug: what the others say of the list of survivors is not looked at."""

    def _unmask(self, note: wire.Note) -> bytes:
        survivors, shared = self.listed[-1], self.listed[-2]
        asked = np.sort(np.append(self.near[shared[self.near]], self.place)).tolist()
        answer = [self.held[at][:34] if survivors[at] else self.held[at][34:] for at in asked]
        return self._write(wire.UNMASK, *answer)


class AnswersAgain(SecureClient):
    """Seeded bug: after an answer it is ready for another list."""

    def _unmask(self, note: wire.Note) -> bytes:
        held, pairs = self.held, self.pairs
        answer = super()._unmask(note)
        self.held, self.pairs = held, pairs
        return answer

    def receive(self, data: bytes) -> bytes:
        if not self.stopped and not self.waits and wire.read(data, tuple(range(1, 10))).stage == wire.SURVIVORS:
            self.waits, self.view, self.listed = wire.SURVIVORS, self.masked_view, self.listed[:2]
        return super().receive(data)

    def _mask(self, note: wire.Note) -> bytes:
        answer = super()._mask(note)
        self.masked_view = self.view
        return answer


@pytest.mark.parametrize(
    ("bug", "spare", "found"),
    [(BelievesAnyList, 0, "follows"), (AnswersAgain, 1, "both shares")],
)
def test_a_client_that_does_not_check_is_found(bug, spare, found):
    states, wrong, _ = World(3, spare=spare, client=bug).search()
    assert found in wrong, (states, wrong)


def test_a_threshold_off_by_one_is_found(monkeypatch):
    real = client.shamir.share
    monkeypatch.setattr(client.shamir, "share", lambda secrets, n, t, ciphers: real(secrets, n, t - 1, ciphers))
    _, wrong, _ = World(3, lies=False).search()
    assert "1 answers opened" in wrong


def split(bug: type[SecureClient]) -> str:
    """What five clients tell a server that shows each of them another list of three survivors.

    With three and four clients a majority of shares and the least number of survivors are enough, whatever clients are
    told: no schedule of theirs goes wrong without the agreement. Five can be split: every list lacks two, so that
    together they deny three clients often enough to open their locks, and the sum of the two others follows.
    """
    world = World(5, spare=2, client=bug)
    server, clients, sent = world.start()
    for stage in range(3):
        for number in bits(sent):
            if world.messages[number].up:
                server = world.takes(server, number)
        server, made = world.advances(server)
        for number in bits(made) if stage < 2 else ():
            _, clients, sent = world.given((server, clients, sent), world.messages[number].client, number)
    view = world.machines[server].views[2]
    for c, gone in enumerate([(2, 3), (4, 2), (3, 4), (2, 4), (2, 3)]):
        who = np.array([v not in gone for v in range(5)])
        data = wire.write(wire.SURVIVORS, 1, 1, c, one_more(view, who), np.packbits(who).tobytes())
        _, clients, sent = world.given(
            (server, clients, sent), c, world.message(Message(False, c, wire.SURVIVORS, data))
        )
    for c in range(5):
        vouched = tuple(n for n in bits(sent) if world.messages[n].stage == wire.AGREE)
        for number in world.lied(server, clients[c], vouched):
            _, clients, sent = world.given((server, clients, sent), c, number)
    return world.wrong((server, clients, sent))


def test_clients_that_are_told_different_survivors_open_nothing():
    assert not split(SecureClient)


def test_clients_that_do_not_compare_survivors_are_found():
    assert "the sum over {0, 1} follows" in split(BelievesItIsAlone)


def distinct_masks(ciphers) -> bool:
    """Does every byte of a key matter, and do two keys whose halves cancel give different masks?"""
    base, segments = bytes(range(32)), (Segment("v", 16, 32),)

    def mask(key: bytes) -> bytes:
        out = zeros(segments)
        add_masks(out, segments, [(key, True)], ciphers)
        return out["v"].tobytes()

    keys = [base, *[base[:i] + bytes([base[i] ^ 1]) + base[i + 1 :] for i in range(32)]]
    both = bytearray(base)  # the same change in two words: a key folded to 32 bits by XOR stays what it was
    both[0] ^= 1
    both[4] ^= 1
    return len({mask(key) for key in [*keys, bytes(both)]}) == 34


class Folds(Modern):
    """Seeded bug: masks from a 32-bit seed, folded from the key by XOR."""

    def stream(self, key, nonce=bytes(12), block=0):
        word = np.bitwise_xor.reduce(np.frombuffer(key, "<u4")).tobytes()
        return super().stream(word + bytes(28), nonce, block)


class CutsOff(Modern):
    """Seeded bug: masks from the first 32 bits of the key."""

    def stream(self, key, nonce=bytes(12), block=0):
        return super().stream(key[:4] + bytes(28), nonce, block)


def test_masks_from_a_seed_of_32_bits_are_found():
    assert distinct_masks(Modern())
    assert distinct_masks(Stub(0))
    assert not distinct_masks(Folds())
    assert not distinct_masks(CutsOff())
