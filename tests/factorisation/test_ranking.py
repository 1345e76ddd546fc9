"""Ranking metrics against a plain loop over users."""

from __future__ import annotations

import numpy as np
import pytest

from fedsub.families.factorisation.ranking import ranking


def slow(w, h, seen, relevant, top):
    out = []
    for user in np.unique(relevant[0]):
        hidden = set(seen[1][seen[0] == user].tolist())
        wanted = set(relevant[1][relevant[0] == user].tolist())
        order = sorted((i for i in range(len(w)) if i not in hidden), key=lambda i: (-float(w[i] @ h[user]), i))[:top]
        hits = [j for j, i in enumerate(order) if i in wanted]
        ideal = sum(1 / np.log2(j + 2) for j in range(min(len(wanted), top)))
        gain = sum(1 / np.log2(j + 2) for j in hits) / ideal
        out.append((len(hits) / top, len(hits) / len(wanted), gain))
    return np.mean(out, 0)


def pairs(there: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    user, item = np.nonzero(there)
    return user, item


def test_against_a_loop(monkeypatch) -> None:
    rng = np.random.default_rng(0)
    w, h = rng.normal(size=(30, 3)), rng.normal(size=(9, 3))
    w[4] = w[5]  # equal scores
    kinds = rng.choice(3, (9, 30), p=[0.5, 0.3, 0.2])
    kinds[6][kinds[6] == 2] = 0  # a user without relevant items
    seen, relevant = pairs(kinds == 1), pairs(kinds == 2)
    expected = slow(w, h, seen, relevant, 5)
    for cells in (1 << 22, 70):  # all users at once, two at a time
        monkeypatch.setattr("fedsub.families.factorisation.ranking.SCORES", cells)
        got = ranking(w, h, seen, relevant, top=5, heat=np.bincount(seen[1], minlength=30))
        assert got["users"] == 8
        np.testing.assert_allclose([got["precision"], got["recall"], got["ndcg"]], expected)
    assert sum(d["relevant"] for d in got["deciles"]) == len(relevant[0])
    hits = sum(d["recall"] * d["relevant"] for d in got["deciles"])
    assert hits == pytest.approx(expected[0] * 5 * 8)


def test_a_perfect_list_and_nobody() -> None:
    w, h = np.array([[3.0], [2.0], [1.0], [0.0]]), np.ones((2, 1))
    got = ranking(w, h, (np.array([0]), np.array([0])), (np.array([0, 0]), np.array([1, 2])), top=2)
    assert (got["precision"], got["recall"], got["ndcg"]) == (1, 1, 1)
    none = ranking(w, h, (np.array([0]), np.array([0])), (np.zeros(0, int), np.zeros(0, int)))
    assert none == {"top": 4, "users": 0}
