"""The three rates of FedAvg: worked out by hand, and against FedAvg itself, run with the theorems' step sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsub.errors import ConfigError
from fedsub.study import theory

REPEATS = 200
Array = np.ndarray


class Quadratics:
    """F_k = (x − e_k)ᵀ A_k (x − e_k) / 2 with eigenvalues in [mu, L], gradients with noise of σ_k² in all."""

    def __init__(self, seed: int, clients: int, size: int, mu: float, smoothness: float, *, alike: bool = False):
        rng = np.random.default_rng(seed)
        self.mu, self.smoothness, self.rng = mu, smoothness, rng
        values = rng.uniform(mu, smoothness, (clients, size))
        values[:, :2] = mu, smoothness
        turns = np.stack([np.linalg.qr(rng.standard_normal((size, size)))[0] for _ in range(clients)])
        self.a = np.einsum("kij,kj,klj->kil", turns, values, turns)
        self.e = rng.standard_normal((clients, size))
        self.sigma = rng.uniform(0.2, 1.0, clients)
        if alike:
            self.a[:], self.e[:], self.sigma[:] = self.a[0], self.e[0], self.sigma[0]
        self.largest = 0.0  # of E‖g‖², over clients and steps

    def optimum(self, p: Array) -> Array:
        return np.linalg.solve(np.einsum("k,kij->ij", p, self.a), np.einsum("k,kij,kj->i", p, self.a, self.e))

    def values(self, x: Array) -> Array:
        """F_k at x [..., d], for all k: [..., K]."""
        apart = x[..., None, :] - self.e
        return np.einsum("...ki,kij,...kj->...k", apart, self.a, apart) / 2

    def gradients(self, x: Array) -> Array:
        """One of each client at its own x [R, K, d]."""
        exact = np.einsum("kij,rkj->rki", self.a, x - self.e)
        size = x.shape[2]
        noisy = exact + self.rng.standard_normal(x.shape) * (self.sigma / np.sqrt(size))[:, None]
        self.largest = max(self.largest, float(((exact**2).sum(2).mean(0) + self.sigma**2).max()))
        return noisy


# Strongly convex, clients alike ---------------------------------------------------------------------


def test_local_sgd_terms_by_hand():
    bound = theory.local_sgd_bound(
        mu=1.0, smoothness=2.0, variance=3.0, gradient_bound=2.0, distance=5.0, workers=4, horizon=2, period=3,
        batch_size=2,
    )  # fmt: skip
    assert bound.shift == 33  # 16 κ + 1
    weights = 33**2 + 34**2
    assert bound.start == pytest.approx(33**3 * 5 / (2 * weights))
    assert bound.noise == pytest.approx(4 * 2 * (2 + 66) * 3 / (2 * 4 * weights))
    assert bound.drift == pytest.approx(256 * 2 * 4 * 9 * 2 / weights)
    assert (bound.lr(0), bound.lr(7)) == (4 / 33, 4 / 40)
    assert theory.longest_period(800, 4, 2) == 10


@pytest.mark.parametrize("period", [1, 5, 20])
def test_local_sgd_stays_below_its_bound(period: int):
    workers, horizon = 6, 400
    problem = Quadratics(1, workers, 4, 0.5, 2.0, alike=True)
    share = np.full(workers, 1 / workers)
    best, start = problem.optimum(share), np.full(4, 2.0)
    guess = theory.local_sgd_bound(
        mu=0.5, smoothness=2.0, variance=0, gradient_bound=0, distance=0, workers=workers, horizon=1, period=period
    )
    x = np.tile(start, (REPEATS, workers, 1))
    total, weights = np.zeros((REPEATS, 4)), 0.0
    for step in range(horizon):
        total += guess.weight(step) * x.mean(1)
        weights += guess.weight(step)
        x = x - guess.lr(step) * problem.gradients(x)
        if (step + 1) % period == 0:
            x[:] = x.mean(1, keepdims=True)
    gap = float((problem.values(total / weights)[:, 0] - problem.values(best)[0]).mean())
    bound = theory.local_sgd_bound(
        mu=0.5, smoothness=2.0, variance=float(problem.sigma[0] ** 2), gradient_bound=problem.largest**0.5,
        distance=float(((start - best) ** 2).sum()), workers=workers, horizon=horizon, period=period,
    )  # fmt: skip
    assert 0 < gap <= bound.total
    assert gap <= bound.start + bound.noise  # the part that does not grow with H is not far off: here it is enough


def test_local_sgd_is_linear_in_the_workers_up_to_its_longest_period():
    """With H = √(T/(Kb)) noise and drift together come to the rate, which falls like 1/(K b T)."""
    for workers, batch in ((1, 1), (4, 8), (64, 2)):
        horizon = 4_000_000
        options: dict[str, Any] = {
            "mu": 0.5,
            "smoothness": 2.0,
            "gradient_bound": 3.0,
            "workers": workers,
            "batch_size": batch,
        }
        period = int(theory.longest_period(horizon, workers, batch))
        bound = theory.local_sgd_bound(variance=9.0, distance=1.0, horizon=horizon, period=period, **options)
        rate = theory.local_sgd_rate(horizon=horizon, **options)
        assert rate == pytest.approx((12 + 768 * 4) * 9 / (0.5 * batch * workers * horizon))
        assert bound.noise + bound.drift == pytest.approx(rate, rel=0.02)


# Strongly convex, clients differ ---------------------------------------------------------------------


def test_non_iid_constants_by_hand():
    given_: dict[str, Any] = {
        "mu": 0.5, "smoothness": 2.0, "shares": [0.25, 0.75], "deviations": [2.0, 1.0], "gradient_bound": 3.0,
        "heterogeneity": 0.7, "distance": 5.0, "local_steps": 4,
    }  # fmt: skip
    bound = theory.non_iid_bound(**given_)
    assert (bound.kappa, bound.gamma, bound.sampling) == (4, 32, 0)
    noise = 0.25 + 0.5625 + 6 * 2 * 0.7 + 8 * 9 * 9
    assert bound.noise == pytest.approx(noise)
    assert bound.after(100) == pytest.approx(4 / 132 * (2 * noise / 0.5 + 0.25 * 32 * 5))
    assert bound.lr(3) == pytest.approx(2 / (0.5 * 35))
    few = theory.non_iid_bound(**given_, clients_per_round=3, replacement=True)
    assert few.sampling == pytest.approx(4 / 3 * 16 * 9)
    assert few.noise == bound.noise
    assert theory.non_iid_bound(**dict(given_, local_steps=50)).gamma == 50
    equal = dict(given_, shares=[0.25] * 4, deviations=[1.0] * 4)
    assert theory.non_iid_bound(**equal, clients_per_round=3).sampling == pytest.approx(4 / 3 * 16 * 9 / 3)
    assert theory.non_iid_bound(**equal, clients_per_round=4).sampling == 0
    rounds = bound.rounds_to(0.5)
    assert bound.after(4 * rounds) <= 0.5 < bound.after(4 * (rounds - 1))


@pytest.mark.parametrize("who", ["everybody", "with replacement", "without"])
def test_fedavg_stays_below_the_bound_of_li(who: str):
    """Random strongly convex quadratics, the theorem's decaying step sizes, the gap after every round."""
    clients, steps, rounds, k = 5, 4, 60, 2
    problem = Quadratics(3, clients, 4, 0.5, 2.0)
    p = np.full(clients, 1 / clients) if who == "without" else np.array([0.1, 0.15, 0.2, 0.25, 0.3])
    best, start = problem.optimum(p), np.full(4, 1.5)
    optimum = float(p @ problem.values(best))
    gap_of_optima = theory.heterogeneity(optimum, p, np.zeros(clients))  # F_k* = 0
    assert gap_of_optima > 0.1  # they do differ
    options: dict[str, Any] = {
        "mu": 0.5, "smoothness": 2.0, "shares": p, "deviations": problem.sigma, "heterogeneity": gap_of_optima,
        "distance": float(((start - best) ** 2).sum()), "local_steps": steps,
    }  # fmt: skip
    if who != "everybody":
        options |= {"clients_per_round": k, "replacement": who == "with replacement"}
    sizes = theory.non_iid_bound(gradient_bound=0.0, **options)
    w, gaps = np.tile(start, (REPEATS, 1)), []
    for r in range(rounds):
        x = np.repeat(w[:, None], clients, axis=1)
        for step in range(steps):
            x = x - sizes.lr(r * steps + step) * problem.gradients(x)
        if who == "everybody":
            w = np.einsum("k,rki->ri", p, x)
        else:
            chosen = np.stack([
                problem.rng.choice(clients, k, replace=who == "with replacement", p=p) for _ in range(REPEATS)
            ])  # fmt: skip
            w = np.take_along_axis(x, chosen[:, :, None], 1).mean(1)
        gaps.append(float((problem.values(w) @ p - optimum).mean()))
    bound = theory.non_iid_bound(gradient_bound=problem.largest**0.5, **options)
    above = np.array([bound.after(steps * (r + 1)) for r in range(rounds)])
    assert (np.array(gaps) > 0).all()
    assert (np.array(gaps) <= above).all()
    assert gaps[-1] < 0.2 * gaps[0]  # and it is a run that learns


def test_fedavg_with_exact_gradients_needs_its_rate_to_decay():
    """The reason for the decay: with a constant rate it ends Ω(η) away, with the theorem's it goes on."""
    problem = Quadratics(3, 5, 4, 0.5, 2.0)
    problem.sigma[:] = 0
    p = np.full(5, 0.2)
    best = problem.optimum(p)
    sizes = theory.non_iid_bound(
        mu=0.5, smoothness=2.0, shares=p, deviations=np.zeros(5), gradient_bound=1.0, heterogeneity=0.0, distance=1.0,
        local_steps=10,
    )  # fmt: skip
    ends = []
    for lr in (sizes.lr, lambda _: sizes.lr(0)):
        w = np.zeros(4)
        for r in range(400):
            x = np.tile(w, (1, 5, 1))
            for step in range(10):
                x = x - lr(10 * r + step) * problem.gradients(x)
            w = x[0].mean(0)
        ends.append(float(((w - best) ** 2).sum()))
    assert ends[0] < 1e-3 * ends[1]


@given(st.floats(0.1, 5), st.floats(0, 5), st.integers(1, 30), st.floats(1, 20))
def test_the_shape_of_the_rounds_is_least_at_its_best_local_steps(g: float, gap: float, k: int, kappa: float):
    options: dict[str, Any] = {
        "clients_per_round": k, "gradient_bound": g, "heterogeneity": gap, "shares": [0.4, 0.6],
        "deviations": [1.0, 2.0], "smoothness": kappa, "mu": 1.0,
    }  # fmt: skip
    best = theory.best_local_steps(**options)
    by_hand = ((0.16 + 1.44 + kappa * gap + kappa * g**2) / ((1 + 1 / k) * g**2)) ** 0.5
    assert best == pytest.approx(by_hand)
    least = theory.rounds_shape(best, **options)
    assert least == pytest.approx((1 + 1 / k) * best * g**2 + (0.16 + 1.44 + kappa * (gap + g**2)) / best + g**2)
    for other in (0.5 * best, 0.9 * best, 1.1 * best, 3 * best):
        assert theory.rounds_shape(other, **options) >= least * (1 - 1e-12)


# Not convex ------------------------------------------------------------------------------------------


def test_non_convex_terms_by_hand():
    bound = theory.non_convex_bound(
        gap=3.0, lr=0.1, horizon=50, workers=4, interval=5, smoothness=2.0, variance=0.6, gradient_bound=1.5
    )
    assert bound.start == pytest.approx(6 / 5)
    assert bound.drift == pytest.approx(4 * 0.01 * 25 * 2.25 * 4)
    assert bound.noise == pytest.approx(0.1 * 2 * 0.6 / 4)
    assert bound.total == pytest.approx(bound.start + bound.drift + bound.noise)
    assert theory.longest_interval(2, 128) == pytest.approx((128 / 8) ** 0.25)
    assert theory.longest_interval(3, 27) == pytest.approx(1)  # T = N³


@given(st.integers(1, 12), st.integers(1, 1000))
def test_the_corollary_s_rate_and_interval_give_the_root_of_NT(workers: int, times: int):
    horizon = workers**3 * times
    lr, interval = theory.non_convex_lr(workers, horizon, 2.0), theory.longest_interval(workers, horizon)
    options: dict[str, Any] = {"gap": 3.0, "smoothness": 2.0, "variance": 0.6, "gradient_bound": 1.5}
    rate = theory.non_convex_rate(workers=workers, horizon=horizon, **options)
    bound = theory.non_convex_bound(lr=lr, horizon=horizon, workers=workers, interval=int(interval + 1e-9), **options)
    assert bound.total <= rate * (1 + 1e-9)
    assert bound.start + bound.noise + 4 * 2.25 / (workers * horizon) ** 0.5 == pytest.approx(rate)


def test_parallel_sgd_on_waves_stays_below_its_bound():
    """f_i = Σ_j 1 − cos(x_j − c_ij): L = 1, f* in closed form, and from a start near a maximum."""
    workers, horizon, size = 3, 600, 4
    rng = np.random.default_rng(0)
    c = rng.normal(0, 0.6, (workers, size))
    together = np.exp(1j * c).mean(0)  # the mean of cosines is R cos(x − φ)
    radius, phase = np.abs(together), np.angle(together)
    start, sigma = phase + np.pi - 0.3, 0.5
    interval = int(theory.longest_interval(workers, horizon))
    lr = theory.non_convex_lr(workers, horizon, 1.0)
    assert interval >= 2
    x = np.tile(start, (REPEATS, workers, 1))
    met = []
    for step in range(horizon):
        slope = radius * np.sin(x.mean(1) - phase)
        met.append(float((slope**2).sum(1).mean()))
        x = x - lr * (np.sin(x - c) + rng.standard_normal(x.shape) * sigma / size**0.5)
        if (step + 1) % interval == 0:
            x[:] = x.mean(1, keepdims=True)
    options: dict[str, Any] = {
        "gap": float((radius - radius * np.cos(start - phase)).sum()), "smoothness": 1.0, "variance": sigma**2,
        "gradient_bound": (size + sigma**2) ** 0.5,
    }  # fmt: skip
    bound = theory.non_convex_bound(lr=lr, horizon=horizon, workers=workers, interval=interval, **options)
    assert 0 < np.mean(met) <= bound.total <= theory.non_convex_rate(workers=workers, horizon=horizon, **options)
    assert bound.total < max(met)  # it says something: less than where the slope is steepest


def test_refusals():
    with pytest.raises(ConfigError, match=r"up to 1/L = 0\.5"):
        theory.non_convex_bound(
            gap=1, lr=0.6, horizon=9, workers=1, interval=1, smoothness=2, variance=1, gradient_bound=1
        )
    with pytest.raises(ConfigError, match="T > N³ = 27"):
        theory.non_convex_rate(gap=1, workers=3, horizon=26, smoothness=1, variance=1, gradient_bound=1)
    options: dict[str, Any] = {
        "mu": 1.0, "smoothness": 2.0, "gradient_bound": 1.0, "heterogeneity": 0.0, "distance": 1.0, "local_steps": 2,
    }  # fmt: skip
    with pytest.raises(ConfigError, match="with the sum 1"):
        theory.non_iid_bound(shares=[0.5, 0.6], deviations=[1, 1], **options)
    with pytest.raises(ConfigError, match="replacement=True"):
        theory.non_iid_bound(shares=[0.4, 0.6], deviations=[1, 1], clients_per_round=1, **options)
    with pytest.raises(ConfigError, match="smoothness must be a finite number of at least 1"):
        theory.non_iid_bound(shares=[0.5, 0.5], deviations=[1, 1], **dict(options, smoothness=0.5))
