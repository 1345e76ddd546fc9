"""Step sizes, coins and bounds against their definitions; curvatures against eigenvalues."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mixture_problems import five_clients, some_submodels

from fedsub.families.mixture import Quadratics, curvature, estimate_constants
from fedsub.families.mixture import constants as theory

POSITIVE = st.floats(1e-3, 1e3)


@given(POSITIVE, POSITIVE, POSITIVE, st.integers(1, 1000), st.integers(1, 1000))
def test_best_coin_makes_both_terms_of_the_step_equal(L: float, mu: float, lam: float, m: int, n: int):
    p = theory.variance_reduced_coin(L, mu, lam, m)
    assert n * (1 - p) / (4 * L + mu * m) == pytest.approx(n * p / (4 * lam + mu))
    assert theory.variance_reduced_step(L, mu, lam, p, m, n) == pytest.approx(n * p / (4 * lam + mu))


@given(POSITIVE, POSITIVE, st.floats(0.01, 0.99), st.integers(1, 100))
def test_best_coin_of_l2gd_makes_the_smoothness_least(L: float, lam: float, other: float, n: int):
    p = theory.l2gd_coin(L, lam)
    least = theory.expected_smoothness(L, lam, p, n)
    assert least == pytest.approx((L + lam) / n)
    assert least <= theory.expected_smoothness(L, lam, other, n) * (1 + 1e-12)
    alpha = theory.l2gd_step(L, lam, other, n)
    assert theory.pull_rate(alpha, lam, other, n) <= 0.5 + 1e-12
    assert theory.local_rate(alpha, other, n) <= 0.5 / L * (1 + 1e-12)


def test_numbers_of_the_example():
    """n = 5, m = 8, L̃ = 10, μ = 1, λ = 2."""
    p = theory.variance_reduced_coin(10, 1, 2, 8)
    assert p == pytest.approx(9 / 57)
    assert theory.variance_reduced_step(10, 1, 2, p, 8, 5) == pytest.approx(5 / 57)
    assert theory.l2gd_coin(10, 2) == pytest.approx(1 / 6)
    assert theory.apgd1_momentum(1, 2) == pytest.approx((math.sqrt(3) - 1) / (math.sqrt(3) + 1))
    assert theory.apgd2_momentum(10, 1) == pytest.approx((math.sqrt(10) - 1) / (math.sqrt(10) + 1))
    assert theory.inner_condition(10, 1, 2) == 4
    assert theory.iapgd_tolerance(1, 2, 0) == 0.1
    assert theory.iapgd_tolerance(1, 2, 3) == pytest.approx(0.1 * (1 - 0.5 / math.sqrt(3)) ** 3)
    sizes = theory.katyusha(10, 1, 2, 1 / 6, 1 / 8, 5)
    assert sizes.eta == pytest.approx(5 / 48)
    assert sizes.theta2 == pytest.approx(0.5)
    assert sizes.theta1 == pytest.approx(math.sqrt(4 / 48))
    assert sizes.gamma == pytest.approx(sizes.eta / (4 * sizes.theta1))
    assert sizes.beta == pytest.approx(1 - sizes.gamma / 5)
    assert theory.refresh_for_communication(1 / 6) == pytest.approx(5 / 36)
    assert theory.refresh_for_computation(8) == 1 / 8


def test_lower_bounds():
    log = math.log(1e6)
    assert theory.communications_bound(100, 1, 4, 1e-6) == pytest.approx(2 * log)
    assert theory.communications_bound(9, 1, 400, 1e-6) == pytest.approx(3 * log)
    assert theory.proxes_bound(100, 1, 4, 1e-6) == pytest.approx(2 * log)
    assert theory.gradients_bound(100, 1, 1e-6) == pytest.approx(10 * log)
    assert theory.term_gradients_bound(8, 1, 2, 1e-6) == pytest.approx((2 + 4) * log)


@pytest.mark.parametrize("functions", [five_clients(), some_submodels()], ids=["quadratics", "submodels"])
def test_curvature_by_client(functions):
    found = curvature(functions)
    means = functions._mean_H.numpy() if isinstance(functions, Quadratics) else [H.mean(0) for H in functions.H]
    exact = [np.linalg.eigvalsh(H) for H in means]
    np.testing.assert_allclose(found.largest, [v.max() for v in exact], rtol=1e-6)
    np.testing.assert_allclose(found.smallest, [v.min() for v in exact], rtol=1e-6)
    one = curvature(functions, which=np.zeros(functions.clients, int))
    if isinstance(functions, Quadratics):
        np.testing.assert_allclose(one.largest, 10, rtol=1e-6)
        np.testing.assert_allclose(one.smallest, 1, rtol=1e-6)


def test_few_steps_find_the_extremes_of_many_dimensions():
    f = Quadratics.random(3, 200, terms=1, L=50, mu=0.5, seed=1)
    found = curvature(f, steps=30)
    assert (found.largest < 50 * (1 + 1e-6)).all()
    assert (found.largest > 0.98 * 50).all()
    assert (found.smallest > 0.5 * (1 - 1e-6)).all()
    assert (found.smallest < 2.0).all()


def test_estimated_constants():
    f = five_clients()
    exact, found = f.constants(), estimate_constants(f, margin=1.1)
    assert pytest.approx(1.1 * exact.L, rel=1e-6) == found.L
    assert found.mu == pytest.approx(exact.mu, rel=1e-6)
    assert found.L_terms == pytest.approx(11, rel=1e-6)
    assert estimate_constants(f, mu=0.25).mu == 0.25
    bent = Quadratics(np.array([[[1.0, 0.0], [0.0, -2.0]]]), np.zeros((1, 2)))
    found = estimate_constants(bent)
    assert (found.L, found.mu) == (pytest.approx(1.1), 0.0)


def test_curvature_of_a_flat_client_is_zero():
    f = Quadratics(np.stack([np.zeros((2, 2)), np.eye(2)]), np.zeros((2, 2)))
    found = curvature(f, {"x": torch.ones(2, 2, dtype=torch.float64)})
    np.testing.assert_allclose(found.largest, [0, 1], atol=1e-9)
