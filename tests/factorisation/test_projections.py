"""Every projection gives the nearest point of its set."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedsub.families.factorisation import Projection

VALUES = arrays(np.float64, (3, 4, 2), elements=st.floats(-50, 50, width=32))
SETS = [Projection(kind) for kind in ("none", "nonnegative", "simplex", "one-hot")] + [Projection("ball", 2.5)]


def inside(project: Projection, x: torch.Tensor) -> torch.Tensor:
    """Whether each vector along dimension 1 lies in the set."""
    if project.kind == "nonnegative":
        return (x >= 0).all(1)
    if project.kind == "simplex":
        return (x >= 0).all(1) & ((x.sum(1) - 1).abs() < 1e-6)
    if project.kind == "ball":
        return x.norm(dim=1) <= 2.5 + 1e-6
    if project.kind == "one-hot":
        return ((x == 0) | (x == 1)).all(1) & (x.sum(1) == 1)
    return torch.ones(x.shape[0], x.shape[2], dtype=torch.bool)


@pytest.mark.parametrize("project", SETS, ids=str)
@settings(max_examples=40, deadline=None)
@given(values=VALUES, others=VALUES)
def test_the_nearest_point_of_the_set(project: Projection, values: np.ndarray, others: np.ndarray) -> None:
    x, other = torch.from_numpy(values.copy()), torch.from_numpy(others.copy())
    found = project(x, 1)
    assert inside(project, found).all()
    torch.testing.assert_close(project(found, 1), found)  # points of the set stay
    anywhere = project(other, 1)  # some other point of the set is never nearer
    assert ((found - x).norm(dim=1) <= (anywhere - x).norm(dim=1) + 1e-6).all()
    if project.kind != "one-hot":  # on convex sets distances do not grow
        assert ((found - anywhere).norm(dim=1) <= (x - other).norm(dim=1) + 1e-6).all()


def test_by_hand_and_by_name() -> None:
    x = torch.tensor([[0.5, 2.0, -1.0], [0.2, 0.3, 0.1]])
    torch.testing.assert_close(Projection.parse("simplex")(x, 1)[0], torch.tensor([0.0, 1.0, 0.0]))
    torch.testing.assert_close(Projection.parse("simplex")(x, 1)[1], torch.tensor([1 / 3, 1.3 / 3, 0.7 / 3]))
    torch.testing.assert_close(Projection.parse("ball:0.5")(x, 1)[1], x[1])
    assert Projection.parse("one-hot")(x, 1).tolist() == [[0, 1, 0], [0, 1, 0]]
    assert [str(Projection.parse(t)) for t in ("ball:2.5", "none")] == ["ball:2.5", "none"]
