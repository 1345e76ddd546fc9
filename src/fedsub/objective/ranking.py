"""How good lists are, from the places at which their positives stand.

A list has R positives among its items; p_1 < p_2 < … are their places, 1 the best. Of its first k:

    hr@k         1 if a positive is among them, else 0
    recall@k     |{j: p_j <= k}| / R
    precision@k  |{j: p_j <= k}| / k
    mrr@k        1 / p_1 if p_1 <= k, else 0
    ndcg@k       Σ_{p_j <= k} 1/log₂(p_j + 1)  /  Σ_{j <= min(R, k)} 1/log₂(j + 1)        (Järvelin, Kekäläinen, 2002)

Places: a positive stands behind the negatives with a higher score, behind half of those with the same score (the mean
over random orders of equal items, so that a model that says the same of everything gains nothing), and behind the
positives before it.
"""

from __future__ import annotations

import numpy as np

Array = np.ndarray

KINDS = ("hr", "ndcg", "mrr", "recall", "precision")


def place(owner: Array, scores: Array, above: Array, tied: Array) -> Array:
    """Places of positives, float64 [n]: of the list ``owner``, with so many negatives above and beside each."""
    order = np.lexsort((-scores, owner))
    sorted_owner = owner[order]
    first = np.searchsorted(sorted_owner, sorted_owner)  # where each one's list begins
    before = np.empty(len(order), np.float64)
    before[order] = np.arange(len(order)) - first
    return 1.0 + above + tied / 2 + before


def by_list(kind: str, k: int, owner: Array, places: Array, lists: int) -> Array:
    """A measure of every list, [lists]; each has a positive."""
    hit = places <= k
    hits = np.bincount(owner, hit, lists)
    if kind == "hr":
        return (hits > 0).astype(np.float64)
    if kind == "precision":
        return hits / k
    count = np.bincount(owner, minlength=lists)
    if kind == "recall":
        return hits / count
    if kind == "mrr":
        best = np.full(lists, np.inf)
        np.minimum.at(best, owner, places)
        return np.where(best <= k, 1 / best, 0.0)
    gain = np.bincount(owner, np.where(hit, 1 / np.log2(places + 1), 0.0), lists)
    ideal = np.cumsum(1 / np.log2(np.arange(1, k + 1) + 1))
    return gain / ideal[np.minimum(count, k) - 1]


def mean_by_owner(values: Array, owners: Array) -> Array:
    """The mean of each owner's values, in the order of the owners."""
    _, inverse, counts = np.unique(owners, return_inverse=True, return_counts=True)
    return np.bincount(inverse, values) / counts
