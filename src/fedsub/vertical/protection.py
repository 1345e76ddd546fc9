"""`Protection`: what the label party does to a gradient before a feature party sees it.

Of a batch of b samples the label party sends ∂ℓ/∂z, [b, d]: one row per sample. Where the loss is a mean of binary
cross-entropies those rows tell the labels: rows of positives point the other way than those of negatives, and where
positives are rare they are longer (O. Li et al., "Label leakage and protection in two-party split learning", ICLR
2022). A protection is a frozen dataclass with one function:

@dataclass(frozen=True)
class Rounded(Protection):
    digits: float = 1e-3

    def protect(self, gradient, labels, draws):
        return torch.round(gradient / self.digits) * self.digits

The label party's own bottom and the top learn from the gradient as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedsub import rng
from fedsub.errors import MethodError, RunError


class Protection:
    """Something done to the gradient that a feature party is sent. Subclasses are frozen dataclasses."""

    def protect(self, gradient: Tensor, labels: Tensor, draws: Draws) -> Tensor:
        """What is sent in place of ``gradient``: of the same shape [b, d] and type, and finite.

        ``labels`` are the batch's, [b]; the t-th row of both is of the same sample. Neither may be changed in place.
        """
        raise NotImplementedError


class Draws:
    """Random numbers for one protection of one gradient: a function of (secret, step, party, place), then of the order.

    They are the words of an extendable hash (SHAKE-256, FIPS 202) over a secret of the label party. A feature party
    that has seen many gradients cannot compute them; a resumed run draws the same ones again.
    """

    def __init__(self, secret: bytes, step: int, party: int, place: int = 0):
        """``party`` is the number of the feature party that the gradient is for, ``place`` that of the protection."""
        self._key = secret + b"".join(n.to_bytes(8, "little") for n in (step, party, place))
        self._asked = 0

    def words(self, count: int) -> np.ndarray:
        """The next words, uint64 [count]."""
        self._asked += 1
        return np.frombuffer(
            hashlib.shake_256(self._key + self._asked.to_bytes(8, "little")).digest(8 * count), "<u8"
        ).astype(np.uint64)

    def uniform(self, *shape: int, like: Tensor) -> Tensor:
        """Numbers in [0, 1), in the type of another tensor."""
        return self._tensor(rng.uniform(self.words(int(np.prod(shape)))), shape, like)

    def normal(self, *shape: int, like: Tensor) -> Tensor:
        """Standard normal numbers, in the type of another tensor."""
        return self._tensor(rng.normal(self.words(int(np.prod(shape)))), shape, like)

    def permutation(self, count: int) -> Tensor:
        """A random order of range(count), int64 [count]."""
        return torch.from_numpy(np.argsort(self.words(count), kind="stable"))

    @staticmethod
    def _tensor(values: np.ndarray, shape: tuple[int, ...], like: Tensor) -> Tensor:
        return torch.from_numpy(values).reshape(shape).to(like.dtype)


def check_protections(protections: Sequence[Protection]) -> tuple[Protection, ...]:
    """Refuse what is none, before training."""
    for given in protections:
        if not isinstance(given, Protection):
            raise MethodError(
                f"A protection is an object of a class that inherits fedsub.vertical.Protection, got {given!r}."
            )
    return tuple(protections)


def protected(
    protections: Sequence[Protection], gradient: Tensor, labels: Tensor, secret: bytes, step: int, party: int
) -> Tensor:
    """What a feature party is sent: the protections one after the other."""
    for place, protection in enumerate(protections):
        before, gradient = gradient, protection.protect(gradient, labels, Draws(secret, step, party, place))
        name = type(protection).__name__
        if gradient.shape != before.shape or gradient.dtype != before.dtype:
            raise RunError(
                f"{name} made {gradient.dtype} {list(gradient.shape)} of a gradient that is {before.dtype} "
                f"{list(before.shape)}; shape and type must stay."
            )
        if not bool(torch.isfinite(gradient).all()):
            raise RunError(f"{name} made NaN or infinity of the gradient of step {step}; nothing was sent.")
    return gradient
