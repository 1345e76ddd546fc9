"""The average slot by itself, against brute force and over all cohorts."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from averaging import close, full, held_problem, mean_over, random_deltas
from hypothesis import given, settings
from hypothesis import strategies as st
from known_answers import DOUBLE

import fedsub as fs
from fedsub.data.heat import row_heat, weighted_heat


def test_figure_one() -> None:
    """N = 3, two clients hold parameter 1 with updates u1 and u2."""
    problem = held_problem([[1, 2], [1], [2]], [2, 2, 2], rows=3)
    deltas = random_deltas(problem, 0)
    both = full(problem, 0, deltas[0])[1] + full(problem, 1, deltas[1])[1]
    plain = mean_over(problem, fs.OverClients(), [0, 1, 2], deltas)["table.weight"][1]
    sub = mean_over(problem, fs.OverHolders(), [0, 1, 2], deltas)["table.weight"][1]
    torch.testing.assert_close(plain, both / 3)
    torch.testing.assert_close(sub, both / 2)


@st.composite
def populations(draw_):
    """(holders, sizes, rows, seed) of five clients; every client holds something."""
    rows = draw_(st.integers(2, 6))
    holders = draw_(
        st.lists(st.lists(st.integers(0, rows - 1), min_size=1, max_size=rows, unique=True), min_size=5, max_size=5)
    )
    sizes = [len(h) + draw_(st.integers(0, 20)) for h in holders]
    return holders, sizes, rows, draw_(st.integers(0, 1000))


@settings(max_examples=40, deadline=None)
@given(populations())
def test_fedsubavg_is_unbiased_over_all_cohorts(world) -> None:
    """The mean over all C(5, 2) cohorts is (1/n_m) Σ Δ_im over the holders, for every held row."""
    holders, sizes, rows, seed = world
    problem = held_problem(holders, sizes, rows)
    deltas = random_deltas(problem, seed)
    steps = [mean_over(problem, fs.OverHolders(), c, deltas) for c in combinations(range(5), 2)]
    heat = torch.from_numpy(row_heat(problem.spaces["ids"])).double()
    together = sum(full(problem, i, deltas[i]) for i in range(5))
    close(sum(s["table.weight"] for s in steps) / 10, together / heat.clamp(min=1)[:, None])
    close(sum(s["dense.weight"] for s in steps) / 10, sum(d["dense.weight"] for d in deltas) / 5)


@settings(max_examples=40, deadline=None)
@given(populations(), st.integers(1, 5))
def test_weighted_form_against_brute_force(world, k: int) -> None:
    holders, sizes, rows, seed = world
    problem = held_problem(holders, sizes, rows)
    deltas, w = random_deltas(problem, seed), problem.clients.sizes
    who = np.random.default_rng(seed).permutation(5)[:k].tolist()
    found = mean_over(problem, fs.OverHolders("samples"), who, deltas)
    share = sum(w[i] for i in who)
    expected = torch.stack([float(w[i]) * full(problem, i, deltas[i]) for i in who]).sum(0) / share
    for m in range(rows):
        heat = sum(w[i] for i in range(5) if m in holders[i])
        if heat:
            close(found["table.weight"][m], expected[m] * float(w.sum() / heat))
    close(found["dense.bias"], sum(w[i] * deltas[i]["dense.bias"] for i in who) / share)


@settings(max_examples=40, deadline=None)
@given(populations())
def test_the_unbiased_weighting_is_unbiased(world) -> None:
    """Horvitz–Thompson: the mean over all cohorts is Σ w_i Δ_im / W_m."""
    holders, sizes, rows, seed = world
    problem = held_problem(holders, sizes, rows)
    deltas, w = random_deltas(problem, seed), problem.clients.sizes
    steps = [mean_over(problem, fs.OverHolders("unbiased"), c, deltas) for c in combinations(range(5), 2)]
    heat = torch.from_numpy(weighted_heat(problem.spaces["ids"], w))
    together = sum(int(w[i]) * full(problem, i, deltas[i]) for i in range(5))
    close(sum(s["table.weight"] for s in steps) / 10, together / heat.clamp(min=1)[:, None])
    dense = sum(int(w[i]) * deltas[i]["dense.weight"] for i in range(5)) / float(w.sum())
    close(sum(s["dense.weight"] for s in steps) / 10, dense)


def test_the_weighted_form_is_not_unbiased() -> None:
    """A ratio of random numbers: only with everyone, or equal sizes, is it exact."""
    holders, sizes = [[0], [0, 1], [1], [0], [1]], [1, 30, 4, 9, 2]

    def bias(sizes: list[int], k: int) -> float:
        problem = held_problem(holders, sizes, rows=2)
        deltas, w = random_deltas(problem, 1), problem.clients.sizes
        cohorts = list(combinations(range(5), k))
        steps = [mean_over(problem, fs.OverHolders("samples"), c, deltas)["table.weight"] for c in cohorts]
        heat = torch.from_numpy(weighted_heat(problem.spaces["ids"], w))
        expected = sum(int(w[i]) * full(problem, i, deltas[i]) for i in range(5)) / heat[:, None]
        return float((sum(steps) / len(steps) - expected).abs().max())

    assert bias(sizes, 2) > 0.05
    assert bias(sizes, 5) < 1e-12
    assert bias([3] * 5, 2) < 1e-12


@settings(max_examples=40, deadline=None)
@given(populations(), st.integers(1, 5), st.sampled_from(["clients", "samples"]))
def test_sampled_holders_against_brute_force(world, k: int, weighting: str) -> None:
    holders, sizes, rows, seed = world
    problem = held_problem(holders, sizes, rows)
    deltas = random_deltas(problem, seed)
    w = problem.clients.sizes if weighting == "samples" else np.ones(5)
    who = np.random.default_rng(seed).permutation(5)[:k].tolist()
    found = mean_over(problem, fs.OverSampledHolders(weighting), who, deltas)
    for m in range(rows):
        own = [i for i in who if m in holders[i]]
        expected = sum(w[i] * full(problem, i, deltas[i])[m] for i in own) / sum(w[i] for i in own) if own else 0
        close(found["table.weight"][m], expected + torch.zeros(2, dtype=DOUBLE))
    dense = sum(w[i] * deltas[i]["dense.weight"] for i in who) / sum(w[i] for i in who)
    close(found["dense.weight"], dense)


@pytest.mark.parametrize(
    "average",
    [fs.OverClients(), fs.OverHolders(), fs.OverHolders("unbiased"), fs.OverSampledHolders("samples")],
)
def test_a_client_left_out_leaves_its_rows_alone(average) -> None:
    problem = held_problem([[0, 1], [1, 2], [2]], [3, 5, 4], rows=3)
    deltas = random_deltas(problem, 2)
    found = mean_over(problem, average, [0, 1, 2], deltas, left_out=(0,))
    assert all(torch.isfinite(v).all() for v in found.values())
    assert torch.equal(found["table.weight"][0], torch.zeros(2, dtype=DOUBLE))
    without = mean_over(problem, average, [1, 2], deltas)
    for name in found:
        close(found[name], without[name])


def test_a_client_drawn_twice_counts_twice() -> None:
    problem = held_problem([[0, 1], [1, 2], [2]], [3, 5, 4], rows=3)
    deltas = random_deltas(problem, 2)
    found = mean_over(problem, fs.OverClients(), [1, 1, 0], deltas)["table.weight"]
    close(found, (2 * full(problem, 1, deltas[1]) + full(problem, 0, deltas[0])) / 3)
