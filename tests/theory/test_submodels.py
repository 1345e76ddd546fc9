"""Theory: published numbers, identities, and the theorems' bounds on random instances."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsub.study import theory

SEEDS = st.integers(0, 2**32 - 1)


def random_holders(rng: np.random.Generator, clients: int, parameters: int) -> np.ndarray:
    """Random index sets of very different sizes: no client and no parameter is left with nothing."""
    holders = rng.random((clients, parameters)) < rng.uniform(0.05, 1, parameters)
    holders[rng.integers(clients, size=parameters), np.arange(parameters)] = True
    holders[np.arange(clients), rng.integers(parameters, size=clients)] = True
    return holders


def random_hessians(rng: np.random.Generator, holders: np.ndarray, low: float, high: float) -> np.ndarray:
    """H_i = Q Lambda Q^T on S(i), Lambda in [low, high] with both ends present where there is room."""
    out = np.zeros((len(holders), holders.shape[1], holders.shape[1]))
    for i, held in enumerate(holders):
        rows = np.flatnonzero(held)
        q, _ = np.linalg.qr(rng.standard_normal((len(rows), len(rows))))
        values = rng.uniform(low, high, len(rows))
        values[: 2 if len(rows) > 1 else 0] = (low, high)[: len(rows)]
        out[i][np.ix_(rows, rows)] = (q * values) @ q.T
    return out


# Gradient norms ------------------------------------------------------------------------------------

THREE = np.array([[2.0, 3.0, 0.0], [0.0, 5.0, 7.0]])
THREE_HOLDERS = np.array([[True, True, False], [False, True, True]])


def test_three_parameters():
    assert theory.heat_matrix(THREE_HOLDERS).tolist() == [1, 2, 1]
    assert theory.elementwise_norm(THREE, THREE_HOLDERS) == pytest.approx(42.5, rel=1e-15)
    assert theory.squared_norm(THREE) == pytest.approx(29.25, rel=1e-15)
    g = THREE.sum(axis=0)
    assert theory.elementwise_norm(THREE, THREE_HOLDERS) == (g[0] ** 2 + g[1] ** 2 / 2 + g[2] ** 2) / 2
    assert theory.squared_norm(THREE) == (g**2).sum() / 4


@given(SEEDS, st.integers(1, 8), st.integers(1, 8))
def test_elementwise_norm_is_the_metric_of_D(seed: int, clients: int, parameters: int):
    rng = np.random.default_rng(seed)
    holders = rng.random((clients, parameters)) < 0.5
    gradients = rng.standard_normal((clients, parameters)) * holders
    by_hand = sum(
        sum(gradients[i, m] for i in range(clients) if holders[i, m]) ** 2 / holders[:, m].sum()
        for m in range(parameters)
        if holders[:, m].any()
    )
    n = theory.heat_matrix(holders)
    mean = gradients.mean(axis=0)[n > 0]
    norm = theory.elementwise_norm(gradients, holders)
    assert norm == pytest.approx(by_hand / clients, rel=1e-12)
    assert norm == pytest.approx(mean @ np.diag(clients / n[n > 0]) @ mean, rel=1e-12)
    assert norm >= theory.squared_norm(gradients) * (1 - 1e-12)


def test_equal_norms_when_everyone_holds_everything():
    gradients = np.random.default_rng(0).standard_normal((5, 4))
    norm = theory.elementwise_norm(gradients, np.ones((5, 4), bool))
    assert norm == pytest.approx(theory.squared_norm(gradients), rel=1e-13)


def test_gradient_outside_the_submodel_is_refused():
    with pytest.raises(ValueError, match="does not hold"):
        theory.elementwise_norm(THREE + 1, THREE_HOLDERS)
    with pytest.raises(ValueError, match=r"\(2, 3\)"):
        theory.elementwise_norm(THREE, THREE_HOLDERS[:1])


@given(SEEDS, st.integers(2, 8), st.integers(1, 6))
@settings(max_examples=100, deadline=None)
def test_suboptimality_bounds(seed: int, clients: int, parameters: int):
    """f_i = (x - e_i)^T H_i (x - e_i) / 2, strongly convex with mu = 0.5 on S(i)."""
    rng = np.random.default_rng(seed)
    mu = 0.5
    holders = random_holders(rng, clients, parameters)
    local = random_hessians(rng, holders, mu, 4.0)
    centres = rng.standard_normal((clients, parameters))
    H = theory.hessian(local)
    best = np.linalg.solve(H, np.einsum("imk,ik->m", local, centres) / clients)
    x = best + rng.standard_normal(parameters) * 10 ** rng.uniform(-2, 2)
    gap = (x - best) @ H @ (x - best) / 2
    gradients = np.einsum("imk,ik->im", local, x - centres)

    elementwise = theory.suboptimality_bound(theory.elementwise_norm(gradients, holders), mu)
    n_min = int(theory.heat_matrix(holders).min())
    squared = theory.squared_norm(gradients)
    loose = theory.suboptimality_bound_from_squared(squared, mu, n_min, clients)
    assert gap <= elementwise * (1 + 1e-9)
    assert elementwise <= loose * (1 + 1e-9)


def test_squared_norm_needs_the_heat_factor():
    """Example 1 at (1, 0): ||grad||^2 / (2 mu) is N times too small; the element-wise bound is tight."""
    clients, mu = 50, 2.0
    holders = np.ones((clients, 2), bool)
    holders[1:, 0] = False
    gradients = np.zeros((clients, 2))
    gradients[0, 0] = 2.0  # of w1^2 at w1 = 1
    gap = 1 / clients
    squared = theory.squared_norm(gradients)
    assert squared / (2 * mu) == pytest.approx(gap / clients)
    assert theory.suboptimality_bound(theory.elementwise_norm(gradients, holders), mu) == pytest.approx(gap)
    assert theory.suboptimality_bound_from_squared(squared, mu, 1, clients) == pytest.approx(gap)


# Conditioning --------------------------------------------------------------------------------------


def test_condition_bounds_on_200_convex_instances():
    rng = np.random.default_rng(0)
    worst = 1.0
    for _ in range(200):
        clients, parameters = int(rng.integers(2, 30)), int(rng.integers(2, 10))
        holders = random_holders(rng, clients, parameters)
        H = theory.hessian(random_hessians(rng, holders, 1.0, 3.0))
        n = theory.heat_matrix(holders)
        kappa = theory.condition_number(H)
        kappa_hat = theory.condition_number(theory.preconditioned(H, n, clients))
        assert kappa >= n.max() / n.min() / 3 * (1 - 1e-9)
        assert kappa >= theory.condition_lower_bound(n, 0, 1, 3) * (1 - 1e-9)
        assert kappa_hat <= theory.preconditioned_upper_bound(0, 1, 3) * (1 + 1e-9)
        _check_k(H, n, clients, 3.0)
        worst = max(worst, n.max() / n.min())
    assert worst > 5  # the instances are dispersed, so the first bound says something


def test_condition_bounds_with_non_convex_clients():
    rng = np.random.default_rng(1)
    tried = 0
    while tried < 100:
        clients, parameters = int(rng.integers(6, 40)), int(rng.integers(2, 8))
        holders = random_holders(rng, clients, parameters)
        local = random_hessians(rng, holders, 1.0, 1.5)
        wrong = rng.random(clients) < 0.15
        local[wrong] *= -1
        n = theory.heat_matrix(holders)
        alpha = float((holders[wrong].sum(axis=0) / n).max())
        if not wrong.any() or (1 - alpha) * 1.0 - alpha * 1.5 <= 0.01:
            continue
        tried += 1
        H = theory.hessian(local)
        kappa_hat = theory.condition_number(theory.preconditioned(H, n, clients))
        assert theory.condition_number(H) >= theory.condition_lower_bound(n, alpha, 1, 1.5) * (1 - 1e-9)
        assert kappa_hat <= theory.preconditioned_upper_bound(alpha, 1, 1.5) * (1 + 1e-9)
        _check_k(H, n, clients, 1.5)


def _check_k(H: np.ndarray, n: np.ndarray, clients: int, rho2: float) -> None:
    k, k_hat = theory.k_bound(H, n, clients, rho2), theory.k_hat_bound(H, n, clients, rho2)
    assert theory.condition_number(H) <= k * (1 + 1e-9)
    assert theory.condition_number(theory.preconditioned(H, n, clients)) <= k_hat * (1 + 1e-9)
    assert k_hat <= k * (1 + 1e-9)


@given(SEEDS, st.integers(1, 20), st.integers(1, 8))
def test_diagonal_hessians(seed: int, clients: int, parameters: int):
    """H_i = 2 I on S(i): kappa(H) is the dispersion, and FedSubAvg removes all of it."""
    holders = random_holders(np.random.default_rng(seed), clients, parameters)
    H = theory.hessian([np.diag(2.0 * held) for held in holders])
    n = theory.heat_matrix(holders)
    assert theory.condition_number(H) == pytest.approx(n.max() / n.min(), rel=1e-12)
    assert theory.condition_number(theory.preconditioned(H, n, clients)) == pytest.approx(1, rel=1e-12)
    # All bounds are tight here.
    assert theory.condition_lower_bound(n, 0, 2, 2) == pytest.approx(n.max() / n.min())
    assert theory.k_bound(H, n, clients, 2) == pytest.approx(n.max() / n.min(), rel=1e-12)
    assert theory.k_hat_bound(H, n, clients, 2) == pytest.approx(1, rel=1e-12)


def test_preconditioned_is_a_product_with_the_root_of_D():
    H = np.array([[2.0, 0.5], [0.5, 1.0]])
    root = np.diag(np.sqrt([4 / 1, 4 / 3]))
    np.testing.assert_allclose(theory.preconditioned(H, [1, 3], 4), root @ H @ root, rtol=1e-14)


def test_unheld_parameter_keeps_coefficient_one():
    H = np.diag([1.0, 0.0])  # 4 clients, so that the root of N / n_m is exact
    assert theory.preconditioned(H, [1, 0], 4).tolist() == [[4.0, 0.0], [0.0, 0.0]]
    assert theory.condition_number(H) == float("inf")
    assert theory.condition_lower_bound([4, 0, 2], 0, 1, 1) == 2


def test_theorems_need_enough_convexity():
    with pytest.raises(ValueError, match=r"alpha=0\.25"):
        theory.condition_lower_bound([1, 2], 0.25, 1, 3)  # exactly 0
    with pytest.raises(ValueError, match="smaller alpha"):
        theory.preconditioned_upper_bound(0.5, 1, 3)
    with pytest.raises(ValueError, match="holder"):
        theory.condition_lower_bound([0, 0], 0, 1, 3)
    assert theory.preconditioned_upper_bound(0.1, 1, 3) == pytest.approx(3 / (1 - 0.1 * 4))


# Rate ----------------------------------------------------------------------------------------------


def test_rate_bound_terms():
    """One set of constants, worked out by hand."""
    bound = theory.rate_bound(
        gap=3.0, lr=0.1, horizon=20, n_clients=12, clients_per_round=4, local_steps=5,
        n_min=2, smoothness=1.5, variance=0.8, gradient_bound=2.0,
    )  # fmt: skip
    assert bound.start == pytest.approx(3.0)  # 6 / 2
    assert bound.noise == pytest.approx(0.12)  # 0.24 / 2
    assert bound.drift == pytest.approx(54.0)  # 48 * 0.01 * 25 * 4 * 2.25 / 2
    assert bound.sampling == pytest.approx(45.0)  # 2.4 * 25 * 4 * 1.5 / 8
    assert bound.total == pytest.approx(102.12)


@given(st.integers(1, 50), st.integers(1, 50), st.integers(0, 950), st.integers(1, 1000))
def test_suggested_lr_gives_the_rate(n_min: int, k: int, more: int, times: int):
    """From T = n_min K^3 / N on, every term is at most its constant times sqrt(N / (n_min K T))."""
    n = max(n_min, k) + more
    horizon = (n_min * k**3 // n + 1) * times
    lr = theory.suggested_lr(n_min, k, n, horizon)
    assert lr == pytest.approx((n_min * k / (n * horizon)) ** 0.5)
    bound = theory.rate_bound(
        gap=1, lr=lr, horizon=horizon, n_clients=n, clients_per_round=k, local_steps=1,
        n_min=n_min, smoothness=1, variance=1, gradient_bound=1,
    )  # fmt: skip
    rate = (n / (n_min * k * horizon)) ** 0.5 * (1 + 1e-9)
    assert bound.start <= 2 * rate
    assert bound.noise <= 2 * rate
    assert bound.drift <= 4 * rate
    assert bound.sampling <= 2 * rate


# Closed forms --------------------------------------------------------------------------------------


def simulate_example1(n: int, rounds: int, lr: float, start, steps: int, *, submodels: bool) -> np.ndarray:
    """The algorithms of sections 2.1 and 3.1 step by step: exact gradients, everyone takes part."""
    holders = np.ones((n, 2), bool)
    holders[1:, 0] = False
    x = np.array(start, float)
    path = [x.copy()]
    for _ in range(rounds):
        local = np.tile(x, (n, 1))
        for _ in range(steps):
            local -= lr * 2 * local * holders
        total = ((local - x) * holders).sum(axis=0)
        x = x + total / (holders.sum(axis=0) if submodels else n)
        path.append(x.copy())
    return np.array(path)


@pytest.mark.parametrize("steps", [1, 3, 10])
@pytest.mark.parametrize(("n", "lr"), [(1, 0.3), (7, 0.05), (100, 0.5), (20, 0.7)])
def test_example1_equals_the_algorithm(n: int, lr: float, steps: int):
    got = theory.example1(n, 25, lr, (3.0, -2.0), steps)
    assert got.fedavg.shape == got.fedsubavg.shape == (26, 2)
    for path, submodels in ((got.fedavg, False), (got.fedsubavg, True)):
        want = simulate_example1(n, 25, lr, (3.0, -2.0), steps, submodels=submodels)
        np.testing.assert_allclose(path, want, rtol=1e-9, atol=1e-15)


def test_example1_as_printed():
    got = theory.example1(10, 6, 0.5, (4.0, 9.0))
    r = np.arange(7)
    np.testing.assert_allclose(got.fedavg[:, 0], (1 - 1 / 10) ** r * 4.0, rtol=1e-14)
    assert got.fedavg[0, 1] == 9.0
    assert not got.fedavg[1:, 1].any()
    assert not got.fedsubavg[1:].any()  # lr 0.5 is exact in one round
    got = theory.example1(10, 6, 0.1, (4.0, 9.0))
    np.testing.assert_allclose(got.fedavg[:, 0], (1 - 0.2 / 10) ** r * 4.0, rtol=1e-14)
    np.testing.assert_allclose(got.fedsubavg, np.outer(0.8**r, [4.0, 9.0]), rtol=1e-14)


def test_drift_fixed_point():
    a, e, lr, steps = np.array([1.0, 4.0, 10.0]), np.array([0.0, 5.0, -1.0]), 0.02, 10
    point = theory.drift_fixed_point(a, e, lr, steps)
    assert point == pytest.approx(1.1793039910, abs=5e-11)
    assert theory.true_optimum(a, e) == pytest.approx(0.6666666667, abs=5e-11)
    assert theory.drift_fixed_point(a, e, lr, 1) == pytest.approx(theory.true_optimum(a, e), rel=1e-13)

    x = 0.0
    for _ in range(300):  # FedAvg itself
        local = np.full(3, x)
        for _ in range(steps):
            local -= lr * a * (local - e)
        x = local.mean()
    assert x == pytest.approx(point, rel=1e-12)


# Corollary 1 ---------------------------------------------------------------------------------------

PROBLEM: dict[str, Any] = {
    "gap": 3.0, "n_clients": 12, "clients_per_round": 4, "local_steps": 5, "n_min": 2, "smoothness": 1.5,
    "variance": 0.8, "gradient_bound": 2.0,
}  # fmt: skip


def test_corollary_by_hand():
    found = theory.corollary(**PROBLEM)
    assert found.constant == pytest.approx(6 + 2 * 1.5 * 0.8 / 3 + 4 * 25 * 4 * 2.25 + 2 * 25 * 4 * 1.5)
    assert found.enough == pytest.approx(2 * 64 / 12)
    assert found.after(100) == pytest.approx(found.constant * (12 / (2 * 4 * 100)) ** 0.5)
    assert found.rounds_to(10.0) == int(np.ceil(1.5 * (found.constant / 10) ** 2))
    assert found.after(found.rounds_to(10.0)) <= 10 < found.after(found.rounds_to(10.0) - 1)
    assert found.rounds_to(1e9) == 11  # not before the corollary begins
    with pytest.raises(ValueError, match="begins at"):
        found.after(10)


@given(st.integers(1, 9), st.integers(1, 30), st.integers(0, 400), st.integers(1, 1000))
def test_corollary_is_above_the_bound_from_enough_rounds_on(n_min: int, k: int, more: int, times: int):
    problem = dict(PROBLEM, n_min=n_min, clients_per_round=k, n_clients=max(n_min, k) + more)
    found = theory.corollary(**problem)
    horizon = int(np.ceil(found.enough)) * times
    lr = theory.suggested_lr(n_min, k, problem["n_clients"], horizon)
    bound = theory.rate_bound(lr=lr, horizon=horizon, **problem).total
    assert bound <= found.after(horizon) * (1 + 1e-9)
    if horizon == found.enough:
        assert bound == pytest.approx(found.after(horizon))


def test_fedsubavg_stays_below_its_bound():
    """Waves on submodels, sampled clients, noise: the mean of ∇fᵀD∇f over a run, with the theorem's rate."""
    rng = np.random.default_rng(3)
    clients, size, k, steps, horizon, repeats = 8, 5, 3, 3, 300, 60
    held = random_holders(rng, clients, size)
    c, sigma = rng.normal(0, 0.5, (clients, size)), 0.3
    n = theory.heat_matrix(held)
    lr = theory.suggested_lr(int(n.min()), k, clients, horizon)
    x, met = np.full((repeats, size), 2.5), []
    start = ((1 - np.cos(2.5 - c)) * held).sum() / clients
    for _ in range(horizon):
        slopes = np.sin(x[:, None] - c) * held
        met.append(float(((slopes.mean(1) ** 2) * clients / n).sum(1).mean()))
        y = np.repeat(x[:, None], clients, axis=1)
        for _ in range(steps):
            y = y - lr * (np.sin(y - c) + sigma / size**0.5 * rng.standard_normal(y.shape)) * held
        chosen = np.stack([rng.permutation(clients)[:k] for _ in range(repeats)])
        x = x + np.take_along_axis(y - x[:, None], chosen[:, :, None], 1).sum(1) * clients / (n * k)
    problem: dict[str, Any] = {
        "gap": start, "n_clients": clients, "clients_per_round": k, "local_steps": steps, "n_min": int(n.min()),
        "smoothness": 1.0, "variance": sigma**2, "gradient_bound": (size + sigma**2) ** 0.5,
    }  # fmt: skip
    assert 0 < np.mean(met) <= theory.rate_bound(lr=lr, horizon=horizon, **problem).total
    assert theory.rate_bound(lr=lr, horizon=horizon, **problem).total <= theory.corollary(**problem).after(horizon)
