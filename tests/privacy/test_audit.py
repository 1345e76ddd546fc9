"""The attack: it finds what is not hidden, and does not contradict the accountant."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedsub.errors import MethodError
from fedsub.privacy.noise import Walks
from fedsub.study.audit import audit, chance, refuted


@pytest.mark.parametrize("quantile", [None, 0.5])
def test_without_noise_every_guess_is_right(quantile: float | None) -> None:
    found = audit(0.0, rounds=3, rate=1.0, canaries=300, delta=1e-12, quantile=quantile)
    assert found.correct == found.guesses == 60
    assert found.lower > 2.5
    assert found.upper == math.inf
    assert found.lower == pytest.approx(-math.log(0.05 ** (-1 / 60) - 1), abs=0.02)  # p^60 = 5 %, ε = logit p


@pytest.mark.parametrize("how", [{}, {"eager": True}, {"quantile": 0.5}])
def test_with_noise_the_bound_is_below_the_accountant(how: dict[str, Any]) -> None:
    found = audit(3.0, rounds=20, rate=0.5, canaries=1000, **how)
    assert 0.1 < found.lower < found.upper < 12


def test_noise_that_is_smaller_than_it_is_said_to_be_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Walks.rows
    monkeypatch.setattr(Walks, "rows", lambda *a, **k: 0.05 * whole(*a, **k))
    found = audit(4.0, rounds=10, rate=0.5, canaries=1000)
    assert found.lower > found.upper


def test_the_chance_is_the_binomial_tail_with_room_for_delta() -> None:
    exact = stats.binom.sf(79, 100, 1 / (1 + math.exp(-0.7)))
    assert chance(500, 100, 80, 0.7, 0.0) == pytest.approx(exact)
    mass = stats.binom.pmf(np.arange(101), 100, 1 / (1 + math.exp(-0.7)))
    alpha = max(mass[80 - i : 80].sum() / i for i in range(1, 81))
    assert chance(500, 100, 80, 0.7, 1e-4) == pytest.approx(exact + 1000 * 1e-4 * alpha)
    assert refuted(500, 100, 50, 1e-5) == 0
    bound = refuted(500, 100, 80, 1e-5)
    assert chance(500, 100, 80, bound, 1e-5) <= 0.05 < chance(500, 100, 80, bound + 1e-4, 1e-5)


def test_too_few_canaries_are_refused() -> None:
    with pytest.raises(MethodError, match="canaries"):
        audit(1.0, canaries=5)
    with pytest.raises(MethodError, match="nobody"):
        audit(1.0, canaries=20, rate=0.001)
