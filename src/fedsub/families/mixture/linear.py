"""Smoothness and strong convexity of linear models, from the features themselves.

Client i has the features A_i [n_i, d] and the local function

    f_i(x) = (1/n_i) Σ_s ℓ(a_s · x, y_s) + (l2/2) ‖x‖²,         0 ≤ ℓ'' ≤ c

with c = ¼ for `losses.binary`, 1 for `losses.squared` and ½ for `losses.cross_entropy` (whose Hessian in the
logits, diag(p) − ppᵀ, has no eigenvalue above ½). So

    L_i = c λ_max(A_iᵀA_i)/n_i + l2,      μ_i = l2,  and l2 + λ_min(A_iᵀA_i)/n_i for least squares.

As a finite sum, f_i = (1/m) Σ_j f_ij of m = ⌈n_i/B⌉ terms, consecutive batches of B samples in stored order,
f_ij = (m/n_i) Σ_{s in batch j} ℓ + (l2/2)‖x‖², and L̃_i is the largest c (m/n_i) λ_max(A_ijᵀA_ij) + l2.

Features are one or more plain columns, or id columns read as one-hot features (logistic regression over tables),
where a row of A counts how often each id occurs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedsub.checks import is_whole
from fedsub.data.clients import Array, Clients
from fedsub.errors import MethodError
from fedsub.families.mixture.constants import Constants
from fedsub.objective.losses import Binary, CrossEntropy, Loss, Squared
from fedsub.objective.models.linear import LinearModel
from fedsub.objective.models.lr import LogisticRegression
from fedsub.objective.objective import Objective

_ITERATIONS = 300
_CLOSE = 1e-3  # of the bound on one-hot features: so much above the eigenvalue at most, if the iterations suffice


@dataclass(frozen=True)
class LinearConstants:
    """L_i, μ_i and, if asked for, L̃_i of every client, float64 [n]."""

    smooth: Array
    convex: Array
    terms: Array | None = None

    @property
    def together(self) -> Constants:
        """What holds for all clients: the largest L_i and L̃_i, the least μ_i."""
        largest = float(self.smooth.max())
        return Constants(
            largest, min(float(self.convex.min()), largest), None if self.terms is None else float(self.terms.max())
        )


def linear_constants(
    clients: Clients,
    features: str | Sequence[str],
    loss: Loss,
    l2: float = 0.0,
    terms: int | None = None,
    *,
    bias: bool = False,
) -> LinearConstants:
    """The constants of a linear model on the columns ``features``; ``terms`` is the batch size B of a term.

    For plain columns they are exact. For id columns λ_max is bounded from above, nearly sharply, and μ_i is l2. A term
    of one sample has the curvature c ‖a_s‖² + l2, and no batch has more: ``terms=1`` is safe for any batches.
    ``bias`` counts as one more feature, which is 1.
    """
    curvature = _curvature(loss)
    if terms is not None and (not is_whole(terms) or terms < 1):
        raise MethodError(f"terms={terms!r} must be the number of samples in a term, 1 or more, or None.")
    names = (features,) if isinstance(features, str) else tuple(features)
    kinds = {clients.column(name).space is None for name in names}
    if len(kinds) != 1:
        raise MethodError(f"features={names!r} must be plain columns or id columns, not both and not none.")
    spectrum = _dense(clients, names, bias) if kinds == {True} else _OneHot(clients, names, bias)
    sizes = clients.sizes
    largest, least = spectrum.extremes(np.arange(len(clients)).repeat(sizes), len(clients))
    convex = np.full(len(clients), float(l2))
    if isinstance(loss, Squared):
        convex = convex + least / sizes
    of_terms = None
    if terms is not None:
        counts = -(-sizes // terms)
        first = np.cumsum(counts) - counts
        within = np.arange(clients.samples) - clients.offsets[:-1].repeat(sizes)
        found, _ = spectrum.extremes(first.repeat(sizes) + within // terms, int(counts.sum()))
        of_terms = curvature * counts / sizes * np.maximum.reduceat(found, first) + l2
    return LinearConstants(curvature * largest / sizes + l2, convex, of_terms)


def objective_constants(objective: Objective, clients: Clients, terms: int | None = None) -> LinearConstants | None:
    """The constants of the built-in linear models ("linear" and "lr"); None for any other module."""
    module = objective.module
    if isinstance(module, LinearModel):
        columns: tuple[str, ...] = module.columns
    elif isinstance(module, LogisticRegression) and module.slope is None and module.own is None:
        columns = tuple(module.columns)
    else:
        return None
    if not isinstance(objective.loss, Binary | Squared | CrossEntropy) or isinstance(objective.l2, Mapping):
        return None
    return linear_constants(clients, columns, objective.loss, objective.l2, terms, bias=module.bias is not None)


def _curvature(loss: Loss) -> float:
    for kind, bound in ((Binary, 0.25), (Squared, 1.0), (CrossEntropy, 0.5)):
        if isinstance(loss, kind):
            return bound
    raise MethodError(
        f"The curvature of the loss {loss!r} is not known; expected losses.binary, squared or cross_entropy."
    )


class _Dense:
    """Plain features [samples, d]: eigenvalues of the smaller of AᵀA and AAᵀ."""

    def __init__(self, features: Array):
        self.features = features

    def extremes(self, groups: Array, count: int) -> tuple[Array, Array]:
        """λ_max and λ_min of AᵀA for every group of samples; ``groups`` rises from 0 to ``count`` − 1."""
        cuts = np.searchsorted(groups, np.arange(count + 1))
        if count == len(groups):
            norms = np.einsum("nd,nd->n", self.features, self.features)
            return norms, norms if self.features.shape[1] == 1 else np.zeros(count)
        largest, least = np.zeros(count), np.zeros(count)
        for k in range(count):
            a = self.features[cuts[k] : cuts[k + 1]]
            wide = len(a) < a.shape[1]
            values = np.linalg.eigvalsh(a @ a.T if wide else a.T @ a)
            largest[k] = values[-1]
            least[k] = 0.0 if wide else max(values[0], 0.0)
        return largest, least


def _dense(clients: Clients, names: tuple[str, ...], bias: bool) -> _Dense:
    parts = [clients.column(name).values.reshape(clients.samples, -1).astype(np.float64) for name in names]
    return _Dense(np.concatenate([*parts, np.ones((clients.samples, int(bias)))], axis=1))


class _OneHot:
    """Ids as features: A[s, k] is how often sample s names row k."""

    def __init__(self, clients: Clients, names: tuple[str, ...], bias: bool):
        rows, samples, start = [], [], 0
        for space in clients.spaces.values():
            for name in (c for c in space.columns if c in names):
                ids = clients.gather(np.arange(clients.samples), [name], local=False)[name]
                ids = ids.reshape(clients.samples, -1)
                real = ids != 0 if space.padding else np.ones(ids.shape, bool)
                samples.append(np.nonzero(real)[0])
                rows.append(ids[real] + start)
            start += space.size
        if bias:
            samples.append(np.arange(clients.samples))
            rows.append(np.full(clients.samples, start))
        self.samples, self.rows, self.width = np.concatenate(samples), np.concatenate(rows), start + 1
        self.count = clients.samples

    def extremes(self, groups: Array, count: int) -> tuple[Array, Array]:
        """An upper bound of λ_max(AᵀA) for every group of samples, and 0 for λ_min.

        M = AᵀA has no negative entry, so λ_max ≤ max_k (Mx)_k/x_k for every x > 0 (Collatz, 1942; Wielandt, 1950), with
        equality at the eigenvector, which power iteration approaches. All groups iterate at once.
        """
        keys, place = np.unique(groups[self.samples] * np.int64(self.width) + self.rows, return_inverse=True)
        owner, samples = keys // self.width, self.samples
        x, best = np.ones(len(keys)), np.full(count, np.inf)
        for _ in range(_ITERATIONS if len(keys) else 0):
            heads = np.flatnonzero(np.diff(owner, prepend=-1))  # where a group begins
            lengths = np.diff(heads, append=len(owner))
            sums = np.bincount(samples, x[place], minlength=self.count)  # A x
            product = np.bincount(place, sums[samples], minlength=len(x))  # Aᵀ A x
            rayleigh = np.add.reduceat(product * x, heads) / np.add.reduceat(x * x, heads)
            here = owner[heads]
            best[here] = np.minimum(best[here], np.maximum.reduceat(product / x, heads))
            far = best[here] > (1 + _CLOSE) * rayleigh
            if not far.any():
                break
            top = np.maximum.reduceat(product, heads)
            x = np.maximum(product / top.repeat(lengths), 1e-200)  # any x > 0 gives a bound, also where a part dies out
            if 2 * far.sum() < len(far):  # most have settled: go on with the others alone
                rows = far.repeat(lengths)
                entries = rows[place]
                place, samples = (np.cumsum(rows) - 1)[place[entries]], samples[entries]
                owner, x = owner[rows], x[rows]
        return np.where(np.isfinite(best), best, 0.0), np.zeros(count)  # 0: not a single id
