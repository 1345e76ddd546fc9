"""x(λ): closed forms, monotone f and ψ, the traced path, and the link with MAML."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mixture_problems import five_clients, some_submodels, squared

from fedsub.errors import MethodError
from fedsub.families.mixture import Constants, Functions, Quadratics, lambda_grid, maml_gap, trace_path
from fedsub.families.mixture.functions import minus, root_mean_square
from fedsub.families.mixture.path import maml_models, spread_of
from fedsub.families.mixture.reach import optimality_residual
from fedsub.trees import Tree

SCALARS = Quadratics(np.array([1.0, 2.0, 5.0]), np.array([0.0, 3.0, -1.0]))
SEEDS = st.integers(0, 2**32 - 1)


def value(functions: Functions, x: Tree) -> float:
    return float(functions.gradient(x)[0].mean())


@pytest.mark.parametrize(("lam", "mean"), [(0.0, 0.6666667), (1.0, 0.5833333), (10.0, 0.2820513), (math.inf, 0.125)])
def test_closed_form_of_three_scalars(lam: float, mean: float):
    assert float(SCALARS.solution(lam)["x"].mean()) == pytest.approx(mean, abs=5e-8)


def test_closed_form_of_three_scalars_by_client():
    assert SCALARS.solution(1.0)["x"].view(-1).tolist() == pytest.approx([0.2916667, 2.1944444, -0.7361111], abs=5e-8)
    assert SCALARS.solution(0.0)["x"].view(-1).tolist() == pytest.approx([0, 3, -1])
    assert SCALARS.solution(math.inf)["x"].view(-1).tolist() == pytest.approx([0.125] * 3)


@given(SEEDS, st.integers(1, 6), st.integers(1, 4), st.floats(1e-3, 1e3))
@settings(max_examples=40, deadline=None)
def test_optimality_of_the_closed_form(seed: int, clients: int, size: int, lam: float):
    f = Quadratics.random(clients, size, terms=2, L=10, mu=0.5, seed=seed)
    x = f.solution(lam)
    gradient = f.gradient(x)[1]["x"]
    torch.testing.assert_close(x["x"], f.mean(x)["x"] - gradient / lam, rtol=0, atol=1e-9 * (1 + 10 / lam))
    assert gradient.sum(0).abs().max() < 1e-9
    assert optimality_residual(f, x, lam) < 1e-9 * (1 + lam)


@given(SEEDS, st.integers(2, 6), st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_f_rises_and_psi_falls_along_the_path(seed: int, clients: int, size: int):
    f = Quadratics.random(clients, size, terms=1, L=10, mu=0.5, seed=seed)
    points = [f.solution(lam) for lam in (0.0, *np.geomspace(1e-3, 1e3, 25), math.inf)]
    values, spreads = [value(f, x) for x in points], [spread_of(f, x) for x in points]
    assert (np.diff(values) >= -1e-10).all()
    assert (np.diff(spreads) <= 1e-10).all()
    assert spreads[-1] < 1e-20


@pytest.mark.parametrize("functions", [five_clients(), some_submodels()], ids=["quadratics", "submodels"])
def test_traced_path(functions):
    constants = functions.constants()
    grid = (0.0, 0.01, 0.3, 2.0, 8.0, 100.0, math.inf)
    points = list(trace_path(functions, grid[::-1], constants, tolerance=1e-9))
    assert [p.lam for p in points] == list(grid)
    assert [p.method for p in points[:4]] == ["apgd1"] * 4
    assert points[-2].method == "apgd2"
    for point in points:
        assert point.residual <= 1e-9
        if math.isfinite(point.lam):
            assert squared(functions, point.x, functions.solution(point.lam)) < 1e-14
        assert point.numbers()["f"] == pytest.approx(value(functions, point.x))
    assert points[0].to_local == 0
    assert points[0].communications == 0
    assert points[-1].to_global == 0
    assert (np.diff([p.f for p in points]) >= -1e-9).all()
    assert (np.diff([p.psi for p in points]) <= 1e-9).all()
    assert (np.diff([p.to_local for p in points]) >= -1e-9).all()
    assert (np.diff([p.to_global for p in points]) <= 1e-9).all()


def test_global_end_of_the_path_is_the_minimiser_of_the_sum():
    f = five_clients()
    (point,) = trace_path(f, [math.inf], f.constants(), tolerance=1e-10)
    assert squared(f, point.x, f.solution(math.inf)) < 1e-16


def test_warm_starts_save_iterations():
    f = five_clients()
    lams = np.geomspace(1, 5, 6).tolist()
    together = sum(p.iterations for p in trace_path(f, lams, f.constants()))
    alone = sum(next(iter(trace_path(f, [lam], f.constants()))).iterations for lam in lams)
    assert together < alone


def test_path_refuses_nonsense():
    f = five_clients()
    with pytest.raises(MethodError, match="got -1"):
        list(trace_path(f, [-1.0], f.constants()))
    with pytest.raises(MethodError, match="tolerance"):
        list(trace_path(f, [1.0], f.constants(), tolerance=0.0))
    with pytest.raises(MethodError, match="positive lam"):
        maml_gap(f, f.start(), 0.0)


def test_grid_of_lambdas():
    grid = lambda_grid(Constants(L=4.0, mu=1.0), 5)
    assert grid[0] == 0
    assert grid[-1] == math.inf
    assert grid[1] == pytest.approx(0.004)
    assert grid[-2] == pytest.approx(40)


# MAML ----------------------------------------------------------------------------------------------


def test_maml_gap_shrinks_with_the_square_of_lambda():
    f = five_clients()
    gaps = [maml_gap(f, f.solution(lam), lam) for lam in (1e2, 1e3, 1e4)]
    assert gaps[0] / gaps[1] == pytest.approx(100, rel=0.15)
    assert gaps[1] / gaps[2] == pytest.approx(100, rel=0.02)
    for lam, gap in zip((1e2, 1e3, 1e4), gaps, strict=True):
        gradients = f.gradient(f.solution(lam))[1]
        assert gap <= f.constants().L / lam**2 * root_mean_square(f, gradients)


def maml_shared(f: Quadratics, alpha: float) -> Tree:
    """The stationary point of Σ f_i(z − α∇f_i(z)): Σ (I − αH_i)(H_i (I − αH_i) z − (I − αH_i) b_i) = 0."""
    eye = torch.eye(f._mean_H.shape[-1], dtype=torch.float64)
    step = eye - alpha * f._mean_H
    matrix = (step @ f._mean_H @ step).sum(0)
    right = torch.einsum("nij,njk,nk->i", step, step, f._mean_b)
    return {"x": torch.linalg.solve(matrix, right).expand_as(f._mean_b).clone()}


def test_mamls_own_shared_point_differs_in_first_order():
    """The personal step agrees to first order; the points from which it is taken do not."""
    f = five_clients()
    apart = []
    for lam in (1e3, 1e4):
        shared, x = maml_shared(f, 1 / lam), f.solution(lam)
        personal = maml_models(f, shared, 1 / lam)
        h = 1e-6  # stationary: no direction changes Σ f_i(z − α∇f_i(z)) to first order
        for k in range(3):
            moved = [{"x": shared["x"].clone()} for _ in range(2)]
            moved[0]["x"][:, k] += h
            moved[1]["x"][:, k] -= h
            up, down = (value(f, maml_models(f, z, 1 / lam)) for z in moved)
            assert abs(up - down) / (2 * h) < 1e-6
        apart.append(root_mean_square(f, minus(personal, x)))
    assert apart[0] / apart[1] == pytest.approx(10, rel=0.1)
