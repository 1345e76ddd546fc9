"""Protections of labels against a few lines of arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from fedsub.errors import MethodError
from fedsub.vertical.protection import Draws, Protection
from fedsub.vertical.protections import (
    GradientMixup,
    GradientProjection,
    IsotropicNoise,
    Marvell,
    MaxNormNoise,
    NormAlignment,
    read_protections,
)
from fedsub.vertical.protections.mixing import beta

LABELS = torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0, 0.0])
ALL: tuple[Protection, ...] = (
    NormAlignment(), MaxNormNoise(), IsotropicNoise(), Marvell(), GradientMixup(), GradientProjection(),
)  # fmt: skip


def draws(step: int = 0) -> Draws:
    return Draws(b"k" * 32, step, 0)


def rows(b: int = 6, d: int = 4) -> Tensor:
    return torch.from_numpy(np.random.default_rng(7).normal(size=(b, d)))


def mean_of(protection: Protection, gradient: Tensor, labels: Tensor, what: Callable[[Tensor], Tensor]) -> Tensor:
    """The mean over 1,500 draws."""
    return sum((what(protection.protect(gradient, labels, draws(k))) for k in range(1500)), torch.tensor(0.0)) / 1500


def test_alignment_makes_all_norms_the_largest_and_turns_nothing() -> None:
    g = rows()
    out = NormAlignment().protect(g, LABELS, draws())
    longest = max(float(torch.linalg.vector_norm(row)) for row in g)
    for before, after in zip(g, out, strict=True):
        assert float(torch.linalg.vector_norm(after)) == pytest.approx(longest, rel=1e-12)
        assert float(before @ after) == pytest.approx(float(before.norm()) * longest, rel=1e-12)


def test_noise_along_rows_is_unbiased_and_as_long_as_the_longest_in_the_mean_square() -> None:
    g = rows()
    protection, longest = MaxNormNoise(), float(g.square().sum(1).max())
    some = protection.protect(g, LABELS, draws())
    parallel = (some * g).sum(1).abs() / (some.norm(dim=1) * g.norm(dim=1))
    assert parallel.tolist() == pytest.approx([1.0] * 6, rel=1e-12)
    assert torch.equal(some[g.norm(dim=1).argmax()], g[g.norm(dim=1).argmax()])
    assert mean_of(protection, g, LABELS, lambda x: x).flatten().tolist() == pytest.approx(
        g.flatten().tolist(), abs=0.3
    )
    lengths = mean_of(protection, g, LABELS, lambda x: x.square().sum(1))
    assert lengths.tolist() == pytest.approx([longest] * 6, rel=0.15)


def test_rows_of_zeros_are_hidden_too() -> None:
    g = rows()
    g[2] = 0
    assert torch.allclose(NormAlignment().protect(g, LABELS, draws()).norm(dim=1), g.norm(dim=1).max())
    lengths = mean_of(MaxNormNoise(), g, LABELS, lambda x: x.square().sum(1))
    assert float(lengths[2]) == pytest.approx(float(g.square().sum(1).max()), rel=0.15)


def test_isotropic_noise_has_the_power_that_was_asked_for() -> None:
    g = rows()
    noise = mean_of(IsotropicNoise(2.0), g, LABELS, lambda x: (x - g).square())
    assert noise.flatten().tolist() == pytest.approx([2 * float(g.square().sum(1).max()) / 4] * 24, rel=0.16)


def test_mixup_is_a_convex_combination_of_pairs_and_keeps_the_mean() -> None:
    g = rows()
    for step in range(20):
        for i, row in enumerate(GradientMixup(0.6).protect(g, LABELS, draws(step))):
            shares = {i: 1.0} if torch.allclose(row, g[i]) else {}  # j: t of row = t g_i + (1 − t) g_j
            for j in set(range(6)) - {i} if not shares else ():
                way = g[i] - g[j]
                t = float((row - g[j]) @ way / way.square().sum())
                if torch.allclose(row, t * g[i] + (1 - t) * g[j]):
                    shares[j] = t
            assert len(shares) == 1
            assert 0.5 <= next(iter(shares.values())) <= 1
    mean = mean_of(GradientMixup(0.6), g, LABELS, lambda x: x.mean(0))
    assert mean.tolist() == pytest.approx(g.mean(0).tolist(), abs=0.04)


@pytest.mark.parametrize("alpha", [0.3, 1.0, 4.0])
def test_shares_are_beta_distributed(alpha: float) -> None:
    """Mean ½ and variance 1 / (4 (2α + 1)); for α = 1 all moments of a uniform number."""
    share = beta(alpha, 40_000, draws(), rows())
    assert float(share.mean()) == pytest.approx(0.5, abs=0.008)
    assert float(share.var()) == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.03)
    if alpha == 1:
        assert np.quantile(share.numpy(), [0.1, 0.25, 0.9]).tolist() == pytest.approx([0.1, 0.25, 0.9], abs=0.01)


@pytest.mark.parametrize("goal", [0.0, 0.5, 0.7])
def test_projection_turns_wide_rows_to_the_goal_and_leaves_the_others(goal: float) -> None:
    g = rows(40)
    mean = g.mean(0)

    def cosines(x: Tensor) -> Tensor:
        return x @ mean / (x.norm(dim=1) * mean.norm())

    out, before = GradientProjection(goal).protect(g, LABELS, draws()), cosines(g)
    wide = before < goal
    assert 0 < int(wide.sum()) < 40
    assert torch.equal(out[~wide], g[~wide])
    assert cosines(out)[wide].tolist() == pytest.approx([goal] * int(wide.sum()), abs=1e-9)
    # What was at a right angle to the mean stays as it was: only the mean is added.
    across = g - (g @ mean)[:, None] * mean / mean.square().sum()
    assert torch.allclose(out - (out @ mean)[:, None] * mean / mean.square().sum(), across)


def test_a_row_opposite_to_the_mean_is_turned_as_well() -> None:
    g = torch.tensor([[3.0, 0.0], [2.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    out = GradientProjection(0.5).protect(g, LABELS[:3], draws())
    assert torch.equal(out[:2], g[:2])
    assert float(out[2, 0] / out[2].norm()) == pytest.approx(0.5)
    assert float(out[2].norm()) == pytest.approx(1.0)


@pytest.mark.parametrize("protection", ALL, ids=lambda p: type(p).__name__)
def test_protections_keep_type_and_input_and_follow_their_draws(protection: Protection) -> None:
    for g in (rows(), rows().float(), torch.zeros(6, 4), rows(1), rows(6, 1)):
        before, labels = g.clone(), LABELS[: len(g)]
        out = protection.protect(g, labels, draws())
        assert torch.equal(g, before)
        assert out.dtype == g.dtype
        assert out.shape == g.shape
        assert bool(torch.isfinite(out).all())
        assert torch.equal(out, protection.protect(g, labels, draws()))


def test_words_of_a_command_line() -> None:
    assert read_protections("none") == ()
    assert read_protections("norm") == (NormAlignment(),)
    assert read_protections("marvell:2") == (Marvell(2.0),)
    assert read_protections("mixup:0.3 + project") == (GradientMixup(0.3), GradientProjection())
    for text, said in {
        "marvel:2": "did you mean 'marvell'",
        "iso:-1": "power must be positive",
        "norm:3": "takes no number",
        "project:1": "goal must be at least 0 and less than 1",
        "mixup:0": "alpha must be positive",
        "norm+": "protection must be one of",
    }.items():
        with pytest.raises(MethodError, match=said):
            read_protections(text)
