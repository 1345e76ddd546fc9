"""FedMAvg's arithmetic: the checks of its specification, masks, submodels, and what it refuses."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from fedsub.errors import ConfigError, DataError, MethodError
from fedsub.families.factorisation import SFMF, FedMAvg, factorise, factorise_ratings
from fedsub.families.factorisation import local as steps
from fedsub.families.factorisation.projections import Projection
from fedsub.families.factorisation.rounds import draw
from fedsub.families.factorisation.stacks import from_blocks, from_ratings

NONE = Projection("none")


def low_rank(clients=4, rows=9, columns=(5, 3, 6, 4), rank=2, seed=0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    w = rng.normal(size=(rows, rank))
    return [w @ rng.normal(size=(rank, n)) for n in columns[:clients]]


def some_ratings(users=7, items=12, seed=1, share=0.5):
    rng = np.random.default_rng(seed)
    user, item = np.nonzero(rng.random((users, items)) < share)
    return user, item, rng.normal(size=len(user))


def test_a_the_mean_over_draws_is_unbiased() -> None:
    shares, values = np.array([0.5, 0.3, 0.2]), np.array([1.0, 2.0, 7.0])
    mean = sum(shares[a] * shares[b] * (values[a] + values[b]) / 2 for a, b in product(range(3), repeat=2))
    assert mean == pytest.approx(2.5)
    # The counters draw with these probabilities: 4 standard deviations of 40,000 draws.
    sizes = np.array([5, 3, 2])
    counts = draw(sizes, 40_000, seed=3, round=1)
    assert (np.abs(counts / 40_000 - shares) < 4 * np.sqrt(shares * (1 - shares) / 40_000)).all()
    means = [float(draw(sizes, 2, seed=3, round=s) @ values / 2) for s in range(4000)]
    assert abs(np.mean(means) - 2.5) < 4 * np.std(means) / np.sqrt(4000)


def test_b_no_half_step_raises_the_objective() -> None:
    data = from_blocks([np.random.default_rng(0).normal(size=(8, 12))])
    (stack,) = data.stacks
    w, h = torch.randn(1, 8, 3, dtype=torch.float64), torch.randn(1, 3, 12, dtype=torch.float64)
    for l2 in (0.0, 0.5):
        values = [float(steps.objective(stack, w, h, l2))]
        for _ in range(25):
            h, _ = steps.h_steps(stack, w, h, steps=1, gamma1=2.0, project=NONE, l2=l2)
            values.append(float(steps.objective(stack, w, h, l2)))
            d = float(steps.lipschitz_w(stack, h, l2))
            w = steps.w_steps(stack, w, h, steps=1, d=d, l2=l2)
            values.append(float(steps.objective(stack, w, h, l2)))
        assert (np.diff(values) <= 1e-12).all()
        assert values[-1] < 0.9 * values[0]


def test_c_schedule_of_the_steps_on_w() -> None:
    method = FedMAvg(q2_hat=20)
    assert [method.w_steps(s) for s in range(1, 13)] == [21, 11, 7, 6, 5, 4, 3, 3, 3, 3, 2, 2]
    assert [method.w_steps(s) for s in (20, 21, 500)] == [2, 1, 1]
    assert FedMAvg(q2_hat=0).w_steps(1) == 1


def test_d_an_exact_factorisation_is_found() -> None:
    done = factorise(low_rank(), 2, rounds=400, every=400)
    assert done.history[0]["objective"] > 1
    assert done.history[-1]["objective"] < 1e-10
    assert done.history[-1]["g_h"] + done.history[-1]["g_w"] < 1e-9
    for block, h in zip(low_rank(), done.h, strict=True):
        np.testing.assert_allclose(done.w @ h, block, atol=1e-4)


def test_e_identical_data_and_many_steps_are_alternating_minimisation() -> None:
    block = np.random.default_rng(0).normal(size=(6, 9))
    start = np.random.default_rng(1).normal(size=(6, 2))
    method = FedMAvg(clients_per_round=5, q1=4000, q2_hat=12_000)
    done = factorise([block] * 5, 2, rounds=3, method=method, start=start)
    w, h = start, np.empty(0)
    for _ in range(3):
        h = np.linalg.lstsq(w, block, rcond=None)[0]
        w = np.linalg.lstsq(h.T, block.T, rcond=None)[0].T
    np.testing.assert_allclose(done.w, w, atol=1e-6)
    np.testing.assert_allclose(done.h[3], h, atol=1e-6)


def test_gradients_and_constants_are_those_of_the_objective() -> None:
    rng = np.random.default_rng(5)
    blocks, masks = low_rank(), [rng.random(b.shape) < 0.6 for b in low_rank()]
    for data, l2 in product((from_blocks(blocks), from_blocks(blocks, masks)), (0.0, 0.3)):
        for stack in data.stacks:
            w = torch.randn(len(stack), 9, 2, dtype=torch.float64, requires_grad=True)
            h = torch.randn(len(stack), 2, stack.x.shape[2], dtype=torch.float64, requires_grad=True)
            in_h, in_w = torch.autograd.grad(steps.objective(stack, w, h, l2).sum(), (h, w))
            real = (stack.per_column > 0)[:, None, :]
            torch.testing.assert_close(steps.gradient_h(stack, w, h, l2) * real, in_h * real)
            torch.testing.assert_close(
                steps.gradient_w(stack, w, h * real, l2).detach(), _slope_w(stack, w, h * real, l2)
            )
            assert in_w.shape == w.shape
            # A gradient never turns faster than its constant says.
            other = h + torch.randn_like(h) * real
            turn = (steps.gradient_h(stack, w, other, l2) - steps.gradient_h(stack, w, h, l2)) * real
            assert (
                turn.norm(dim=(1, 2)) <= steps.lipschitz_h(stack, w, l2) * (other - h).norm(dim=(1, 2)) + 1e-9
            ).all()


def _slope_w(stack, w, h, l2):
    return torch.autograd.grad(steps.objective(stack, w, h.detach(), l2).sum(), w)[0]


def test_ratings_of_everything_are_dense_blocks() -> None:
    x = np.random.default_rng(2).normal(size=(10, 6))  # items × users
    item, user = np.nonzero(np.ones_like(x))
    start = np.random.default_rng(3).normal(size=(10, 3))
    for l2, projection, count in product((0.0, 0.2), ("none", "simplex"), (None, 4)):
        method = FedMAvg(clients_per_round=count, l2=l2, projection=projection)
        dense = factorise(list(x.T[:, :, None]), 3, rounds=12, method=method, start=start)
        flat = factorise_ratings(user, item, x[item, user], 3, rounds=12, method=method, start=start)
        np.testing.assert_allclose(flat.w, dense.w, atol=1e-10)
        np.testing.assert_allclose(flat.h, dense.h, atol=1e-10)
        assert flat.history[-1] == pytest.approx(dense.history[-1], rel=1e-8)


def test_ratings_are_masked_blocks() -> None:
    user, item, value = some_ratings()
    x, mask = np.full((12, 7), np.nan), np.zeros((12, 7), bool)
    x[item, user], mask[item, user] = value, True
    start = np.random.default_rng(3).normal(size=(12, 2))
    for method in (FedMAvg(l2=0.1, clients_per_round=3), SFMF(step=0.02, l2=0.1)):
        dense = factorise(
            list(x.T[:, :, None]), 2, masks=list(mask.T[:, :, None]), rounds=8, method=method, start=start
        )
        flat = factorise_ratings(user, item, value, 2, rounds=8, method=method, start=start, items=12)
        np.testing.assert_allclose(flat.w, dense.w, atol=1e-10)
        np.testing.assert_allclose(flat.h, dense.h, atol=1e-10)


def test_two_ratings_of_one_item_count_twice() -> None:
    user, item, value = np.array([0, 0, 0, 1, 1]), np.array([0, 0, 1, 0, 1]), np.array([1.0, 3.0, 2.0, 1.0, -1.0])
    data = from_ratings(user, item, value, users=2, items=2)
    w, h = torch.tensor([[1.0], [2.0]], dtype=torch.float64), torch.tensor([[[0.5]], [[2.0]]], dtype=torch.float64)
    got = {
        int(c): f
        for s in data.stacks
        for c, f in zip(s.clients, steps.objective(s, s.local(w), h[s.clients]), strict=True)
    }
    assert float(got[0]) == pytest.approx((0.5 - 1) ** 2 + (0.5 - 3) ** 2 + (1 - 2) ** 2)
    assert float(got[1]) == pytest.approx((2 - 1) ** 2 + (4 + 1) ** 2)


def test_submodels_of_everything_are_the_full_model() -> None:
    x = np.random.default_rng(2).normal(size=(6, 5))
    item, user = np.nonzero(np.ones_like(x))
    for count, bounded in product((None, 3, 9), (True, False)):
        full = FedMAvg(clients_per_round=count, l2=0.1)
        part = FedMAvg(clients_per_round=count, l2=0.1, submodel=True, bounded=bounded)
        one, two = (factorise_ratings(user, item, x[item, user], 2, rounds=6, method=m, seed=4) for m in (full, part))
        np.testing.assert_allclose(one.w, two.w, atol=1e-12)


def test_submodels_without_correction_are_the_full_method() -> None:
    user, item, value = some_ratings()
    full, part = FedMAvg(clients_per_round=4, l2=0.1), FedMAvg(clients_per_round=4, l2=0.1, submodel=True, temper=0.0)
    one, two = (factorise_ratings(user, item, value, 3, rounds=9, method=m, items=12) for m in (full, part))
    np.testing.assert_allclose(one.w, two.w, atol=1e-12)


@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize("count", [None, 3])
def test_a_rows_mean_is_over_its_holders(count: int | None, bounded: bool) -> None:
    """One round by hand: every user's W_p, then the mean of each row."""
    user, item, value = some_ratings()
    start = np.random.default_rng(3).normal(size=(12, 2))
    method = FedMAvg(clients_per_round=count, submodel=True, bounded=bounded, q1=3, q2_hat=1)
    got = factorise_ratings(user, item, value, 2, rounds=1, method=method, start=start, items=12, seed=9)
    h, sent, rows = np.zeros((7, 2)), [], []
    for p in range(7):
        mine = user == p
        w, x = start[item[mine]], value[mine]
        rate = np.linalg.eigvalsh(2 * w.T @ w)[-1]
        for _ in range(3):
            h[p] -= 2 * w.T @ (w @ h[p] - x) / rate
        rows.append(item[mine])
    d = max(2 * (h**2).sum(1))
    for p in range(7):
        w = start[rows[p]].copy()
        for _ in range(2):
            w -= 2 * np.outer(w @ h[p] - value[user == p], h[p]) / d
        sent.append(w - start[rows[p]])
    times = np.ones(7) if count is None else draw(np.ones(7, np.int64), count, seed=9, round=1)
    expected = start.copy()
    for row in range(12):
        holders = [p for p in range(7) if row in rows[p]]
        if not holders:
            continue
        total = sum((times[p] * sent[p][list(rows[p]).index(row)] for p in holders), np.zeros(2))
        share = times.sum() * len(holders) / 7
        expected[row] += total / (max(share, sum(times[p] for p in holders)) if bounded else share)
    np.testing.assert_allclose(got.w, expected, atol=1e-10)
    np.testing.assert_allclose([h[:, 0] for h in got.h], h, atol=1e-10)


def test_sfmf_is_gradient_descent_on_everything() -> None:
    user, item, value = some_ratings()
    start, method = np.random.default_rng(3).normal(size=(12, 2)), SFMF(step=0.02, l2=0.3)
    got = factorise_ratings(user, item, value, 2, rounds=5, method=method, start=start, items=12)
    w, h = torch.tensor(start, requires_grad=True), torch.zeros(7, 2, dtype=torch.float64, requires_grad=True)
    for _ in range(5):
        error = (w[item] * h[user]).sum(1) - torch.tensor(value)
        loss = (error**2).sum() + 0.3 * ((w**2).sum() + (h**2).sum())
        slopes = torch.autograd.grad(loss, (w, h))
        with torch.no_grad():
            w -= 0.02 * slopes[0]
            h -= 0.02 * slopes[1]
    np.testing.assert_allclose(got.w, w.detach(), atol=1e-12)


def test_everybody_may_be_drawn_more_often_than_there_are_clients() -> None:
    done = factorise(low_rank(), 2, rounds=30, method=FedMAvg(clients_per_round=11), every=30)
    assert done.history[-1]["objective"] < 0.05 * done.history[0]["objective"]


def test_clients_without_data_are_left_out() -> None:
    blocks = low_rank()
    empty = [blocks[0], np.zeros((9, 0)), *blocks[1:]]
    one, two = (factorise(b, 2, rounds=5, seed=2) for b in (blocks, empty))
    np.testing.assert_allclose(one.w, two.w, atol=1e-12)
    assert two.h[1].shape == (2, 0)
    user, item, value = some_ratings()
    gap = factorise_ratings(np.where(user > 2, user + 1, user), item, value, 2, rounds=3, users=8, items=12)
    whole = factorise_ratings(user, item, value, 2, rounds=3, items=12)
    np.testing.assert_allclose(gap.w, whole.w, atol=1e-12)
    assert (gap.h[3] == 0).all()


def test_nonnegative_factors() -> None:
    rng = np.random.default_rng(0)
    w = rng.random((8, 2))
    blocks = [w @ rng.random((2, n)) for n in (4, 6, 5)]
    done = factorise(blocks, 2, rounds=400, method=FedMAvg(projection="nonnegative"), every=400)
    assert (done.w >= 0).all()
    assert min(h.min() for h in done.h) >= 0
    assert done.history[-1]["objective"] < 1e-4


def test_nonsense_is_refused() -> None:
    x = low_rank()
    user, item, value = some_ratings()
    with pytest.raises(ConfigError, match="rank must be a whole number of at least 1"):
        factorise(x, 0)
    with pytest.raises(MethodError, match="clients_per_round of fedmavg must be a whole number of at least 1"):
        FedMAvg(clients_per_round=0)
    with pytest.raises(MethodError, match="did you mean 'simplex'"):
        FedMAvg(projection="simplx")
    with pytest.raises(MethodError, match="projection simplex takes no number"):
        FedMAvg(projection="simplex:2")
    with pytest.raises(MethodError, match="projection_w may be"):
        FedMAvg(projection_w="one-hot")
    with pytest.raises(MethodError, match="radius"):
        FedMAvg(projection="ball:-1")
    wrong: list[dict[str, Any]] = [
        {"gamma1": 1.0},
        {"gamma2": 0.0},
        {"q1": 0},
        {"q2_hat": -1},
        {"l2": -1.0},
        {"temper": 2.0},
        {"q1": 1.5},
    ]
    for bad in wrong:
        with pytest.raises(MethodError, match=next(iter(bad))):
            FedMAvg(**bad)
    with pytest.raises(MethodError, match="step of sfmf"):
        SFMF(step=0.0)
    with pytest.raises(DataError, match="by user 0 is nan"):
        factorise_ratings(user, item, np.where(np.arange(len(value)) == 0, np.nan, value), 2)
    with pytest.raises(DataError, match="no rating"):
        factorise_ratings([], [], [], 2)
    with pytest.raises(DataError, match="whole numbers from 0 to 4"):
        factorise_ratings(user, item, value, 2, items=5)
    with pytest.raises(DataError, match="Block 1 holds NaN"):
        factorise([x[0], x[1] * np.nan], 2)
    with pytest.raises(DataError, match="as many rows"):
        factorise([x[0], x[1][:4]], 2)
    with pytest.raises(DataError, match="known entry"):
        factorise([np.zeros((9, 0))], 2)
    with pytest.raises(ConfigError, match="start must hold"):
        factorise(x, 2, start=np.zeros((9, 3)))
