"""APGD1, APGD2, IAPGD and AL2SGD+: the printed numbers, local proxes, and what is counted."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from mixture_problems import LAM, WORST, five_clients, run, some_submodels, squared

from fedsub import rng
from fedsub.errors import MethodError
from fedsub.families.mixture import APGD1, APGD2, IAPGD, AL2SGDPlus, Constants, Quadratics
from fedsub.families.mixture import constants as theory
from fedsub.families.mixture.functions import norms
from fedsub.families.mixture.inner import local_prox
from fedsub.families.mixture.solver import toss


class NoProx:
    """The same functions without their exact prox."""

    def __init__(self, functions):
        self.functions = functions

    def __getattr__(self, name: str):
        if name == "prox":
            raise AttributeError(name)
        return getattr(self.functions, name)


def without_prox(functions: Quadratics) -> Any:  # forwards what the protocol asks for, which no type says
    return NoProx(functions)


@pytest.mark.parametrize("solver", [APGD1(lam=LAM), APGD2(lam=LAM)], ids=lambda s: s.name)
@pytest.mark.parametrize("exact", [True, False])
def test_twenty_iterations(solver, exact: bool):
    f = five_clients()
    state = run(solver, f if exact else without_prox(f), f.constants(), 20)
    assert squared(f, state.x, f.solution(LAM)) < 1e-18
    assert int(state.numbers["communications"]) == 20
    assert int(state.numbers["proxes"]) == (100 if solver.name == "apgd1" else 0)
    if solver.name == "apgd2":
        assert int(state.numbers["gradients"]) == 20 * 40


@pytest.mark.parametrize("lam", [0.01, 2.0, 50.0])
def test_rates_hold_at_the_worst_condition(lam: float):
    """Local functions that do have curvature 1 and 10: F − F* falls as promised."""
    f = Quadratics.random(terms=1, L=10, mu=1, seed=4)
    constants, best = f.constants(), f.solution(lam)

    def gap(x):
        spread = x["x"] - f.mean(x)["x"]
        return float(f.gradient(x)[0].mean()) + lam / 2 * float(spread.square().sum()) / 5

    least, start = gap(best), f.start()
    first = gap(start) - least + 0.5 * constants.mu / 5 * squared(f, start, best)
    rates = (APGD1(lam=lam), theory.apgd1_rate(1.0, lam)), (APGD2(lam=lam), theory.apgd2_rate(10.0, 1.0))
    for solver, rate in rates:
        state = solver.begin(f, constants)
        for k in range(1, 31):
            solver.step(state, f, k, 0)
            assert gap(state.x) - least <= rate**k * first + 1e-13


def test_inexact_proxes_reach_the_solution_with_few_gradients():
    f = five_clients()
    inexact = run(IAPGD(lam=LAM), f, f.constants(), 60)
    assert squared(f, inexact.x, f.solution(LAM)) < 1e-22
    exact = run(APGD1(lam=LAM), without_prox(f), f.constants(), 60)
    assert int(inexact.numbers["gradients"]) < int(exact.numbers["gradients"])
    assert int(inexact.numbers["proxes"]) == 60 * 5


def test_local_prox_stops_each_client_by_itself():
    f = Quadratics.random(terms=[1, 2, 3, 4, 5], L=10, mu=1, seed=5)
    centre = {"x": torch.ones(5, 3, dtype=torch.float64)}
    start = f.prox(centre, LAM)
    start["x"][3:] += 1.0  # three clients are there already
    constants = f.constants()
    solved = local_prox(f, constants, centre, LAM, start, tolerance=1e-8)
    gradient = f.gradient(solved.x)[1]["x"] + LAM * (solved.x["x"] - centre["x"])
    assert norms(f, {"x": gradient}).max() < 1e-8
    assert norms(f, {"x": solved.x["x"] - f.prox(centre, LAM)["x"]})[:3].max() < 1e-13
    steps = (solved.gradients - (1 + 2 + 3)) / 9  # the first three clients: one gradient each; then clients 4 and 5
    assert 5 < steps < 60


def test_local_prox_in_float32():
    f = five_clients()

    class Single:
        clients, terms, dot = (
            f.clients,
            f.terms,
            staticmethod(lambda x, y: (x["x"].double() * y["x"].double()).sum(1).numpy()),
        )

        def gradient(self, x, which=None):
            losses, g = f.gradient({"x": x["x"].double()}, which)
            return losses, {"x": g["x"].float()}

        def spread(self, values):
            return {"x": torch.as_tensor(np.asarray(values, np.float32)).view(-1, 1)}

    start = {"x": torch.zeros(5, 3)}
    single: Any = Single()  # as much of the protocol as a prox takes
    solved = local_prox(single, f.constants(), start, 0.0, start)
    torch.testing.assert_close(solved.x["x"].double(), f.solution(0.0)["x"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("solver", [APGD1(lam=0.0), IAPGD(lam=0.0)], ids=lambda s: s.name)
@pytest.mark.parametrize("functions", [five_clients(), NoProx(five_clients()), some_submodels()])
def test_without_a_pull_one_iteration_gives_the_local_minimisers(solver, functions):
    state = run(solver, functions, functions.constants(), 1)
    assert squared(functions, state.x, functions.solution(0.0)) < 1e-24
    assert int(state.numbers["communications"]) == 0


def test_the_ends_of_apgd2():
    f = five_clients()
    alone = run(APGD2(lam=0.0), f, f.constants(), 80)
    assert squared(f, alone.x, f.solution(0.0)) < 1e-20
    assert int(alone.numbers["communications"]) == 0
    together = run(APGD2(lam=math.inf), f, f.constants(), 80)
    assert squared(f, together.x, f.solution(math.inf)) < 1e-20


# AL2SGD+ ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rho", ["communication", "computation"])
def test_five_hundred_iterations_of_al2sgd_plus(rho: str):
    f = five_clients()
    state = run(AL2SGDPlus(lam=LAM, rho=rho), f, WORST, 500)
    assert squared(f, state.x, f.solution(LAM)) < 1e-17


def test_al2sgd_plus_is_unbiased():
    """Over the coin and the terms, g is ∇F at the point where it is taken, whatever w is."""
    f, solver = five_clients(), AL2SGDPlus(lam=LAM)
    state = run(solver, f, WORST, 25)
    p = state.number("p")
    for u in (f.solution(LAM), {"x": torch.randn(5, 3, dtype=torch.float64, generator=torch.manual_seed(1))}):
        local = sum(solver.direction(state, f, u, np.full(5, j))[1]["x"] for j in range(8)) / 8
        g = (1 - p) * local + p * solver.direction(state, f, u, None)[1]["x"]
        expected = (f.gradient(u)[1]["x"] + LAM * (u["x"] - f.mean(u)["x"])) / 5
        torch.testing.assert_close(g, expected, rtol=1e-10, atol=1e-13)


def test_al2sgd_plus_counts():
    f, solver = five_clients(), AL2SGDPlus(lam=LAM, p=0.3, rho=0.2)
    state = solver.begin(f, WORST)
    assert int(state.numbers["gradients"]) == 40
    steps = []
    for number in range(1, 2001):
        y = state.x["x"].clone()
        steps.append(solver.step(state, f, number, 5))
        moved = toss(0.2, number, 5, rng.REFRESH)
        assert torch.equal(state.trees["w"]["x"], y) or not moved  # to the iterate before the step
        assert steps[-1].gradients == 10 * (not steps[-1].averaged) + 40 * moved
    expected = 2000 * (0.3 * 0.7 + 0.2)
    assert abs(sum(s.communications for s in steps) - expected) < 4 * math.sqrt(2000 * 0.4)


def test_what_is_refused():
    f = five_clients()
    for solver in (APGD1(lam=1.0), APGD2(lam=1.0), IAPGD(lam=1.0), AL2SGDPlus(lam=1.0)):
        with pytest.raises(MethodError, match="mu is 0"):
            solver.begin(f, Constants(L=10.0))
    with pytest.raises(MethodError, match="did you mean 'communication'"):
        AL2SGDPlus(lam=1.0, rho="comunication")
    with pytest.raises(MethodError, match="rho"):
        AL2SGDPlus(lam=1.0, rho=0.0)
    with pytest.raises(MethodError, match="never trains"):
        AL2SGDPlus(lam=1.0, p=1.0)
    for solver in (APGD1, APGD2, IAPGD):
        with pytest.raises(MethodError, match="got -1"):
            solver(lam=-1.0)
    with pytest.raises(MethodError, match="got inf"):
        APGD1(lam=math.inf)
    with pytest.raises(MethodError, match="accuracy"):
        IAPGD(lam=1.0, accuracy=0.0)
