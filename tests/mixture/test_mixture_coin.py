"""Methods with a coin: unbiased steps, switches, noise floors, convergence, and what is refused."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from mixture_problems import LAM, WORST, five_clients, run, squared

from fedsub.errors import MethodError
from fedsub.families.mixture import L2GD, L2SGD, L2SGD2, LGD, AL2SGDPlus, Constants, L2GDPlus, L2SGDPlus, Quadratics
from fedsub.families.mixture import constants as theory
from fedsub.families.mixture.functions import copy, minus
from fedsub.families.mixture.solver import draw_terms, toss

COINS = [L2GD(lam=LAM), L2GDPlus(lam=LAM), L2SGD(lam=LAM), L2SGD2(lam=LAM), L2SGDPlus(lam=LAM)]


# The step on average ---------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", COINS, ids=lambda s: s.name)
@pytest.mark.parametrize("at_solution", [True, False])
def test_expected_step_is_the_gradient_of_F(solver, at_solution: bool):
    """Over the coin and, for every client, its terms; with whatever variates 40 iterations left behind."""
    f = five_clients()
    before = run(solver, f, WORST, 40)
    x = (
        f.solution(LAM)
        if at_solution
        else {"x": torch.randn(5, 3, dtype=torch.float64, generator=torch.manual_seed(0))}
    )
    saved = {name: leaf.clone() for name, leaf in before.tensors().items()}
    saved["x/x"] = x["x"]
    p, alpha = before.number("p"), before.number("alpha")

    def moved(averaging: bool, which: np.ndarray | None = None) -> torch.Tensor:
        before.restore(saved)
        if averaging:
            solver.average(before, f)
        else:
            solver.train(before, f, which)
        return before.x["x"] - x["x"]

    # A client's step depends on its own term alone.
    local = sum(moved(False, np.full(5, j)) for j in range(8)) / 8 if solver.stochastic else moved(False)
    step = (1 - p) * local + p * moved(True)
    direction = f.gradient(x)[1]["x"] + LAM * (x["x"] - f.mean(x)["x"])
    torch.testing.assert_close(step, -alpha / 5 * direction, rtol=1e-9, atol=1e-12)
    if at_solution:
        assert step.abs().max() < 1e-12


def test_drift_is_the_sum_of_the_variates():
    f = Quadratics.random(terms=[1, 4, 2, 8, 3], L=10, mu=1, seed=3)
    state = run(L2SGDPlus(lam=LAM), f, WORST, 300)
    assert state.memory is not None
    expected = state.memory.mean["x"] + state.trees["psi"]["x"]
    torch.testing.assert_close(state.trees["drift"]["x"], expected, rtol=0, atol=1e-12)


def test_first_steps_by_hand():
    """β, γ and the formulas of L2GD+ on two scalars, against numbers computed here."""
    f = Quadratics(np.array([1.0, 3.0]), np.array([2.0, -1.0]))
    x = np.array([0.0, 0.0])
    solver = L2GD(lam=0.5, p=0.25, alpha=0.2)
    state = solver.begin(f, f.constants())
    solver.train(state, f, None)
    x = x - 0.2 / (2 * 0.75) * np.array([1.0, 3.0]) * (x - np.array([2.0, -1.0]))
    np.testing.assert_allclose(state.x["x"].view(-1), x)
    solver.average(state, f)
    gamma = 0.2 * 0.5 / (2 * 0.25)
    np.testing.assert_allclose(state.x["x"].view(-1), (1 - gamma) * x + gamma * x.mean())


# Communication ---------------------------------------------------------------------------------------


def test_switches_are_what_communicates():
    f, solver = five_clients(), L2GD(lam=LAM, p=0.3)
    k, p, averaged, expected = 4000, 0.3, True, 0
    state = solver.begin(f, WORST)
    for number in range(1, k + 1):
        step = solver.step(state, f, number, 7)
        assert step.averaged == toss(p, number, 7)
        assert step.communicated == (step.averaged and not averaged)
        averaged, expected = step.averaged, expected + step.communications
    assert int(state.numbers["communications"]) == expected
    q = p * (1 - p)
    sigma = math.sqrt(k * (q - 3 * q * q))  # neighbouring switches exclude each other
    assert abs(expected - q * k) < 4 * sigma
    local = k - sum(toss(p, number, 7) for number in range(1, k + 1))
    assert int(state.numbers["gradients"]) == local * f.terms.sum()


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_expected_switches_exactly(p: float):
    """Over all sequences of coins: p(1−p)(k−1) if the start counts as averaged, else p more."""
    k, averaged_start, local_start = 8, 0.0, 0.0
    for coins in itertools.product((0, 1), repeat=k):
        weight = math.prod(p if c else 1 - p for c in coins)
        switches = sum(a < b for a, b in itertools.pairwise(coins))
        averaged_start += weight * switches
        local_start += weight * (switches + coins[0])
    assert averaged_start == pytest.approx(theory.expected_communications(p, k))
    assert local_start == pytest.approx(theory.expected_communications(p, k) + p)


def test_a_run_of_averaging_follows_the_mean():
    """What one communication must carry: in L2GD the mean stays, in L2SGD+ it moves by the mean stored gradient."""
    f = five_clients()
    state = run(L2GD(lam=LAM), f, WORST, 30)
    mean = f.mean(state.x)["x"]
    L2GD(lam=LAM).average(state, f)
    torch.testing.assert_close(f.mean(state.x)["x"], mean, rtol=0, atol=1e-14)

    solver = L2SGDPlus(lam=LAM, p=0.5)
    state = run(solver, f, WORST, 30)
    assert state.memory is not None
    mean, direction = f.mean(state.x)["x"], f.mean(state.memory.mean)["x"]
    solver.average(state, f)
    assert direction.abs().max() > 0.1
    torch.testing.assert_close(f.mean(state.x)["x"], mean - state.number("alpha") / 5 * direction, rtol=0, atol=1e-13)
    steps = [solver.step(state, f, number, 3) for number in range(1, 60)]
    for now, after in itertools.pairwise(steps):
        assert now.vectors == (2 if now.averaged and after.averaged else 1)


def test_terms_are_drawn_uniformly_from_each_clients_own():
    terms = np.array([1, 2, 5])
    drawn = np.stack([draw_terms(terms, number, 1) for number in range(4000)])
    assert (drawn[:, 0] == 0).all()
    for i, m in enumerate(terms):
        counts = np.bincount(drawn[:, i], minlength=m)
        assert len(counts) == m
        assert np.abs(counts - 4000 / m).max() < 4 * math.sqrt(4000 / m)
    assert abs(np.corrcoef(drawn[:, 1], drawn[:, 2])[0, 1]) < 4 / math.sqrt(4000)


# Convergence -----------------------------------------------------------------------------------------


def test_noise_floor_of_l2gd_and_none_of_l2gd_plus():
    f = five_clients()
    constants, x = f.constants(), f.solution(LAM)
    solver = L2GD(lam=LAM)
    state, errors = solver.begin(f, constants), []
    for number in range(1, 3001):
        solver.step(state, f, number, 0)
        errors.append(squared(f, state.x, x))
    p, alpha = state.number("p"), state.number("alpha")
    assert p == pytest.approx(LAM / (constants.L + LAM))
    residual = minus(x, f.mean(x))
    gradients = f.gradient(x)[1]
    noise = theory.gradient_noise(f.dot(gradients, gradients).sum(), f.dot(residual, residual).sum(), LAM, p, 5)
    bound = theory.noise_floor(alpha, noise, constants.mu, 5)
    assert 1e-3 < np.mean(errors[500:]) < bound
    assert squared(f, run(L2GDPlus(lam=LAM), f, constants, 2000).x, x) < 1e-25


def test_early_error_of_l2gd_is_below_its_bound():
    """(1−αμ/n)^k ‖x⁰ − x(λ)‖² + floor, for the mean over seeds."""
    f = five_clients()
    constants, x, solver = f.constants(), f.solution(LAM), L2GD(lam=LAM)
    states = [solver.begin(f, constants) for _ in range(20)]
    p, alpha = states[0].number("p"), states[0].number("alpha")
    residual, gradients = minus(x, f.mean(x)), f.gradient(x)[1]
    noise = theory.gradient_noise(f.dot(gradients, gradients).sum(), f.dot(residual, residual).sum(), LAM, p, 5)
    first = squared(f, states[0].x, x)
    for number in range(1, 41):
        for seed, state in enumerate(states):
            solver.step(state, f, number, seed)
        bound = theory.contraction(alpha, constants.mu, 5) ** number * first
        bound += theory.noise_floor(alpha, noise, constants.mu, 5)
        assert np.mean([squared(f, state.x, x) for state in states]) < bound


def test_l2sgd_plus_converges_where_l2sgd_stalls():
    f = five_clients()
    x = f.solution(LAM)
    plus = run(L2SGDPlus(lam=LAM), f, WORST, 20_000)
    assert squared(f, plus.x, x) < 1e-25
    p, alpha = plus.number("p"), plus.number("alpha")
    for solver in (L2SGD(lam=LAM, p=p, alpha=alpha), L2SGD2(lam=LAM, p=p, alpha=alpha)):
        state, least = run(solver, f, WORST, 500), math.inf
        for number in range(501, 3001):
            solver.step(state, f, number, 0)
            least = min(least, squared(f, state.x, x))
        assert least > 0.1


class AfterTheStep(L2SGDPlus):
    """Ψ taken at the point after the step."""

    def average(self, state, functions):
        super().average(state, functions)
        late = LAM * (state.x["x"] - functions.mean(state.x)["x"])
        state.trees["drift"]["x"].add_(late - state.trees["psi"]["x"])
        state.trees["psi"]["x"].copy_(late)


class WrongSign(L2SGDPlus):
    """+ (1/p−1) Ψ where − belongs."""

    def average(self, state, functions):
        p, alpha, psi = state.number("p"), state.number("alpha"), copy(state.trees["psi"])
        super().average(state, functions)
        state.x["x"].sub_(psi["x"], alpha=2 * alpha / 5 * (1 / p - 1))


def test_a_wrong_sign_destroys_convergence_and_a_late_variate_does_not():
    """A variate may be taken at any point that tends to x(λ); its coefficient must keep the step unbiased."""
    f = five_clients()
    assert not squared(f, run(WrongSign(lam=LAM), f, WORST, 1500).x, f.solution(LAM)) < 0.1
    for solver in (L2SGDPlus(lam=LAM), AfterTheStep(lam=LAM)):
        assert squared(f, run(solver, f, WORST, 1500).x, f.solution(LAM)) < 1e-20


def test_rate_of_l2sgd_plus():
    f = five_clients()
    x, first = f.solution(LAM), squared(f, f.start(), f.solution(LAM))
    state = run(L2SGDPlus(lam=LAM), f, WORST, 1500)
    assert squared(f, state.x, x) < theory.contraction(state.number("alpha"), 1.0, 5) ** 1500 * first


@pytest.mark.parametrize("local_steps", [1, 2, 5])
def test_lgd_is_correct_for_one_local_step_only(local_steps: int):
    f = five_clients()
    state = run(LGD(local_steps=local_steps), f, f.constants(), 120 * (local_steps + 1))
    assert int(state.numbers["communications"]) == 120
    error = squared(f, state.x, f.solution(math.inf))
    assert error < 1e-20 if local_steps == 1 else error > 1e-3


@pytest.mark.parametrize("solver", [*COINS, AL2SGDPlus(lam=LAM)], ids=lambda s: s.name)
def test_without_a_pull_nobody_communicates(solver):
    f = Quadratics.random(terms=1, L=10, mu=1, seed=2)
    state = run(type(solver)(lam=0.0), f, f.constants(), 1500)
    assert int(state.numbers["communications"]) == 0
    assert state.number("p") == 0
    assert squared(f, state.x, f.solution(0.0)) < 1e-20


# What is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(lam=-1.0), "got -1.0"),
        (dict(lam=math.inf), "got inf"),
        (dict(lam=math.nan), "got nan"),
        (dict(lam=1.0, p=0.0), "never averages"),
        (dict(lam=1.0, p=1.0), "never trains"),
        (dict(lam=1.0, p=-0.5), "got -0.5"),
        (dict(lam=1.0, alpha=0.0), "alpha"),
    ],
)
def test_bad_settings(settings: dict, message: str):
    for solver in (L2GD, L2GDPlus, L2SGD, L2SGD2, L2SGDPlus):
        with pytest.raises(MethodError, match=message):
            solver(**settings)


def test_overshooting_pull_and_lgd():
    f = five_clients()
    with pytest.raises(MethodError, match=r"2 times the way.*alpha of at most"):
        L2GD(lam=2.0, p=0.5, alpha=2.5).begin(f, WORST)
    L2GD(lam=2.0, p=0.5, alpha=1.25).begin(f, WORST)
    with pytest.raises(MethodError, match="local_steps"):
        LGD(local_steps=0)


def test_constants_are_checked():
    for bad in (dict(L=0.0), dict(L=math.inf), dict(L=1.0, mu=2.0), dict(L=1.0, mu=-1.0), dict(L=1.0, L_terms=0.0)):
        with pytest.raises(MethodError):
            Constants(**bad)
