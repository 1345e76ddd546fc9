"""The hook by which the label party changes what it sends."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from fedsub.errors import MethodError, RunError
from fedsub.vertical.protection import Draws, Protection, check_protections, protected

SECRET = b"s" * 32


@dataclass(frozen=True)
class Scaled(Protection):
    factor: float

    def protect(self, gradient: Tensor, labels: Tensor, draws: Draws) -> Tensor:
        return gradient * self.factor + labels[:, None]


@dataclass(frozen=True)
class Noisy(Protection):
    def protect(self, gradient: Tensor, labels: Tensor, draws: Draws) -> Tensor:
        return gradient + draws.normal(*gradient.shape, like=gradient)


@dataclass(frozen=True)
class Cut(Protection):
    def protect(self, gradient: Tensor, labels: Tensor, draws: Draws) -> Tensor:
        return gradient[:1]


def test_one_after_the_other() -> None:
    gradient, labels = torch.ones(2, 3), torch.tensor([0.0, 1.0])
    out = protected((Scaled(2.0), Scaled(3.0)), gradient, labels, SECRET, 0, 0)
    assert out.tolist() == [[6.0] * 3, [10.0] * 3]
    assert gradient.tolist() == [[1.0] * 3] * 2


def test_words_are_those_of_the_hash() -> None:
    """SHAKE-256 over the secret, three numbers of 64 bits and how many times was asked."""
    draws = Draws(SECRET, 5, 2, 1)
    draws.words(3)
    raw = SECRET + b"".join(n.to_bytes(8, "little") for n in (5, 2, 1, 2))
    assert draws.words(4).tolist() == np.frombuffer(hashlib.shake_256(raw).digest(32), "<u8").tolist()


def test_noise_is_drawn_anew_by_step_party_and_place_and_again_by_none() -> None:
    zero = torch.zeros(4, 2, dtype=torch.float64)

    def noise(step: int, party: int, *before: Protection) -> Tensor:
        return protected((*before, Noisy()), zero, torch.zeros(4), SECRET, step, party)

    assert torch.equal(noise(3, 1), noise(3, 1))
    seen = [noise(3, 1), noise(4, 1), noise(3, 0), noise(3, 1, Scaled(1.0))]
    assert len({tuple(n.flatten().tolist()) for n in seen}) == 4


def test_draws_are_spread_as_they_say() -> None:
    draws, like = Draws(SECRET, 0, 0), torch.zeros(1, dtype=torch.float64)
    normal, uniform = draws.normal(200, 50, like=like), draws.uniform(200, 50, like=like)
    assert abs(normal.mean()) < 0.05
    assert abs(normal.std() - 1) < 0.05
    assert abs(uniform.mean() - 0.5) < 0.02
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert sorted(draws.permutation(9).tolist()) == list(range(9))


def test_refusals() -> None:
    with pytest.raises(MethodError, match=r"inherits fedsub.vertical.Protection, got 3"):
        check_protections([3])  # type: ignore[list-item]
    gradient, labels = torch.ones(2, 3), torch.zeros(2)
    with pytest.raises(RunError, match="shape and type must stay"):
        protected((Cut(),), gradient, labels, SECRET, 0, 0)
    with pytest.raises(RunError, match="NaN or infinity"):
        protected((Scaled(float("inf")),), gradient, labels, SECRET, 0, 0)
