"""What the algorithms of the mixture objective know of a problem: the local functions of all clients at once.

    F(x) = f(x) + λ ψ(x),   f = (1/n) Σ f_i(x_i),   ψ = (1/2n) Σ ‖x_i − x̄‖²,   f_i = (1/m_i) Σ_j f_ij

x is a Tree with one leaf per parameter, laid out over clients: dense [n, …], tables [Σ|S(i)|, d], client after
client. On submodels x̄ of a row is the mean over the clients that hold it; the residuals x_i − x̄ of a row then
still sum to 0, so (∇ψ)_i = (x_i − x̄)/n as on full models and every algorithm carries over as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from fedsub.trees import Tree, add_rows, take_rows


class Rows(NamedTuple):
    """A leaf that is 0 outside some of its rows: what a term says about a table."""

    places: Tensor  # int64 [k], in the leaf as it is laid out over clients; one may occur more than once
    values: Tensor  # [k, d]


Change = Mapping[str, Tensor | Rows]


class Memory(Protocol):
    """A gradient of every term of every client, J_i[:, l]; zero at first."""

    @property
    def mean(self) -> Tree: ...  # (1/m_i) Σ_l J_i[:, l], laid out like x; no step of an algorithm reads it

    @property
    def tensors(self) -> Tree: ...  # all of it under flat names, for checkpoints; restored in place

    def swap(self, which: np.ndarray, gradient: Tree) -> Change:
        """Store the gradient as J_i[:, which[i]] and return gradient − what was there (may reuse its memory).

        Leaves in which only some rows change may be given as those rows.
        """
        ...


class Functions(Protocol):
    """The local functions f_i of n clients. Trees that it returns belong to the caller, who may change them."""

    @property
    def clients(self) -> int: ...  # n

    @property
    def terms(self) -> np.ndarray: ...  # int64 [n], m_i

    def start(self) -> Tree: ...  # x⁰, a copy for every client

    def gradient(self, x: Tree, which: np.ndarray | None = None) -> tuple[np.ndarray, Tree]:
        """Losses, float64 [n], and the gradients of f_i (which None) or of the term which[i] of every client."""
        ...

    def mean(self, x: Tree) -> Tree: ...  # x̄ laid out like x: of a row the mean over the clients that hold it

    def memory(self) -> Memory: ...

    def dot(self, x: Tree, y: Tree) -> np.ndarray: ...  # float64 [n], by client

    def spread(self, values: np.ndarray) -> Tree:
        """One number per client, [n], shaped to multiply the leaves of x, in their dtype: [n, 1, …] or [Σ|S(i)|, 1]."""
        ...


@runtime_checkable
class WithProx(Protocol):
    """Functions that know prox_{f_i/λ}(c_i) = argmin_z f_i(z) + (λ/2) ‖z − c_i‖² exactly."""

    def prox(self, centre: Tree, lam: float) -> Tree: ...


@runtime_checkable
class WithValue(Protocol):
    """Functions whose values are not the losses that come with gradients: those leave an l2 term out."""

    def values(self, x: Tree) -> np.ndarray: ...  # f_i(x_i), float64 [n]


def norms(functions: Functions, x: Tree) -> np.ndarray:
    """‖x_i‖ of every client, float64 [n]."""
    return np.sqrt(functions.dot(x, x))


def root_mean_square(functions: Functions, x: Tree) -> float:
    """√((1/n) Σ ‖x_i‖²)."""
    return float(np.sqrt(functions.dot(x, x).mean()))


def minus(x: Tree, y: Tree) -> Tree:
    return {name: leaf - y[name] for name, leaf in x.items()}


def copy(x: Tree) -> Tree:
    return {name: leaf.clone() for name, leaf in x.items()}


def zeros_like(x: Tree) -> Tree:
    return {name: leaf.new_zeros(leaf.shape) for name, leaf in x.items()}


def add(x: Tree, y: Change, scale: float) -> None:
    """x ← x + scale · y, in place."""
    for name, leaf in x.items():
        other = y[name]
        if isinstance(other, Rows):
            add_rows(leaf, other.places, other.values * scale)
        else:
            leaf.add_(other, alpha=scale)


def add_scaled(x: Tree, y: Change, scales: Tree) -> None:
    """x_i ← x_i + scale_i · y_i with one number per client, `Functions.spread`; in place."""
    for name, leaf in x.items():
        other = y[name]
        if isinstance(other, Rows):
            add_rows(leaf, other.places, other.values * take_rows(scales[name], other.places))
        else:
            leaf.addcmul_(other, scales[name])


def assign(x: Tree, y: Tree) -> None:
    """x ← y, in place."""
    for name, leaf in x.items():
        leaf.copy_(y[name])
