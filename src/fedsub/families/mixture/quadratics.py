"""Quadratic local functions with everything in closed form: the yardstick of the mixture's algorithms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedsub.errors import DataError
from fedsub.families.mixture.constants import Constants
from fedsub.trees import Tree


class Quadratics:
    """f_i(x) = (1/m_i) Σ_j ½ (x − e_ij)ᵀ H_ij (x − e_ij), in float64.

    The terms of all clients lie one behind the other: ``H`` [Σm_i, d, d], ``e`` [Σm_i, d], ``terms`` [n] = m_i;
    without ``terms`` every client has one. A vector ``H`` [Σm_i] stands for a_ij I. With H_i and b_i the means of
    H_ij and H_ij e_ij, the minimiser of F = f + λψ is (F. Hanzely and P. Richtárik, "Federated Learning of a
    Mixture of Global and Local Models", 2020, on quadratics)

        x̄(λ)   = [Σ H_i (H_i + λI)⁻¹]⁻¹ Σ (H_i + λI)⁻¹ b_i
        x_i(λ) = (H_i + λI)⁻¹ (b_i + λ x̄(λ))
    """

    def __init__(self, H: np.ndarray, e: np.ndarray, terms: Sequence[int] | np.ndarray | None = None):
        e = np.asarray(e, np.float64)
        e = e.reshape(len(e), -1)
        H = np.asarray(H, np.float64)
        if H.ndim == 1:
            H = H[:, None, None] * np.eye(e.shape[1])
        if H.shape != (*e.shape, e.shape[1]):
            raise DataError(f"H must be [terms, d, d] with e [terms, d]; got {H.shape} and {e.shape}.")
        self.terms = np.ones(len(e), np.int64) if terms is None else np.asarray(terms, np.int64)
        if self.terms.min(initial=1) < 1 or self.terms.sum() != len(e):
            raise DataError(f"terms must be at least 1 and sum to the {len(e)} rows of e; got {self.terms.tolist()}.")
        self.clients = len(self.terms)
        self._first = np.cumsum(self.terms) - self.terms
        self._H, self._b = torch.from_numpy(H), torch.from_numpy(np.einsum("tij,tj->ti", H, e))
        self._c = 0.5 * torch.from_numpy(np.einsum("ti,tij,tj->t", e, H, e))
        self._mean_H, self._mean_b, self._mean_c = (self._by_client(t) for t in (self._H, self._b, self._c))

    @classmethod
    def random(
        cls, clients: int = 5, size: int = 3, terms: int | Sequence[int] = 8, *, L: float, mu: float, seed: int = 0
    ) -> Quadratics:
        """Terms with curvature between ``mu`` and ``L``, both present in every term, and minimisers of variance 9."""
        draw = np.random.default_rng(seed)
        counts = np.broadcast_to(np.asarray(terms, np.int64), (clients,)).copy()
        total = int(counts.sum())
        values = draw.uniform(mu, L, (total, size))
        values[:, 0], values[:, -1] = L, mu
        turns, _ = np.linalg.qr(draw.standard_normal((total, size, size)))
        H = np.einsum("tij,tj,tkj->tik", turns, values, turns)
        return cls(H, 3 * draw.standard_normal((total, size)), counts)

    def _by_client(self, values: Tensor) -> Tensor:
        """The mean of each client's terms."""
        owners = torch.from_numpy(np.repeat(np.arange(self.clients), self.terms))
        total = values.new_zeros((self.clients, *values.shape[1:])).index_add_(0, owners, values)
        return total / torch.from_numpy(self.terms).to(values.dtype).view(-1, *[1] * (values.ndim - 1))

    def constants(self) -> Constants:
        """The exact constants: extreme curvatures of the f_i, largest curvature of a term."""
        curvatures = np.linalg.eigvalsh(self._mean_H.numpy())
        return Constants(
            L=float(curvatures.max()),
            mu=float(curvatures.min()),
            L_terms=float(np.linalg.eigvalsh(self._H.numpy()).max()),
        )

    def start(self) -> Tree:
        return {"x": torch.zeros_like(self._mean_b)}

    def gradient(self, x: Tree, which: np.ndarray | None = None) -> tuple[np.ndarray, Tree]:
        if which is None:
            H, b, c = self._mean_H, self._mean_b, self._mean_c
        else:
            rows = torch.from_numpy(self._first + which)
            H, b, c = self._H[rows], self._b[rows], self._c[rows]
        at = x["x"]
        pull = torch.einsum("nij,nj->ni", H, at)
        losses = 0.5 * (at * pull).sum(1) - (b * at).sum(1) + c
        return losses.numpy(), {"x": pull - b}

    def mean(self, x: Tree) -> Tree:
        return {"x": x["x"].mean(0, keepdim=True).expand_as(x["x"]).clone()}

    def memory(self) -> QuadraticMemory:
        return QuadraticMemory(self)

    def dot(self, x: Tree, y: Tree) -> np.ndarray:
        return (x["x"] * y["x"]).sum(1).numpy()

    def spread(self, values: np.ndarray) -> Tree:
        return {"x": torch.from_numpy(np.asarray(values, np.float64)).view(-1, 1)}

    def prox(self, centre: Tree, lam: float) -> Tree:
        return {"x": torch.linalg.solve(self._shifted(lam), self._mean_b + lam * centre["x"])}

    def _shifted(self, lam: float) -> Tensor:
        return self._mean_H + lam * torch.eye(self._mean_H.shape[-1], dtype=torch.float64)

    def solution(self, lam: float) -> Tree:
        """x(λ); ``lam`` 0 gives the local minimisers and math.inf the minimiser of Σ f_i for everybody."""
        if math.isinf(lam):
            both = torch.linalg.solve(self._mean_H.sum(0), self._mean_b.sum(0))
            return {"x": both.expand_as(self._mean_b).clone()}
        if lam == 0:
            return self.prox(self.start(), 0.0)
        shrunk = torch.linalg.solve(self._shifted(lam), self._mean_H)  # (H + λI)⁻¹ H, whose factors commute
        local = torch.linalg.solve(self._shifted(lam), self._mean_b)
        centre = torch.linalg.solve(shrunk.sum(0), local.sum(0))
        return self.prox({"x": centre.expand_as(self._mean_b)}, lam)


class QuadraticMemory:
    """The last gradient of every term, [Σm_i, d]."""

    def __init__(self, functions: Quadratics):
        self._functions = functions
        self._stored = torch.zeros_like(functions._b)

    @property
    def mean(self) -> Tree:
        return {"x": self._functions._by_client(self._stored)}

    @property
    def tensors(self) -> Tree:
        return {"x": self._stored}

    def swap(self, which: np.ndarray, gradient: Tree) -> Tree:
        rows = torch.from_numpy(self._functions._first + which)
        before = self._stored[rows]
        self._stored[rows] = gradient["x"]
        return {"x": gradient["x"].sub_(before)}
