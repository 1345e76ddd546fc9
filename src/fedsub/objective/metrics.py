"""Metrics of predictions, in numpy: cross-entropy, accuracy, AUC, by heat decile and by client."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray
SQUARED, ELEMENTWISE = NORMS = "squared_norm", "elementwise_norm"  # of the gradient (`fedsub.round.norms`)


def auc(scores: Array, labels: Array) -> float:
    """Area under the ROC curve by mid-ranks: a tied pair counts one half. nan if a class is missing."""
    positive = labels > 0.5
    n_pos = int(positive.sum())
    n_neg = len(labels) - n_pos
    if not n_pos or not n_neg:
        return float("nan")
    above, below = np.sort(scores[positive]), np.sort(scores[~positive])
    # Sorted numbers looked up in sorted numbers: several times as fast as ranks of all, and as exact.
    won = np.searchsorted(below, above, side="left").sum() + np.searchsorted(below, above, side="right").sum()
    return float(won / 2 / (n_pos * n_neg))


def binary(losses: Array, scores: Array, labels: Array) -> dict[str, float]:
    """``ce`` in nats, ``half_ce`` (the mean over two classes that some papers print), accuracy and AUC."""
    ce = float(losses.mean())
    right = (scores > 0) == (labels > 0.5)
    return {"ce": ce, "half_ce": ce / 2, "accuracy": float(right.mean()), "auc": auc(scores, labels)}


def errors(losses: Array) -> dict[str, float]:
    """``loss``, root mean squared and mean absolute error, of half squared errors."""
    return {
        "loss": float(losses.mean()),
        "rmse": float(np.sqrt(2 * losses.mean())),
        "mae": float(np.sqrt(2 * losses).mean()),
    }


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
    inverse, counts = numbered(owners)
    means = np.bincount(inverse, weights=values) / counts
    low, middle, high = np.quantile(means, [0.1, 0.5, 0.9])
    return {
        "clients": len(means),
        "mean": float(means.mean()),
        "std": float(means.std()),
        "p10": float(low),
        "median": float(middle),
        "p90": float(high),
    }


def numbered(owners: Array) -> tuple[Array, Array]:
    """Which of the distinct owners, in order, has each sample, and how many each has."""
    if not len(owners) or (owners[1:] < owners[:-1]).any():
        _, inverse, counts = np.unique(owners, return_inverse=True, return_counts=True)
        return inverse, counts
    new = np.r_[False, owners[1:] != owners[:-1]]  # samples are evaluated in the order of their clients
    inverse = np.cumsum(new)
    return inverse, np.bincount(inverse)


def by_client(losses: Array, scores: Array | None, labels: Array, owners: Array) -> dict[str, Any]:
    """Means over clients, each counted once: of the loss, of its worst tenth of clients, and of the AUC.

    The AUC is over the ``auc_clients`` that have samples of both classes. ``…_quantiles`` are those of every
    twentieth of the clients, from the least value to the largest.
    """
    inverse, counts = numbered(owners)
    means = np.sort(np.bincount(inverse, weights=losses) / counts)
    worst = means[-max(1, len(means) // 10) :]
    found: dict[str, Any] = {
        "clients": len(means), "loss": float(means.mean()), "worst_decile_loss": float(worst.mean()),
        "loss_quantiles": twentieths(means),
    }  # fmt: skip
    if scores is not None:
        one_by_one = auc_by_client(scores, labels, inverse, len(means))
        one_by_one = np.sort(one_by_one[~np.isnan(one_by_one)])
        found["auc_clients"] = len(one_by_one)
        if len(one_by_one):
            found["auc"] = float(one_by_one.mean())
            found["worst_decile_auc"] = float(one_by_one[: max(1, len(one_by_one) // 10)].mean())
            found["auc_quantiles"] = twentieths(one_by_one)
    return found


def twentieths(values: Array) -> list[float]:
    """Quantiles at 0, 5 %, …, 100 %."""
    return [float(q) for q in np.quantile(values, np.linspace(0, 1, 21))]


def auc_by_client(scores: Array, labels: Array, owners: Array, clients: int) -> Array:
    """`auc` of every client's samples at once; ``owners`` are 0 … clients − 1."""
    order = np.argsort(scores)  # ties share a rank, so their order does not matter
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    # By client, then by place, as one number: the samples of a client stand together already, and stay there.
    bits = len(order).bit_length()
    keys = owners.astype(np.int64) << bits | place
    keys.sort(kind="stable")
    order = order[keys & ((1 << bits) - 1)]
    owner, score, positive = owners[order], scores[order], labels[order] > 0.5
    new = np.r_[True, (owner[1:] != owner[:-1]) | (score[1:] != score[:-1])]  # ties share their mean rank
    group = np.cumsum(new) - 1
    sizes = np.bincount(group)
    first = np.searchsorted(owner, np.arange(clients))  # where each client's samples begin
    rank = (np.cumsum(sizes) - (sizes - 1) / 2)[group] - first[owner]
    n_pos = np.bincount(owner, weights=positive, minlength=clients)
    n_neg = np.bincount(owner, minlength=clients) - n_pos
    with np.errstate(invalid="ignore", divide="ignore"):
        above = np.bincount(owner, weights=rank * positive, minlength=clients) - n_pos * (n_pos + 1) / 2
        return np.where((n_pos > 0) & (n_neg > 0), above / (n_pos * n_neg), np.nan)


def gain(losses: Array, before: Array, owners: Array) -> dict[str, Any]:
    """By how much the loss is lower than ``before``, by client: its mean, deciles, and who is better off."""
    inverse, counts = numbered(owners)
    gained = np.bincount(inverse, weights=before - losses) / counts
    low, middle, high = np.quantile(gained, [0.1, 0.5, 0.9])
    return {
        "mean": float(gained.mean()), "p10": float(low), "median": float(middle), "p90": float(high),
        "better_off": float((gained > 0).mean()), "quantiles": twentieths(gained),
    }  # fmt: skip
