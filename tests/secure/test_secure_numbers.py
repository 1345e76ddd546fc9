"""Levels, shares, graphs, unions and counts, against their formulas."""

from itertools import product

import numpy as np
import pytest
from runs import Silent

from fedsub import rng
from fedsub.errors import DataError, MethodError, SecureSumError
from fedsub.secure import (
    Quantiser,
    Segment,
    Setting,
    Uniting,
    degree_and_threshold,
    private_union,
    secure_counts,
    shamir,
    wire,
)
from fedsub.secure.ciphers import Modern
from fedsub.secure.graph import Ring

CIPHERS = Modern()


def test_levels_are_unbiased_and_off_by_at_most_a_step():
    q = Quantiser(0.5, 2**15)
    assert q.step == pytest.approx(2 * 0.5 / (2**15 - 1))
    values = np.linspace(-0.5, 0.5, 1001)
    back = np.array([q.decode(q.encode(values, rng.key(1, 2, i)), 1) for i in range(2000)])
    assert np.abs(back - values).max() <= q.step * (1 + 1e-9)
    # A level is a coin flip between two: its variance is at most δ²/4, so six deviations of the mean over 2000 draws.
    assert np.abs(back.mean(0) - values).max() < 6 * q.step / 2 / np.sqrt(2000)
    frac = (values + 0.5) / q.step % 1
    np.testing.assert_allclose(back.var(0), q.step**2 * frac * (1 - frac), atol=0.1 * q.step**2 / 4)


def test_levels_follow_the_key_alone():
    q, values = Quantiser(1.0), np.linspace(-1, 1, 40_000)
    np.testing.assert_array_equal(q.encode(values, 7), q.encode(values, 7))
    assert (q.encode(values, 7) != q.encode(values, 8)).any()
    np.testing.assert_array_equal(q.encode(values, 7)[:100], q.encode(values[:100], 7))


def test_a_sum_of_levels_gives_back_the_sum():
    """The offset is taken off once for every contributor, entry by entry."""
    q, draw = Quantiser(2.0, 1001), np.random.default_rng(0)
    values, held = draw.uniform(-2, 2, (9, 200)), draw.random((9, 200)) < 0.6
    levels = np.array([np.where(held[i], q.encode(values[i], i), 0) for i in range(9)])
    found = q.decode(levels.sum(0), held.sum(0))
    true = np.where(held, values, 0).sum(0)
    assert np.abs(found - true).max() <= 9 * q.step
    assert np.abs(found - true).mean() < 3 * q.step
    np.testing.assert_array_equal(found[held.sum(0) == 0], 0)


def test_values_outside_are_clipped_to_the_end_levels():
    q = Quantiser(1.0, 11)
    np.testing.assert_array_equal(q.encode(np.array([-5.0, -1, 1, 1e300]), 3), [0, 0, 10, 10])
    assert q.outside(np.array([-5.0, -1, 1, 1.5])) == 2
    assert q.most == 10
    for bad in (np.nan, np.inf):
        with pytest.raises(DataError, match="nothing was sent"):
            q.encode(np.array([0.0, bad]), 3)


def test_no_rounding_leads_beyond_the_highest_level(monkeypatch):
    """2^32 − 1 + u is 2^32 in double precision for the largest u below 1."""
    monkeypatch.setattr("fedsub.secure.quantise.rng.uniform", lambda words: np.full(len(words), 1 - 2**-53))
    q = Quantiser(1.0, 2**32)
    assert q.encode(np.array([1.0, 2.0]), 0).tolist() == [q.most, q.most]


def test_the_ring_that_holds_a_sum():
    """clip × clients × scale < ring, with scale = (levels − 1)/(2 clip)."""
    assert Quantiser(1.0, 2**15).bits(2) == 16
    assert Quantiser(1.0, 2**15).bits(3) == 32
    assert Quantiser(1.0, 2).bits(255) == 8
    assert Quantiser(1.0, 2).bits(256) == 16
    for clients in (2, 3, 255, 256, 10**5):
        q = Quantiser(1.0, 2**15)
        Segment("v", 1, q.bits(clients), q.most).prove(clients)
    Segment("v", 1, 8, most=85).prove(3)  # 255
    with pytest.raises(MethodError, match="reach 256"):  # which is 0
        Segment("v", 1, 8, most=64).prove(4)
    with pytest.raises(MethodError):
        Quantiser(1.0, 2**32).bits(2**33)
    for clip, levels in ((0.0, 9), (np.inf, 9), (np.nan, 9), (5e-324, 9), (1e308, 9), (1.0, 1)):
        with pytest.raises(MethodError):
            Quantiser(clip, levels)


@pytest.mark.parametrize(("holders", "threshold"), [(1, 1), (2, 2), (5, 3), (100, 51), (287, 150)])
def test_any_threshold_of_shares_opens(holders, threshold):
    secrets = [CIPHERS.random(32), b"\xff" * 32, bytes(32)]
    shares = shamir.share(secrets, holders, threshold, CIPHERS)
    np.testing.assert_array_equal(shamir.read(shamir.write(shares)), shares)
    assert shamir.write(shares).shape == (holders, 3, shamir.SHARE)
    draw = np.random.default_rng(holders)
    for _ in range(3):
        some = draw.choice(holders, threshold, replace=False)
        found = shamir.combine(np.tile(some + 1, (3, 1)), shares[some].transpose(1, 0, 2))
        assert found == secrets


def test_a_share_is_the_polynomials_value():
    """Against Horner's rule in Python's integers."""
    drawn = np.random.default_rng(0).integers(0, shamir.PRIME, (3, 16))
    real, shamir.uniform = shamir.uniform, lambda count, ciphers: drawn.reshape(-1)
    try:
        secret = CIPHERS.random(32)
        shares = shamir.share([secret], 9, 4, CIPHERS)
    finally:
        shamir.uniform = real
    constant = np.frombuffer(secret, "<u2")
    for x in range(1, 10):
        for limb in range(16):
            value = 0
            for coefficient in [*drawn[::-1, limb].tolist(), int(constant[limb])]:
                value = (value * x + coefficient) % 65537
            assert shares[x - 1, 0, limb] == value


def test_fewer_shares_fit_every_secret_equally_often(monkeypatch):
    """The whole field of 5 elements, t = 3 of 4: any two shares are the same distribution whatever the secret is."""
    monkeypatch.setattr(shamir, "PRIME", 5)
    shamir._powers.cache_clear()
    seen: dict[tuple[int, int], dict[int, dict[tuple[int, int], int]]] = {}
    for secret, a, b in product(range(5), repeat=3):
        monkeypatch.setattr(shamir, "uniform", lambda count, ciphers, a=a, b=b: np.repeat([a, b], 16))
        shares = shamir.share([bytes([secret, 0] * 16)], 4, 3, CIPHERS)[:, 0, 0]
        for i, j in ((0, 1), (0, 3), (1, 2), (2, 3)):
            counts = seen.setdefault((i, j), {}).setdefault(secret, {})
            pair = int(shares[i]), int(shares[j])
            counts[pair] = counts.get(pair, 0) + 1
    shamir._powers.cache_clear()
    for counts in seen.values():
        for secret in range(5):
            assert counts[secret] == dict.fromkeys(product(range(5), repeat=2), 1)


def test_fewer_shares_do_not_open():
    secret = CIPHERS.random(32)
    shares = shamir.share([secret], 9, 5, CIPHERS)
    for size in (1, 3, 4):
        try:
            assert shamir.combine(np.arange(1, size + 1)[None], shares[:size].transpose(1, 0, 2)) != [secret]
        except SecureSumError:  # a limb that is none
            continue


def test_coefficients_are_uniform():
    """χ² over 64 classes of a million draws, and words that would tilt it are drawn again."""
    values = shamir.uniform(10**6, CIPHERS)
    assert values.min() >= 0
    assert values.max() == shamir.PRIME - 1
    counts = np.bincount(values[values < 65536] // 1024, minlength=64)
    expected = (values < 65536).sum() / 64
    assert abs(((counts - expected) ** 2 / expected).sum() - 63) < 6 * np.sqrt(2 * 63)

    class Tilted:
        calls = 0

        def random(self, count):
            self.calls += 1
            return b"\xff" * count if self.calls == 1 else bytes(count)

    ciphers = Tilted()
    np.testing.assert_array_equal(shamir.uniform(3, ciphers), [0, 0, 0])  # type: ignore[arg-type]
    assert ciphers.calls == 2


def test_shares_that_are_none_are_refused():
    shares = shamir.share([bytes(32)], 3, 2, CIPHERS)
    written = shamir.write(shares)
    written[..., 0], written[..., 32] = 1, 0x80  # a limb of 2^16 + 1
    with pytest.raises(SecureSumError, match="no element of the field"):
        shamir.read(written)
    with pytest.raises(SecureSumError, match="same point"):
        shamir.combine(np.array([[2, 2]]), shares[:2].transpose(1, 0, 2))
    for wrong in ((3, 4), (3, 0), (70000, 3)):
        with pytest.raises(MethodError):
            shamir.share([bytes(32)], *wrong, CIPHERS)


PUBLISHED = [  # graph_parameter_finder_test.cc of federated-compute: 40 bits of security, 20 of correctness
    (100, 0.45, 0.45, False, 92, 46), (1000, 0.45, 0.45, False, 822, 417), (10, 0.33, 0.33, False, 8, 4),
    (100, 0.33, 0.33, False, 68, 34), (1000, 0.33, 0.33, False, 286, 150), (10_000, 0.33, 0.33, False, 422, 221),
    (100_000, 0.33, 0.33, False, 480, 251), (10, 0.05, 0.33, False, 4, 2), (100, 0.05, 0.33, False, 28, 6),
    (1000, 0.05, 0.33, False, 72, 24), (10_000, 0.05, 0.33, False, 86, 29), (10, 0.33, 0.05, False, 4, 4),
    (100, 0.33, 0.05, False, 34, 29), (1000, 0.33, 0.05, False, 78, 60), (10_000, 0.33, 0.05, False, 92, 70),
    (100, 0.3, 0.3, True, 92, 62), (1000, 0.3, 0.3, True, 872, 584), (10, 0.05, 0.33, True, 8, 5),
    (100, 0.05, 0.33, True, 72, 39), (1000, 0.05, 0.33, True, 398, 223), (10_000, 0.05, 0.33, True, 746, 420),
    (10, 0.33, 0.05, True, 4, 4), (100, 0.33, 0.05, True, 42, 37), (1000, 0.33, 0.05, True, 132, 109),
]  # fmt: skip


@pytest.mark.parametrize(("clients", "adversarial", "dropping", "lying", "degree", "threshold"), PUBLISHED)
def test_degrees_and_thresholds_are_the_published_ones(clients, adversarial, dropping, lying, degree, threshold):
    assert degree_and_threshold(clients, adversarial, dropping, lying=lying) == (degree, threshold)


def test_degree_286_and_threshold_150_keep_their_promises():
    """Exact rational tails, in Python's integers; and degree 284 breaks one of the three."""
    from fractions import Fraction
    from math import comb

    n, bad, stay = 1000, 330, 670

    def tail(marked: int, degree: int, xs) -> Fraction:
        return Fraction(sum(comb(marked, x) * comb(n - marked, degree - x) for x in xs), comb(n, degree))

    def holds(degree: int, threshold: int) -> bool:
        apart = Fraction(n * (n - degree - 1) * comb(660, degree), 2 * comb(n, degree))
        broken = tail(bad, degree, range(threshold, degree + 1))
        stuck = tail(stay, degree, range(threshold))
        return apart < Fraction(1, 2**41) and broken <= Fraction(1, n * 2**41) and stuck <= Fraction(1, n * 2**20)

    assert holds(286, 150)
    assert not any(holds(284, threshold) for threshold in range(100, 200))


def test_thresholds_that_cannot_be_are_refused():
    assert degree_and_threshold(1000, 1 / 3, 1 / 3) == (292, 154)  # 333 of each, not 330
    assert degree_and_threshold(20, 0.45, 0.45) is None
    for wrong in ((1, 0.1, 0.1), (10, -0.1, 0.1), (10, 0.5, 0.5)):
        with pytest.raises(MethodError):
            degree_and_threshold(*wrong)
    with pytest.raises(MethodError, match="2 dropping"):
        degree_and_threshold(10, 0.33, 0.33, lying=True)
    # A plan takes a majority, so that no server can have two groups of holders.
    assert degree_and_threshold(1000, 0.05, 0.33) == (72, 24)
    setting = Setting.plan(1, 1, range(1000), [Segment("v", 1)], adversarial=0.05, dropping=0.33)
    assert setting.threshold == setting.degree // 2 + 1
    assert Setting.plan(1, 1, range(10), [Segment("v", 1)], adversarial=0.45, dropping=0.45).degree == 9


@pytest.mark.parametrize(("count", "degree"), [(12, 4), (101, 20), (6, 5), (6, 9)])
def test_a_graph_is_regular_symmetric_and_in_one_piece(count, degree):
    ring = Ring(count, degree, bytes(range(32)))
    near = [set(ring.of(i).tolist()) for i in range(count)]
    assert {len(n) for n in near} == {min(degree, count - 1)}
    assert all(i not in near[i] and all(i in near[j] for j in near[i]) for i in range(count))
    reached, new = {0}, {0}
    while new:
        new = set().union(*[near[i] for i in new]) - reached
        reached |= new
    assert len(reached) == count
    other = Ring(count, degree, bytes(range(1, 33)))
    assert ring.complete or any(set(other.of(i).tolist()) != near[i] for i in range(count))


def sets(count: int, length: int, seed: int = 0) -> dict[int, np.ndarray]:
    draw = np.random.default_rng(seed)
    return {c: np.sort(draw.choice(length, draw.integers(0, 40), replace=False)) for c in range(count)}


def test_the_union_is_the_plain_union():
    rows = sets(9, 400)
    found, summed = private_union(rows, 400, run=1, round=2)
    np.testing.assert_array_equal(found, np.unique(np.concatenate(list(rows.values()))))
    assert len(summed.clients) == 9


def test_those_who_drop_out_are_not_in_the_union_nor_in_the_counts():
    rows = {c: np.array([c, 50 + c % 3]) for c in range(9)}
    gone = Silent({2: wire.MASKED, 5: wire.SHARES})
    found, _ = private_union(rows, 60, run=1, round=2, network=gone)
    np.testing.assert_array_equal(found, [0, 1, 3, 4, 6, 7, 8, 50, 51, 52])
    counts, _ = secure_counts(rows, 60, run=1, round=2, network=gone)
    np.testing.assert_array_equal(counts[50:53], [3, 3, 1])
    np.testing.assert_array_equal(counts[:9], [1, 1, 0, 1, 1, 0, 1, 1, 1])


def test_a_row_that_is_held_is_never_0_in_a_vector():
    """Nor is it missed by its only holder, whatever was drawn."""
    low = np.arange(1024, dtype=np.uint64)
    words = np.concatenate([low, np.uint64(2**64 - 1) - low])
    for bits in (8, 16):
        drawn = Uniting({"v": 2048}, bits).values({"v": np.arange(2048)}, lambda count: words)["v"]
        assert drawn.min() == 1
    short = Uniting({"v": 255}, 8).values({"v": np.arange(255)}, lambda count: words[:255])["v"]
    assert sorted(set(short)) == list(range(1, 256))


def test_the_union_misses_a_row_with_the_chance_of_a_ring_element():
    """Two of ring elements 1 … R−1 add up to 0 with the chance 1/(R−1): R = 256 makes it visible."""
    rows = dict.fromkeys(range(2), np.arange(100_000))
    words = {c: rng.mix(rng.key(5, c) + np.arange(100_000, dtype=np.uint64)) for c in rows}
    found, _ = private_union(rows, 100_000, run=1, round=2, bits=8, words=words)
    missed = 100_000 - len(found)
    assert abs(missed - 100_000 / 255) < 6 * np.sqrt(100_000 / 255)
    again, _ = private_union(rows, 100_000, run=1, round=3, bits=8, words=words)
    np.testing.assert_array_equal(found, again)  # given randomness, the union is a function


def test_counts_are_exact():
    rows = sets(300, 500, seed=1)
    counts, _ = secure_counts(rows, 500, run=1, round=2, degree=6, threshold=4)
    np.testing.assert_array_equal(counts, np.bincount(np.concatenate(list(rows.values())), minlength=500))
    with pytest.raises(MethodError, match="wrap around"):
        secure_counts(rows, 500, run=1, round=2, bits=8)
    with pytest.raises(DataError, match="ascending"):
        secure_counts({0: np.array([3, 3]), 1: np.array([1])}, 10, run=1, round=2)
