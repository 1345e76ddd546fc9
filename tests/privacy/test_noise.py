"""Noise that is drawn late: the walk, its words, and that late is the same as in time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedsub.errors import MethodError
from fedsub.privacy.chacha import blocks
from fedsub.privacy.noise import Counted, Keyed, Secret, Walks

WALKS = [Walks(Counted(3)), Walks(Keyed(bytes(range(32))))]


@pytest.mark.parametrize("walks", WALKS, ids=["counted", "keyed"])
def test_late_noise_is_the_sum_of_that_in_time(walks: Walks) -> None:
    rows = np.array([0, 5, 2**33, 17])
    start = 230
    single = np.stack([walks.rows(2, rows, 5, start + t, start + t + 1) for t in range(40)])
    for a, b in ((0, 40), (3, 4), (25, 27), (26, 40), (17, 31), (30, 31), (9, 9)):
        late = walks.rows(2, rows, 5, start + a, start + b)
        np.testing.assert_allclose(late, single[a:b].sum(0), atol=1e-12)
    since = np.array([0, 26, 11, 34])
    expected = [single[a:35, k].sum(0) for k, a in enumerate(since)]
    np.testing.assert_allclose(walks.rows(2, rows, 5, start + since, start + 35), expected, atol=1e-12)
    some = walks.rows(2, rows[[3, 1]], 5, start + since[[3, 1]], start + 35)
    np.testing.assert_allclose(some, np.array(expected)[[3, 1]], atol=1e-12)


@pytest.mark.parametrize("walks", WALKS, ids=["counted", "keyed"])
def test_its_distribution_is_that_of_eager_noise(walks: Walks) -> None:
    """Kolmogorov–Smirnov over 10,000 draws: of a gap, of a round, and of a row read three times."""
    rows = np.arange(2500)
    late = walks.rows(0, rows, 4, 5, 105).ravel() / 10
    assert stats.kstest(late, "norm").pvalue > 0.01
    assert stats.kstest(walks.rows(0, rows, 4, 77, 78).ravel(), "norm").pvalue > 0.01
    eager = np.random.default_rng(0).normal(size=(100, 10_000)).sum(0) / 10
    two: Any = stats.ks_2samp(late, eager)
    assert two.pvalue > 0.01
    parts = [walks.rows(0, rows, 4, a, b).ravel() / (b - a) ** 0.5 for a, b in ((5, 30), (30, 31), (31, 105))]
    correlation = np.corrcoef(parts)[np.triu_indices(3, 1)]
    assert np.abs(correlation).max() < 4 / 100
    assert abs(np.corrcoef(parts[0][::2], parts[0][1::2])[0, 1]) < 4 / 70  # neighbouring columns


def test_the_steps_of_a_walk_are_independent() -> None:
    steps = np.stack([WALKS[0].rows(1, np.arange(4000), 1, t, t + 1)[:, 0] for t in range(70)])
    found = np.cov(steps)
    assert np.abs(found - np.eye(70)).max() < 5 * 2**0.5 / 4000**0.5


@pytest.mark.parametrize("walks", WALKS, ids=["counted", "keyed"])
def test_noise_of_any_two_numbers_is_independent(walks: Walks) -> None:
    """Of two parameters, rows, columns, rounds: equal noise could be taken off by a difference."""
    rows = np.arange(1500)
    drawn = [
        walks.rows(p, rows + first, 2, t, t + 1)[:, c]
        for p in (0, 1)
        for first in (0, 5000)
        for t in (3, 4)
        for c in (0, 1)
    ]
    found = np.corrcoef(drawn)[np.triu_indices(len(drawn), 1)]
    assert np.abs(found).max() < 5 / 1500**0.5


def test_a_dense_parameter_has_noise_in_every_entry() -> None:
    drawn = WALKS[0].dense(4, 1001, 2, 3)
    assert drawn.shape == (1001,)
    assert len(np.unique(drawn)) == 1001
    assert stats.kstest(drawn, "norm").pvalue > 0.01


def test_chacha_gives_the_block_of_rfc_8439() -> None:
    """Section 2.3.2."""
    place = np.array([1, 0x09000000, 0x4A000000, 0], np.uint32)[:, None]
    expected = (
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )
    assert blocks(bytes(range(32)), place).tobytes().hex() == expected
    many = blocks(
        bytes(range(32)), np.repeat(place, 3, 1) + np.array([[0, 1, 0]], np.uint32) * (np.arange(4) == 0)[:, None]
    )
    assert many[0].tobytes() == many[2].tobytes() != many[1].tobytes()


def test_a_wide_row_shares_no_words_with_the_next_parameter() -> None:
    """Eight words a block, 65,536 blocks beside a parameter's number: a dense parameter of `LocalDP` may have more."""
    words, row, wide = Keyed(bytes(range(32))), np.zeros(1, np.int64), 8 * 2**16 + 64
    first, second = (words.draw(words.of(parameter, row), 0, wide)[0] for parameter in (0, 1))
    assert len(np.unique(np.concatenate([first, second]))) == 2 * wide
    far = np.array([0, 1, 2**32, 2**33, 2**40 + 1])  # rows of any table
    assert len(np.unique(words.draw(words.of(0, far), 0, 8))) == 8 * len(far)


def test_a_secret_makes_its_own_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = Secret.of("ab" * 16), Secret.of(b"\xac" * 32)
    drawn = [Walks(s.words(seed)).rows(0, np.arange(3), 2, 0, 1) for s in (one, other) for seed in (1, 2)]
    assert len({values.tobytes() for values in drawn}) == 4
    assert one.cohorts(1) != one.cohorts(2) != other.cohorts(2)
    monkeypatch.setenv("MY_KEY", "ab" * 16)
    assert Secret.of("env:MY_KEY") == one
    for wrong in ("abcd", "zz" * 32, b"short", 5, "env:NOT_THERE"):
        with pytest.raises(MethodError, match="secret"):
            Secret.of(wrong)
    assert "ab" * 16 not in repr(one)
