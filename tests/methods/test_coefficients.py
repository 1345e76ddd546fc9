"""Heat coefficients: their values, tempered, capped, estimated; never infinite."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from averaging import CPU, held_problem
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsub as fs
from fedsub.errors import MethodError
from fedsub.objective.population import Population

HELD = [[0, 1], [0, 2], [0], [0, 2], [0]]  # n = 5, 1, 2, and nobody holds row 3


def coefficients(average: fs.OverHolders) -> np.ndarray:
    problem = held_problem(HELD, [2, 4, 6, 8, 10], rows=4)
    found = average.bind(Population.of(problem), CPU).coefficients["table.weight"]
    assert isinstance(found, torch.Tensor)
    return found.numpy()


def test_coefficients() -> None:
    np.testing.assert_allclose(coefficients(fs.OverHolders()), [1, 5, 2.5, 1])
    np.testing.assert_allclose(coefficients(fs.OverHolders("samples")), [1, 15, 30 / 12, 1])
    np.testing.assert_allclose(coefficients(fs.OverHolders("unbiased")), [1, 15, 30 / 12, 1])
    np.testing.assert_allclose(coefficients(fs.OverHolders(max_coef=3)), [1, 3, 2.5, 1])
    np.testing.assert_allclose(coefficients(fs.OverHolders(temper=0)), [1, 1, 1, 1])
    np.testing.assert_allclose(coefficients(fs.OverHolders(temper=0.5)), [1, 5**0.5, 2.5**0.5, 1], rtol=1e-12)
    np.testing.assert_allclose(coefficients(fs.OverHolders(temper=0.5, max_coef=2)), [1, 2, 2.5**0.5, 1])


def test_estimated_heat_is_clipped_to_what_is_possible() -> None:
    for bad in (0.0, -7.0, 0.2, np.nan, -np.inf):
        found = coefficients(fs.OverHolders(heat={"ids": np.array([5.0, bad, 2, bad])}))
        np.testing.assert_allclose(found, [1, 5, 2.5, 5])
    for large in (5.0, 6.0, 1e30, np.inf):
        found = coefficients(fs.OverHolders(heat={"ids": np.array([large, 1, 2, 1])}))
        np.testing.assert_allclose(found, [1, 5, 2.5, 5])
    with pytest.raises(MethodError, match="4 rows"):
        coefficients(fs.OverHolders(heat={"ids": np.ones(3)}))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=4, max_size=4),
    st.sampled_from(["clients", "samples", "unbiased"]),
    st.floats(0, 1),
    st.one_of(st.none(), st.floats(1, 100)),
)
def test_no_coefficient_is_ever_infinite(heat, weighting: str, temper: float, cap) -> None:
    for given_heat in (None, {"ids": np.array(heat)}):
        average = fs.OverHolders(weighting, temper=temper, max_coef=cap, heat=given_heat)
        found = coefficients(average)
        assert np.isfinite(found).all()
        assert (found >= 1 - 1e-6).all()
        assert found.max() <= (30.001 if cap is None else min(30.001, cap * 1.000001))


@pytest.mark.parametrize(
    "make",
    [
        lambda: fs.OverHolders("size"),
        lambda: fs.OverHolders(temper=1.5),
        lambda: fs.OverHolders(max_coef=0.5),
        lambda: fs.OverClients("unbiased"),
        lambda: fs.OverSampledHolders("heat"),
        lambda: fs.Add(0.0),
        lambda: fs.SGD(lr=0.0),
        lambda: fs.SGD(lr=float("nan")),
        lambda: fs.SGD(local_steps=2, local_epochs=1),
        lambda: fs.SGD(local_steps=None),
        lambda: fs.SGD(local_steps=0),
        lambda: fs.SGD(batch_size=0),
        lambda: fs.SGD(batches="random"),
        lambda: fs.Prox(-1).check(fs.methods.fedavg()),
        lambda: replace(fs.methods.fedavg(), parts=fs.Prox()),
    ],
)
def test_nonsense_is_refused_when_it_is_built(make) -> None:
    with pytest.raises(MethodError):
        make()
