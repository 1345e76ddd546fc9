"""FedMAvg's average and its measures against numpy: repeated draws count as often, projections are taken."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from worlds import envelope

import fedsub as fs

USERS, ITEMS, RANK, DRAWS = 5, 6, 2, 7


def ratings() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    user, item = np.nonzero(rng.random((USERS, ITEMS)) < 0.7)
    return user, item, rng.normal(size=len(user)).astype(np.float32)


def local_tables(w: np.ndarray, h: np.ndarray, q1: int, q2: int) -> list[np.ndarray]:
    """What every user makes of W in a round, with its own h changed in place (one column, so N_p = 1)."""
    user, item, value = ratings()
    mine = [(item[user == p], value[user == p].astype(float)) for p in range(USERS)]
    for p, (rows, x) in enumerate(mine):
        for _ in range(q1):
            h[p] -= 2 * w[rows].T @ (w[rows] @ h[p] - x) / (2 * np.linalg.eigvalsh(w[rows].T @ w[rows])[-1])
    d = max(2 * h[p] @ h[p] for p in range(USERS))
    made = []
    for p, (rows, x) in enumerate(mine):
        own = w.copy()
        for _ in range(q2):
            own[rows] -= 2 * np.outer(own[rows] @ h[p] - x, h[p]) / d
        made.append(own)
    return made


def test_who_is_drawn_twice_counts_twice(tmp_path: Path) -> None:
    """W = (1/m) Σ over the draws of W_p; how often a user was drawn is read off the bytes that it sent."""
    user, item, value = ratings()
    clients = fs.Clients.from_arrays(
        {"user": user, "item": item, "rating": value}, client="user", ids=["item"], label="rating", binary_label=False,
        sizes={"item": ITEMS},
    )  # fmt: skip
    objective = fs.models.make_objective(clients, "factorisation", rank=RANK, offset="none")
    objective.module.double()
    method = fs.methods.fedmavg(clients_per_round=DRAWS, q1=3, q2_hat=2, l2=0.0)
    result = fs.run(method, objective, clients, rounds=3, seed=1, out=tmp_path / "run")
    w, h = objective.module.get_parameter("items.weight").detach().numpy().copy(), np.zeros((USERS, RANK))
    rows = [json.loads(line) for line in (tmp_path / "run" / "traffic.jsonl").read_text().splitlines()]
    for number, row in enumerate(rows, 1):
        assert row["clients"] == list(range(USERS))
        step = envelope({"step": 0}) + 8
        sent = np.array(row["up"]) - step
        times, rest = np.divmod(sent, ITEMS * RANK * 8 + envelope({"update/items.weight": 2}))
        assert set(rest) == {0}  # the common step is taken off
        assert times.sum() == DRAWS
        assert DRAWS % np.count_nonzero(times)  # so that a plain mean over those drawn is another
        made = local_tables(w, h, 3, 2 // number + 1)
        w = np.sum([t * one for t, one in zip(times, made, strict=True)], axis=0) / DRAWS
    np.testing.assert_allclose(result.params["items.weight"].numpy(), w, rtol=0, atol=1e-12)


def nonnegative(v: np.ndarray) -> np.ndarray:
    return np.maximum(v, 0)


def in_ball(v: np.ndarray) -> np.ndarray:
    """Rows of W and columns of H within radius 0.4."""
    return v * np.minimum(1, 0.4 / np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-300))


@pytest.mark.parametrize(("name", "project"), [("nonnegative", nonnegative), ("ball:0.4", in_ball), ("none", None)])
def test_the_measures_are_their_formulas(name: str, project) -> None:
    """G_W = d² ‖W − P(W − ∇_W F/d)‖² and G_H = Σ ω_p c_p² ‖H − P(H − ∇_H F_p/c_p)‖², at the factors returned."""
    rng = np.random.default_rng(0)
    blocks = [rng.normal(size=(6, n)) for n in (3, 5, 2)]
    method = fs.factorisation.FedMAvg(projection=name, projection_w=name, gamma1=3.0, gamma2=1.5)
    project = project or (lambda v: v)
    done = fs.factorisation.factorise(blocks, 2, rounds=4, method=method, seed=3)
    w, columns = done.w, np.array([3, 5, 2])
    g_h, slope, largest, value = 0.0, np.zeros_like(w), 0.0, 0.0
    for x, h, n, share in zip(blocks, done.h, columns, columns / 10, strict=True):
        error = w @ h - x
        c = 1.5 * (2 / n) * np.linalg.eigvalsh(w.T @ w)[-1]
        moved = project((h - (2 / n) * w.T @ error / c).T).T
        g_h += share * c**2 * ((h - moved) ** 2).sum()
        slope += share * (2 / n) * error @ h.T
        largest = max(largest, (2 / n) * np.linalg.eigvalsh(h @ h.T)[-1])
        value += share * (error**2).sum() / n
    d = 1.5 * largest
    g_w = d**2 * ((w - project(w - slope / d)) ** 2).sum()
    assert done.history[-1] == pytest.approx({"round": 4, "objective": value, "g_h": g_h, "g_w": g_w}, rel=1e-9)
    # Without the projection it would be ‖∇_W F‖², which is another number where a constraint holds.
    assert (g_w < 0.9 * (slope**2).sum()) == (name != "none")
