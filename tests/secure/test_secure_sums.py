"""A secure sum is the plain sum of the survivors, or nothing at all."""

import re
import tracemalloc
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from runs import Run, Silent, random_run

from fedsub.errors import DataError, MethodError, SecureSumError, WireError
from fedsub.secure import Faulty, SecureClient, SecureServer, Segment, Setting, keys, masks, run_protocol, wire
from fedsub.secure.ciphers import Modern
from fedsub.secure.ring import zeros


@pytest.mark.parametrize("count", [2, 3, 7, 40])
def test_it_is_the_plain_sum(count):
    run = Run.of(
        count, Segment("counts", 33, 8, most=4), Segment("small", 5, 16, most=1000), Segment("wraps", 100, 32),
        Segment("values", 700, 32, most=10**6), Segment("large", 3, 64, most=2**40),
    )  # fmt: skip
    summed = run.play()
    assert summed.clients == run.setting.participants
    run.assert_exact(summed)


def test_it_is_the_plain_sum_on_a_graph():
    run = Run.of(60, Segment("v", 100, 32, most=10**6), degree=20, threshold=12)
    run.assert_exact(run.play())


@pytest.mark.parametrize("stage", [wire.KEYS, wire.SHARES, wire.MASKED, wire.AGREE, wire.UNMASK])
@pytest.mark.parametrize("plan", [{}, {"degree": 8, "threshold": 5}])
def test_clients_that_drop_out_at_a_stage(stage, plan):
    """Until their masked values have arrived they are not in the sum, afterwards they are."""
    run = Run.of(13, seed=stage, **plan)
    gone = run.setting.participants[2:5]
    summed = run.play(Silent(dict.fromkeys(gone, int(stage))))
    stay = set(run.setting.participants) - set(gone)
    assert set(summed.clients) == (stay if stage <= wire.MASKED else stay | set(gone))
    run.assert_exact(summed)


def test_clients_that_drop_out_at_every_stage():
    run = Run.of(16, seed=5)
    summed = run.play(Silent(dict(zip(run.setting.participants[::3], (1, 3, 5, 7, 9, 9), strict=True))))
    assert len(summed.clients) == 13
    run.assert_exact(summed)


@pytest.mark.parametrize("stage", [wire.KEYS, wire.SHARES, wire.MASKED, wire.AGREE, wire.UNMASK])
def test_too_few_end_without_a_sum(stage):
    run = Run.of(9)
    assert run.setting.threshold == 5
    run.assert_exact(run.play(Silent(dict.fromkeys(run.setting.participants[:4], int(stage)))))
    with pytest.raises(SecureSumError, match=r"5 are needed"):
        run.play(Silent(dict.fromkeys(run.setting.participants[:5], int(stage))))


def test_one_client_is_refused():
    with pytest.raises(MethodError, match="the sum of one is its value"):
        Setting.plan(1, 1, [5], [Segment("v", 3)])


@pytest.mark.parametrize("seed", range(25))
def test_random_runs_end_exact_or_not_at_all(seed):
    random_run(seed, most_values=500)


@pytest.mark.slow
def test_a_thousand_random_runs(capsys):
    exact = sum(random_run(1000 + seed) for seed in range(1000))
    with capsys.disabled():
        print(f"\n1000 random runs: {exact} exact sums, {1000 - exact} clean aborts, none wrong")
    assert 200 < exact < 950  # neither kind of end is a rarity


@pytest.mark.parametrize("plan", [{}, {"degree": 6, "threshold": 4}])
def test_everybody_counts_once(plan):
    """One-hot vectors under lost, repeated, reordered and replayed messages: no entry of the sum is ever 2."""
    ended = short = 0
    for seed in range(10):
        run = Run.of(12, Segment("v", 12, 8, most=1), seed=seed, **plan)
        for at, c in enumerate(run.setting.participants):
            run.values[c]["v"] = np.eye(12, dtype=np.uint8)[at]
        network = Faulty(np.random.default_rng(seed), lost=0.02, repeated=0.8, replayed=0.8)
        try:
            summed = run.play(network)
        except SecureSumError:
            continue
        assert int(summed.sums["v"].max()) == 1  # never 2
        in_it = np.isin(run.setting.participants, summed.clients)
        np.testing.assert_array_equal(summed.sums["v"], in_it.astype(np.uint8))
        ended, short = ended + 1, short + (len(summed.clients) < 12)
    assert ended >= 4
    assert short >= 2  # of which some without those who were lost


def masked_values(run: Run) -> tuple[dict[int, np.ndarray], dict[int, SecureClient], SecureServer]:
    clients, server = run.clients(), SecureServer(run.setting)
    up = [c.hello() for c in clients.values()]
    for _ in range(2):
        for data in up:
            server.receive(data)
        up = [clients[c].receive(data) for c, data in server.advance().items()]
    segment = run.setting.segments[0]
    out = {}
    for data in up:
        note = wire.read(data, (wire.MASKED,))
        out[note.client] = np.frombuffer(note.body, segment.dtype)
    return out, clients, server


def test_masks_between_clients_cancel():
    run = Run.of(6, Segment("v", 1000, 32))
    for values in run.values.values():
        values["v"] = np.zeros(1000, np.uint32)
    masked, clients, server = masked_values(run)
    ciphers = Modern()
    total = np.zeros(1000, np.uint32)
    for c, value in masked.items():
        own = bytearray(4000)
        ciphers.stream(keys.own_mask(clients[c]._own, c, server.views[1], ciphers))(memoryview(own))
        assert (value != 0).any()
        total += value - np.frombuffer(own, np.uint32)
    assert not total.any()


def test_a_masked_value_is_uniform():
    """χ² over the bytes of one client's message, of values that are all 0: 255 degrees of freedom, 6 deviations."""
    run = Run.of(3, Segment("v", 100_000, 8, most=80))
    for values in run.values.values():
        values["v"] = np.zeros(100_000, np.uint8)
    masked, _, _ = masked_values(run)
    for value in masked.values():
        counts = np.bincount(value, minlength=256)
        expected = 100_000 / 256
        assert abs(((counts - expected) ** 2 / expected).sum() - 255) < 6 * np.sqrt(2 * 255)


def test_the_same_values_are_masked_differently_every_time():
    run = Run.of(3)
    first, second = masked_values(run)[0], masked_values(run)[0]
    assert all((first[c] != second[c]).mean() > 0.9 for c in first)


@pytest.mark.parametrize("most", [2**32 // 40 + 1, 2**32 - 1])
def test_a_ring_that_the_sum_could_leave_is_refused(most):
    with pytest.raises(MethodError, match="could wrap around unseen; take 64 bits"):
        Setting.plan(1, 1, range(40), [Segment("v", 3, 32, most=most)])
    Setting.plan(1, 1, range(40), [Segment("v", 3, 32, most=(2**32 - 1) // 40)])


@pytest.mark.parametrize("values", [[0, 0, 1001], [0, -1, 3], [0.5, 1, 1], [1, 2], [[1, 2, 3]]])
def test_a_client_whose_values_do_not_fit_sends_nothing(values):
    run = Run.of(5, Segment("v", 3, 32, most=1000))
    bad = run.setting.participants[1]
    run.values[bad]["v"] = np.array(values)
    clients, server = run.clients(), SecureServer(run.setting)
    summed = run_protocol(clients, server)
    assert bad not in summed.clients
    assert clients[bad].stopped
    with pytest.raises(SecureSumError, match=r"nothing was sent|takes"):
        clients[bad].receive(b"")
    stay = [c for c in run.values if c != bad]
    np.testing.assert_array_equal(summed.sums["v"], sum(run.values[c]["v"] for c in stay))


@pytest.mark.parametrize("kind", ["i1", "<i2", "<i4", "<i8", ">i2", ">i4", ">i8", "u1", "<u4", ">u4"])
@pytest.mark.parametrize("most", [None, 3, 100, 1000])
def test_whole_numbers_of_any_kind_are_taken_as_what_they_are(kind, most):
    """A narrow type holds few numbers above most, and one in the other order of bytes is read the other way round."""
    segment = Segment("v", 3, 32, most=most)
    taken = segment.accept(np.array([3, 0, 1], kind))
    assert taken.dtype == np.uint32
    np.testing.assert_array_equal(taken, [3, 0, 1])
    ends = np.iinfo(kind)
    for wrong in ([ends.min] if ends.min < 0 else []) + [-1] * (ends.min < 0) + [ends.max] * (most == 3):
        with pytest.raises(DataError, match="nothing was sent"):
            segment.accept(np.array([wrong, 0, 1], kind))


def test_values_may_be_made_when_they_are_due():
    run = Run.of(3)
    made = []
    clients = {
        c: SecureClient(run.setting, c, lambda c=c: made.append(c) or run.values[c]) for c in run.setting.participants
    }
    server = SecureServer(run.setting)
    for client in clients.values():
        server.receive(client.hello())
    assert not made
    run.assert_exact(run_protocol(run.clients(), SecureServer(run.setting)))
    for c, data in server.advance().items():
        server.receive(clients[c].receive(data))
    assert not made
    for c, data in server.advance().items():
        clients[c].receive(data)
    assert made == list(run.setting.participants)


def test_masks_go_on_from_piece_to_piece_and_from_segment_to_segment():
    """Against the bare stream in one piece, over lengths on either side of a piece."""
    segments = (Segment("a", masks.PIECE + 5, 8), Segment("b", 7, 64), Segment("c", masks.PIECE, 32))
    values = zeros(segments)
    encryptor = Cipher(algorithms.ChaCha20(bytes(range(32)), bytes(16)), None).encryptor()
    bare = encryptor.update(bytes(sum(s.nbytes for s in segments)))
    masks.add_masks(values, segments, [(bytes(range(32)), True)], Modern())
    at = 0
    for s in segments:
        np.testing.assert_array_equal(values[s.name], np.frombuffer(bare, s.dtype, s.length, at))
        at += s.nbytes
    keys_ = [i.to_bytes(32, "little") for i in range(600)]  # more than are open at a time
    masks.add_masks(values, segments[1:2], [(key, True) for key in keys_], Modern())
    masks.add_masks(values, segments[1:2], [(key, False) for key in keys_], Modern())
    np.testing.assert_array_equal(values["b"], np.frombuffer(bare, segments[1].dtype, 7, segments[0].nbytes))


def test_the_page_runs(tmp_path, monkeypatch):
    page, names = (Path(__file__).parents[2] / "docs/secure_sum.md").read_text(), {}
    monkeypatch.chdir(tmp_path)
    for code in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S):
        exec(code, names)
    assert names["summed"].clients == tuple(range(10))
    assert len(names["Registry"].open("identities.json")) == 3


def test_a_setting_survives_writing():
    run = Run.of(20, Segment("v", 50, 32, most=1000), Segment("ä", 3, 64), degree=6, threshold=4, context=b"rows")
    data = run.setting.write()
    assert Setting.read(data) == run.setting
    assert Setting.read(data).digest == run.setting.digest
    for cut in range(len(data)):
        with pytest.raises(WireError):
            Setting.read(data[:cut])
    for at in range(5, len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x40
        with suppress(WireError):
            assert Setting.read(bytes(damaged)) != run.setting


def test_lengths_are_checked_before_memory_is_taken():
    """A head that announces 2^60 bytes, and a setting of 2^31 clients, cost nothing to refuse."""
    run = Run.of(3)
    client = run.clients()[run.setting.participants[0]]
    head = wire.HEAD.pack(wire.MAGIC, wire.VERSION, wire.ROSTER, 0, 7, 3, client.me, bytes(32), 2**60)
    setting = bytearray(run.setting.write())
    setting[37:41] = (2**31).to_bytes(4, "little")
    tracemalloc.start()
    with pytest.raises(WireError, match="announces"):
        client.receive(head + bytes(16))
    with pytest.raises(WireError, match="announces"):
        Setting.read(bytes(setting))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20
    assert not client.stopped
