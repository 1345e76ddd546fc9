"""Estimates of L and μ from gradients alone, of every client at once.

Products of the Hessian with a vector are central differences of gradients, and Lanczos' method turns a few of them
into the largest and the smallest curvature of every client at a point: the same products as power iteration, used
better. Both lie inside the true range, so L comes out a little too small and μ too large, at that point: use bounds
where you know them (logistic and least-squares models), and leave a margin otherwise. In float32 a difference of
gradients keeps three to four digits, and curvatures below about 1e-3 L are noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fedsub import rng
from fedsub.families.mixture.constants import Constants
from fedsub.families.mixture.functions import Functions, copy, norms
from fedsub.trees import Tree


@dataclass(frozen=True)
class Curvature:
    """The largest and the smallest curvature found for each client, float64 [n]."""

    largest: np.ndarray
    smallest: np.ndarray


def hessian_product(functions: Functions, x: Tree, v: Tree, which: np.ndarray | None = None) -> Tree:
    """∇²f_i(x_i) v_i ≈ (∇f_i(x_i + hv_i) − ∇f_i(x_i − hv_i)) / 2h for unit v_i; h balances both kinds of error."""
    dtype = next(iter(x.values())).dtype
    h = float(torch.finfo(dtype).eps) ** (1 / 3) * max(1.0, float(norms(functions, x).max()))
    sides = []
    for sign in (h, -h):
        moved = {name: torch.add(leaf, v[name], alpha=sign) for name, leaf in x.items()}
        sides.append(functions.gradient(moved, which)[1])
    for name, leaf in sides[0].items():
        leaf.sub_(sides[1][name]).div_(2 * h)
    return sides[0]


def curvature(
    functions: Functions, x: Tree | None = None, which: np.ndarray | None = None, *, steps: int = 20, seed: int = 0
) -> Curvature:
    """Extreme curvatures of f_i at x (x⁰ if None), or of one term of each client, after ``steps`` Lanczos steps.

    With Q the vectors v_k that the recurrence β_k v_{k+1} = H v_k − α_k v_k − β_{k−1} v_{k−1} makes orthonormal,
    QᵀHQ is tridiagonal with α on and β beside the diagonal, and its extreme eigenvalues tend to those of H.
    """
    x = functions.start() if x is None else x
    n = functions.clients
    v, before = _random_unit(functions, x, seed), None
    diagonal, beside = np.zeros((n, steps)), np.zeros((n, steps))
    active, tiny = np.ones(n, bool), float(torch.finfo(next(iter(x.values())).dtype).eps) ** 0.5
    for k in range(steps):
        product = hessian_product(functions, x, v, which)
        # A client whose vectors span all that its Hessian reaches has ended: repeat a value from inside its range.
        diagonal[:, k] = np.where(active, functions.dot(product, v), diagonal[:, 0])
        _subtract(functions, product, v, diagonal[:, k])
        if before is not None:
            _subtract(functions, product, before, beside[:, k - 1])
        size = norms(functions, product)
        active &= size > tiny * np.maximum(np.abs(diagonal[:, : k + 1]).max(1), 1e-300)
        beside[:, k] = np.where(active, size, 0.0)
        if not active.any():
            diagonal[:, k + 1 :] = diagonal[:, :1]
            break
        scale = functions.spread(np.divide(1.0, size, out=np.zeros(n), where=active))
        before, v = v, {name: leaf.mul_(scale[name]) for name, leaf in product.items()}
    matrix = np.zeros((n, steps, steps))
    i = np.arange(steps)
    matrix[:, i, i] = diagonal
    matrix[:, i[1:], i[:-1]] = matrix[:, i[:-1], i[1:]] = beside[:, :-1]
    values = np.linalg.eigvalsh(matrix)
    return Curvature(values[:, -1], values[:, 0])


def estimate_constants(
    functions: Functions,
    x: Tree | None = None,
    *,
    steps: int = 20,
    draws: int = 4,
    margin: float = 1.1,
    mu: float | None = None,
    seed: int = 0,
) -> Constants:
    """L times ``margin``, μ and L̃ over all clients at x (x⁰ if None).

    ``mu`` is used where given: with weight decay it is known to be at least that. A negative estimate (the loss
    is not convex there) counts as 0. L̃ is the largest over ``draws`` random terms of each client.
    """
    whole = curvature(functions, x, steps=steps, seed=seed)
    L = max(float(whole.largest.max()), 1e-12)
    of_terms = L
    if functions.terms.max() > 1:
        for draw in range(draws):
            words = rng.key(seed, rng.TERM, -1 - draw, np.arange(functions.clients))
            found = curvature(functions, x, rng.below(words, functions.terms), steps=steps, seed=seed)
            of_terms = max(of_terms, float(found.largest.max()))
    smallest = max(0.0, float(whole.smallest.min()))
    return Constants(margin * L, min(smallest if mu is None else mu, margin * L), margin * of_terms)


def _random_unit(functions: Functions, x: Tree, seed: int) -> Tree:
    """A random vector of length 1 for each client."""
    out = copy(x)
    for place, leaf in enumerate(out.values()):
        words = rng.mix(rng.key(seed, rng.OTHER, place) + np.arange(leaf.numel(), dtype=np.uint64))
        leaf.copy_(torch.from_numpy(rng.uniform(words) - 0.5).view(leaf.shape))
    scale = functions.spread(1 / np.maximum(norms(functions, out), 1e-300))
    return {name: leaf.mul_(scale[name]) for name, leaf in out.items()}


def _subtract(functions: Functions, x: Tree, y: Tree, scales: np.ndarray) -> None:
    """x_i ← x_i − scale_i · y_i."""
    spread = functions.spread(scales)
    for name, leaf in x.items():
        leaf.addcmul_(y[name], spread[name], value=-1)
