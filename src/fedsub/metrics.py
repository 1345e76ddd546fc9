"""Metrics of predictions, in numpy: cross-entropy, accuracy, AUC, by heat decile and by client."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray


def auc(scores: Array, labels: Array) -> float:
    """Area under the ROC curve by mid-ranks: a tied pair counts one half. nan if a class is missing."""
    positive = labels > 0.5
    n_pos = int(positive.sum())
    n_neg = len(labels) - n_pos
    if not n_pos or not n_neg:
        return float("nan")
    _, group, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2  # mean rank of each group of ties, from 1
    return float((ranks[group[positive]].sum() - n_pos * (n_pos + 1) / 2) / (n_pos * n_neg))


def binary(losses: Array, scores: Array, labels: Array) -> dict[str, float]:
    """``ce`` in nats, ``half_ce`` (the mean over two classes that some papers print), accuracy and AUC."""
    ce = float(losses.mean())
    right = (scores > 0) == (labels > 0.5)
    return {"ce": ce, "half_ce": ce / 2, "accuracy": float(right.mean()), "auc": auc(scores, labels)}


def by_group(groups: Array, labels_of_groups: Array, measure) -> list[dict[str, Any]]:
    """``measure(mask)`` for every group that occurs, with its number of samples."""
    out = []
    for g in labels_of_groups:
        mask = groups == g
        count = int(mask.sum())
        out.append({"group": int(g), "samples": count, **(measure(mask) if count else {})})
    return out


def spread(values: Array, owners: Array) -> dict[str, float]:
    """How a per-sample quantity, averaged by client, differs between clients."""
    clients, inverse = np.unique(owners, return_inverse=True)
    means = np.bincount(inverse, weights=values) / np.bincount(inverse)
    low, middle, high = np.quantile(means, [0.1, 0.5, 0.9])
    return {
        "clients": len(clients),
        "mean": float(means.mean()),
        "std": float(means.std()),
        "p10": float(low),
        "median": float(middle),
        "p90": float(high),
    }
