"""From a matrix of features and its labels to clients: scale the features, choose the owners, build.

How unlike clients are is how their labels differ:

    sorted      ordered by label and cut into equal stretches: most clients see one label only
    uniform     at random and equal in size: every client is like the whole ("hom" means the same)
    dirichlet   equal in size; client i draws its mix of labels from Dirichlet(alpha · mix of all)
                (Hsu, Qi, Brown, 2019): alpha → 0 is one label each, alpha → ∞ is uniform
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any, Literal, get_args

import numpy as np

from fedsub.checks import is_number, is_whole
from fedsub.data.clients import Array, Clients
from fedsub.data.datasets.options import Says
from fedsub.errors import DataError, nearest

Split = Literal["sorted", "uniform", "hom", "dirichlet"]
Scaling = Literal["raw", "standard", "unit", "standard-unit"]
FEATURES, LABEL = "features", "label"
MOST_BYTES = 4 << 30  # of features as float32
_BINS = 10  # labels that are values are mixed by their tenths

Count = Annotated[int, Says("number of clients")]
How = Annotated[Split, Says("which samples a client gets")]
Alpha = Annotated[float, Says("of split dirichlet: the smaller, the less alike clients are", least=1e-6)]
Seed = Annotated[int, Says("of the random choices", least=0)]


def divide(
    features: Any,
    labels: Any,
    *,
    clients: int = 20,
    split: Split = "sorted",
    scaling: Scaling = "raw",
    alpha: float = 0.5,
    seed: int = 0,
    source: str = "",
) -> Clients:
    """`Clients` with the columns ``features`` [samples, d] and ``label``, from arrays.

    clients    how many; sizes differ by one sample at most
    split      "sorted", "uniform" (or "hom") or "dirichlet" with ``alpha``
    scaling    "raw"       as given
               "standard"  every feature has mean 0 and variance 1 over all samples; a constant one is 0
               "unit"      every sample has Euclidean norm 1 (0 stays 0)
               "standard-unit"  one after the other

    Labels may be any finite numbers; for the logistic loss they must be 0 and 1.
    """
    x, y = _matrix(features), np.asarray(labels, np.float64)
    if y.ndim != 1 or len(y) != len(x):
        raise DataError(f"labels have shape {y.shape}, expected one for each of the {len(x):,} samples.")
    if not np.isfinite(y).all():
        at = int(np.argmin(np.isfinite(y)))
        raise DataError(f"The label of sample {at} is {y[at]}, expected a finite number; fill it or drop the sample.")
    if not np.isfinite(x).all():
        at, column = np.argwhere(~np.isfinite(x))[0]
        raise DataError(f"Feature {column} of sample {at} is {x[at, column]}, expected a finite number; fill it.")
    parts = owners(y, clients, split, alpha=alpha, seed=seed)
    order = np.concatenate(parts)
    offsets = np.concatenate([[0], np.cumsum([len(p) for p in parts])])
    with np.errstate(over="ignore"):  # what exceeds float32 is refused with its row
        arrays = {FEATURES: scaled(x, scaling)[order].astype(np.float32), LABEL: y[order]}
    made = Clients.from_arrays(arrays, offsets=offsets, ids=(), label=LABEL, values=[FEATURES], binary_label=False)
    return replace(made, source=source)


def _matrix(features: Any) -> Array:
    x = np.asarray(features)
    if x.ndim != 2 or not x.shape[1] or x.dtype.kind not in "fiub":
        raise DataError(f"features have shape {x.shape} and type {x.dtype}, expected numbers [samples, d], d ≥ 1.")
    if not len(x):
        raise DataError("The data has no samples; check the file or the filter.")
    return x


def check_size(samples: int, width: int, what: str) -> None:
    """Refuse features that do not fit into memory as a dense matrix."""
    if 4 * samples * width > MOST_BYTES:
        raise DataError(
            f"{what} has {samples:,} samples of {width:,} features, {4e-9 * samples * width:,.1f} GB as a matrix; give "
            "fewer samples or features, or read sparse features as ids (Clients.from_frame, model lr)."
        )


def scaled(x: Array, how: Scaling) -> Array:
    """The features, scaled as `divide` says, in double precision."""
    if how not in get_args(Scaling):
        raise DataError(f"scaling={how!r} is unknown: {nearest(str(how), get_args(Scaling))}")
    x = x.astype(np.float64)
    if how.startswith("standard"):
        spread = x.std(0)
        constant = spread <= 1e-12 * np.abs(x).max(0)  # what rounding leaves of nothing
        x = (x - x.mean(0)) / np.where(constant, 1.0, spread)
        x[:, constant] = 0.0
    if how.endswith("unit"):
        norms = np.linalg.norm(x, axis=1, keepdims=True)
        x = x / np.where(norms > 0, norms, 1.0)
    return x


def owners(labels: Array, clients: int, split: Split, *, alpha: float = 0.5, seed: int = 0) -> list[Array]:
    """The samples of every client, as positions; every sample has one owner."""
    if split not in get_args(Split):
        raise DataError(f"split={split!r} is unknown: {nearest(str(split), get_args(Split))}")
    if not is_whole(clients) or clients < 1:
        raise DataError(f"clients={clients!r} must be a whole number, 1 or more.")
    if clients > len(labels):
        raise DataError(
            f"{len(labels):,} samples cannot be given to {clients:,} clients, one each at least; lower clients."
        )
    if not is_whole(seed) or seed < 0:
        raise DataError(f"seed={seed!r} must be a whole number, 0 or more.")
    draw = np.random.default_rng(seed)
    order = draw.permutation(len(labels))  # equal labels are in no order of their own
    if split == "dirichlet":
        return _dirichlet(labels, order, clients, alpha, draw)
    if split == "sorted":
        order = order[np.argsort(labels[order], kind="stable")]
    return np.array_split(order, clients)


def _dirichlet(labels: Array, order: Array, clients: int, alpha: float, draw: np.random.Generator) -> list[Array]:
    if not is_number(alpha) or alpha <= 0:
        raise DataError(f"alpha={alpha!r} must be a number above 0.")
    classes = _classes(labels)
    stock = [order[classes[order] == c] for c in range(classes.max() + 1)]
    left = np.array([len(s) for s in stock])
    prior = left / left.sum()
    out = []
    for size in [len(p) for p in np.array_split(order, clients)]:
        taken = np.zeros_like(left)
        # Shares of a tiny alpha round to 0; a little of everything keeps the draw defined.
        mix = draw.dirichlet(np.maximum(alpha * prior, 1e-9)) + 1e-12
        while (missing := size - taken.sum()) > 0:  # a label that has run out leaves its part to the others
            share = np.where(left > taken, mix, 0.0)
            taken = np.minimum(taken + draw.multinomial(missing, share / share.sum()), left)
        out.append(np.concatenate([s[len(s) - n : len(s) - n + t] for s, n, t in zip(stock, left, taken, strict=True)]))
        left = left - taken
    return out


def _classes(labels: Array) -> Array:
    """Class numbers 0, 1, …; labels of very many values are put into tenths."""
    values, numbers = np.unique(labels, return_inverse=True)
    if len(values) <= max(2 * _BINS, math.isqrt(len(labels))):
        return numbers
    return np.argsort(np.argsort(labels, kind="stable"), kind="stable") * _BINS // len(labels)
