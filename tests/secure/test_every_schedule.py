"""Every schedule of a small world; and that the search finds bugs that are put there."""

import numpy as np
import pytest
from schedules import Stub, World

from fedsub.secure import SecureClient, client, wire
from fedsub.secure.ciphers import Modern
from fedsub.secure.masks import add_masks
from fedsub.secure.ring import Segment, zeros


@pytest.mark.parametrize(
    ("clients", "spare", "lies", "states"),
    [
        (3, 1, False, 798), (3, 0, True, 6123), (3, 1, True, 24542), (4, 1, False, 2678),
        pytest.param(4, 0, True, 0, marks=pytest.mark.slow), pytest.param(4, 1, True, 532276, marks=pytest.mark.slow),
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
    [(BelievesAnyList, 0, "follows"), (BelievesItIsAlone, 1, "follows"), (AnswersAgain, 1, "both shares")],
)
def test_a_client_that_does_not_check_is_found(bug, spare, found):
    states, wrong, _ = World(3, spare=spare, client=bug).search()
    assert found in wrong, (states, wrong)


def test_a_threshold_off_by_one_is_found(monkeypatch):
    real = client.shamir.share
    monkeypatch.setattr(client.shamir, "share", lambda secrets, n, t, ciphers: real(secrets, n, t - 1, ciphers))
    _, wrong, _ = World(3, lies=False).search()
    assert "1 answers opened" in wrong


def test_a_threshold_of_agreement_off_by_one_is_found():
    class OneLess(SecureClient):
        def _unmask(self, note):
            self.setting.__dict__["threshold"] -= 1
            try:
                return super()._unmask(note)
            finally:
                self.setting.__dict__["threshold"] += 1

    _, wrong, _ = World(3, client=OneLess).search()
    assert "follows" in wrong


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

    def stream(self, key, *args):
        word = np.bitwise_xor.reduce(np.frombuffer(key, "<u4")).tobytes()
        return super().stream(word + bytes(28), *args)


class CutsOff(Modern):
    """Seeded bug: masks from the first 32 bits of the key."""

    def stream(self, key, *args):
        return super().stream(key[:4] + bytes(28), *args)


def test_masks_from_a_seed_of_32_bits_are_found():
    assert distinct_masks(Modern())
    assert distinct_masks(Stub(0))
    assert not distinct_masks(Folds())
    assert not distinct_masks(CutsOff())
