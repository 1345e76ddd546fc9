"""L, μ and L̃ of linear models against Hessians written out."""

from __future__ import annotations

import numpy as np
import pytest
from worlds import click_data, item_data, there

import fedsub as fs
from fedsub import data
from fedsub.errors import MethodError
from fedsub.families.mixture.linear import linear_constants, objective_constants
from fedsub.objective import losses
from fedsub.objective.models import make_objective

L2 = 0.05


def parts(clients: fs.Clients, matrix: np.ndarray, batch: int | None = None) -> list[np.ndarray]:
    """The features of every client, or of every term of every client."""
    out = []
    for a, b in zip(clients.offsets[:-1], clients.offsets[1:], strict=True):
        out += [matrix[a:b]] if batch is None else [matrix[low : min(low + batch, b)] for low in range(a, b, batch)]
    return out


def top(a: np.ndarray) -> float:
    return float(np.linalg.norm(a, 2) ** 2)


def one_hot(clients: fs.Clients, names: list[str]) -> np.ndarray:
    blocks = {}
    for name in names:
        space = clients.space_of(name)
        block = blocks.setdefault(space.name, np.zeros((clients.samples, space.size)))
        ids = clients.gather(np.arange(clients.samples), [name], local=False)[name].reshape(clients.samples, -1)
        for sample, row in zip(*np.nonzero(ids >= 0), strict=True):
            block[sample, ids[sample, row]] += 0 if space.padding and ids[sample, row] == 0 else 1
    return np.concatenate(list(blocks.values()), axis=1)


@pytest.mark.parametrize(
    ("loss", "c"), [(losses.binary(), 0.25), (losses.squared(), 1.0), (losses.cross_entropy(), 0.5)]
)
@pytest.mark.parametrize("bias", [False, True])
def test_dense_features(loss, c, bias):
    clients = data.divide(np.random.default_rng(0).normal(size=(50, 4)), np.arange(50) % 2, clients=4)  # sizes 13, 12
    a = clients.columns["features"].values.astype(float)
    a = np.concatenate([a, np.ones((50, 1))], axis=1) if bias else a
    found = linear_constants(clients, "features", loss, L2, terms=5, bias=bias)
    np.testing.assert_allclose(found.smooth, [c * top(p) / len(p) + L2 for p in parts(clients, a)])
    least = [np.linalg.svd(p)[1].min() ** 2 / len(p) for p in parts(clients, a)]
    np.testing.assert_allclose(found.convex, [L2 + (x if c == 1 else 0) for x in least])
    per_term, sizes = [top(p) for p in parts(clients, a, 5)], clients.sizes
    largest = [3 / n * max(per_term[3 * i : 3 * i + 3]) for i, n in enumerate(sizes)]  # three terms each
    np.testing.assert_allclose(there(found.terms), [c * x + L2 for x in largest])
    together = found.together
    assert (together.L, together.mu, together.L_terms) == (
        found.smooth.max(), found.convex.min(), there(found.terms).max()
    )  # fmt: skip


def test_the_hessian_of_logistic_regression_is_below_the_bound_and_meets_it_at_zero():
    clients = data.generate_logistic(clients=3, samples=40, dim=5)
    found = linear_constants(clients, "features", losses.binary(), L2)
    a = clients.columns["features"].values.astype(float)
    draw = np.random.default_rng(1)
    for x in (np.zeros(5), draw.normal(size=5), 3 * draw.normal(size=5)):
        for i, own in enumerate(parts(clients, a)):
            p = 1 / (1 + np.exp(-own @ x))
            values = np.linalg.eigvalsh((own.T * (p * (1 - p))) @ own / len(own) + L2 * np.eye(5))
            assert found.convex[i] <= values[0]
            assert values[-1] <= found.smooth[i] * (1 + 1e-12)
            if not x.any():
                assert values[-1] == pytest.approx(found.smooth[i])


def test_unit_rows_have_a_quarter_and_no_batch_has_more_than_one_sample():
    clients = data.bundled("breast-cancer", clients=8, scaling="unit")
    single = linear_constants(clients, "features", losses.binary(), L2, terms=1)
    np.testing.assert_allclose(there(single.terms), 0.25 + L2, rtol=1e-6)
    batch = linear_constants(clients, "features", losses.binary(), L2, terms=4)
    # A short last batch weighs m/n, a little more than 1/B, so the bound holds up to that.
    alone, together = there(single.terms), there(batch.terms)
    assert (together - L2 <= (alone - L2) * 4 * (-(-clients.sizes // 4)) / clients.sizes + 1e-9).all()
    assert (single.smooth <= alone + 1e-12).all()


def test_more_features_than_samples():
    clients = data.divide(np.random.default_rng(0).normal(size=(12, 9)), np.arange(12) % 2, clients=3)
    found = linear_constants(clients, "features", losses.squared(), L2)
    a = clients.columns["features"].values.astype(float)
    np.testing.assert_allclose(found.smooth, [top(p) / 4 + L2 for p in parts(clients, a)])
    assert (found.convex == L2).all()


@pytest.mark.parametrize("names", [["slot"], ["item", "history"], ["item", "history", "place", "slot"]])
def test_ids_are_one_hot_features(names):
    clients = click_data()
    a = one_hot(clients, names)
    found = linear_constants(clients, names, losses.binary(), L2, terms=2)
    exact = np.array([0.25 * top(p) / len(p) + L2 for p in parts(clients, a)])
    assert (found.smooth >= exact * (1 - 1e-9)).all()
    np.testing.assert_allclose(found.smooth, exact, rtol=0.03)
    terms = [top(p) for p in parts(clients, a, 2)]
    counts = -(-clients.sizes // 2)
    first = np.cumsum(counts) - counts
    largest = np.array([max(terms[f : f + m]) * m / n for f, m, n in zip(first, counts, clients.sizes, strict=True)])
    np.testing.assert_allclose(there(found.terms), 0.25 * largest + L2, rtol=0.03)


def test_a_sample_of_distinct_ids_has_the_norm_of_their_number():
    clients = fs.Clients.from_arrays(
        {"ids": np.array([[0, 1, 2], [2, 3, 4], [5, 6, 7], [1, 5, 7]]), "label": [0, 1, 0, 1]},
        offsets=[0, 2, 4], ids=["ids"], label="label",
    )  # fmt: skip
    found = linear_constants(clients, "ids", losses.binary(), terms=1)
    np.testing.assert_allclose(there(found.terms), 0.25 * 3)


def test_objectives_of_built_in_models():
    clients = data.generate_logistic(clients=3)
    goal = make_objective(clients, "linear", l2=L2, bias=True)
    expected = linear_constants(clients, "features", losses.binary(), L2, 4, bias=True)
    found = objective_constants(goal, clients, 4)
    assert found is not None
    for name in ("smooth", "convex", "terms"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    ids = item_data()
    of_lr = objective_constants(make_objective(ids, "lr", l2=L2), ids)
    assert of_lr is not None
    np.testing.assert_array_equal(of_lr.smooth, linear_constants(ids, "ids", losses.binary(), L2).smooth)
    assert objective_constants(make_objective(ids, "embedding"), ids) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": ["value", "slot"]}, "plain columns or id columns"),
        ({"features": []}, "not none"),
        ({"loss": losses.half_cross_entropy()}, "is not known"),
        ({"terms": 0}, "terms=0 must be the number of samples"),
    ],
)
def test_mistakes(change, message):
    arguments = {"features": "slot", "loss": losses.binary(), "terms": None} | change
    with pytest.raises(MethodError, match=message):
        linear_constants(click_data(), **arguments)
