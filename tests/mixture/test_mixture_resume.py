"""Every algorithm: submodels with unequal numbers of terms, and going on where it stopped, bit for bit."""

from __future__ import annotations

import pytest
import torch
from mixture_problems import Submodels, five_clients, run, some_submodels, squared

from fedsub.errors import CheckpointError
from fedsub.families.mixture import (
    APGD1,
    APGD2,
    IAPGD,
    L2GD,
    L2SGD,
    L2SGD2,
    LGD,
    SOLVERS,
    AL2SGDPlus,
    L2GDPlus,
    L2SGDPlus,
)
from fedsub.families.mixture.functions import copy

LAM = 1.5
ALL = [
    LGD(local_steps=2),
    L2GD(lam=LAM),
    L2GDPlus(lam=LAM),
    L2SGD(lam=LAM),
    L2SGD2(lam=LAM),
    L2SGDPlus(lam=LAM),
    APGD1(lam=LAM),
    APGD2(lam=LAM),
    IAPGD(lam=LAM),
    AL2SGDPlus(lam=LAM),
]


def test_all_are_tested():
    assert {solver.name for solver in ALL} == set(SOLVERS)


@pytest.mark.parametrize("make", [five_clients, some_submodels])
@pytest.mark.parametrize("solver", ALL, ids=lambda s: s.name)
def test_resume_is_the_same_as_going_on(solver, make):
    f = make()
    constants = f.constants()
    whole = run(solver, f, constants, 17, seed=9)

    half = run(solver, f, constants, 8, seed=9)
    saved = {name: leaf.clone() for name, leaf in half.tensors().items()}
    again = solver.begin(make(), constants)
    leaves = again.tensors()
    again.restore(saved)
    for number in range(9, 18):
        solver.step(again, f, number, 9)
    for name, leaf in whole.tensors().items():
        assert torch.equal(leaf, again.tensors()[name]), name
        assert leaves[name] is again.tensors()[name]  # everything is changed in place
    assert not torch.equal(whole.tensors()["number/iterations"], saved["number/iterations"])


def test_state_of_another_algorithm_is_refused():
    f = five_clients()
    with pytest.raises(CheckpointError, match="psi/x"):
        L2GD(lam=LAM).begin(f, f.constants()).restore(L2GDPlus(lam=LAM).begin(f, f.constants()).tensors())


@pytest.mark.parametrize(
    ("solver", "iterations", "error"),
    [
        (L2GDPlus(lam=LAM), 1500, 1e-20),
        (L2SGDPlus(lam=LAM), 2500, 1e-15),
        (APGD1(lam=LAM), 40, 1e-20),
        (APGD2(lam=LAM), 80, 1e-18),
        (IAPGD(lam=LAM), 60, 1e-15),
        (AL2SGDPlus(lam=LAM), 700, 1e-15),
    ],
    ids=lambda s: getattr(s, "name", ""),
)
def test_submodels_reach_the_solution_of_their_linear_system(solver, iterations: int, error: float):
    """A row's mean is over the clients that hold it; m_i = 2, 5, 1, 3."""
    f = some_submodels()
    state = run(solver, f, f.constants(), iterations)
    assert squared(f, state.x, f.solution(LAM)) < error


@pytest.mark.parametrize("terms", [[2, 5, 1, 3], [3, 3, 3, 3]])
def test_changes_told_row_by_row_are_the_same(terms: list[int]):
    states = []
    for rows_only in (False, True):
        f = Submodels([[0, 1, 2], [1, 3], [1, 2, 3, 4], [1]], terms)
        f.rows_only = rows_only
        states.append(run(L2SGDPlus(lam=LAM), f, f.constants(), 60))
    for slot in ("x", "drift"):
        for name, leaf in states[0].trees[slot].items():
            torch.testing.assert_close(leaf, states[1].trees[slot][name], rtol=0, atol=1e-12)


def test_a_given_start_is_where_it_begins():
    f = five_clients()
    start = f.solution(LAM)
    for solver in ALL:
        state = solver.begin(f, f.constants(), copy(start))
        assert torch.equal(state.x["x"], start["x"])
    solver = APGD1(lam=LAM)
    state = solver.begin(f, f.constants(), start)
    solver.step(state, f, 1, 0)
    assert squared(f, state.x, f.solution(LAM)) < 1e-25


def test_the_seed_alone_decides():
    f = five_clients()
    for solver in (L2SGDPlus(lam=LAM), AL2SGDPlus(lam=LAM)):
        a, b, c = (run(solver, f, f.constants(), 20, seed=s).x["x"] for s in (1, 1, 2))
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
