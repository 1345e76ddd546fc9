"""What is reached without a network: means and a ridge regression, fitted in one place in about a second.

Print them beside a model's AUC: a recommender that does not beat the mean of each user has learned little.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedsub.data.clients import Array, Clients
from fedsub.errors import ConfigError
from fedsub.objective import metrics
from fedsub.objective.models.columns import Roles
from fedsub.objective.models.user_item import COLUMNS


def smoothed_means(group: Array, label: Array, groups: int, strength: float) -> Array:
    """(positives + strength · base rate) / (samples + strength) of every group: the base rate for empty ones."""
    base = float(label.mean())
    samples = np.bincount(group, minlength=groups)
    return (np.bincount(group, weights=label, minlength=groups) + strength * base) / np.maximum(
        samples + strength, np.finfo(float).tiny
    )


def ridge(groups: list[Array], sizes: list[int], label: Array, strength: float, tolerance: float = 1e-8) -> list[Array]:
    """One weight for each value of each id column, fitted to the centred label ỹ by least squares with a penalty.

    Minimises Σ (ỹ − u[user] − v[item] − …)² + strength (‖u‖² + ‖v‖² + …) by conjugate gradients, to ``tolerance``
    of the right-hand side; a product with the design matrix is a lookup, one with its transpose a count.
    """
    cuts = np.cumsum(sizes)[:-1]
    target = label - label.mean()

    def down(weights: Array) -> Array:
        return np.sum([w[g] for w, g in zip(np.split(weights, cuts), groups, strict=True)], axis=0)

    def up(residual: Array) -> Array:
        counts = [np.bincount(g, weights=residual, minlength=n) for g, n in zip(groups, sizes, strict=True)]
        return np.concatenate(counts)

    weights = np.zeros(sum(sizes))
    left = up(target)
    goal = tolerance**2 * float(left @ left)
    direction, squared = left.copy(), float(left @ left)
    for _ in range(1_000):
        if squared <= goal:
            break
        image = up(down(direction)) + strength * direction
        step = squared / float(direction @ image)
        weights += step * direction
        left -= step * image
        squared, before = float(left @ left), squared
        direction = left + (squared / before) * direction
    return np.split(weights, cuts)


def baseline_scores(
    train: Clients,
    test: Clients,
    *,
    smoothing: float = 5.0,
    penalty: float = 5.0,
    columns: Mapping[str, str] | None = None,
) -> dict[str, Array]:
    """A score for every test sample from each baseline, fitted to the training part.

    user means    the client's positive rate in training, drawn to the base rate as by ``smoothing`` more samples
    item means    the same by item
    ridge         u[client] + v[item], fitted jointly with ``penalty`` on their squares (`ridge`)

    Both parts come from one `Clients.split`; clients are matched by their ids. Those without training samples, and
    unseen items, get the base rate. Without a column of items there are only user means.
    """
    if train.label is None or test.label != train.label:
        raise ConfigError(f"Baselines need the same label in both parts, got {train.label!r} and {test.label!r}.")
    label = np.asarray(train.columns[train.label].values, np.float64)
    owner, owner_test, users = _owners(train, test)
    scores = {"user means": smoothed_means(owner, label, users, smoothing)[owner_test]}
    column = Roles(train, "baselines", COLUMNS, columns).find("item")
    if column is None:
        return scores
    items, item, item_test = train.size(column), _rows(train, column), _rows(test, column)
    scores["item means"] = smoothed_means(item, label, items, smoothing)[item_test]
    u, v = ridge([owner, item], [users, items], label, penalty)
    scores["ridge"] = u[owner_test] + v[item_test]
    return scores


def baseline_auc(
    train: Clients, test: Clients, *, columns: Mapping[str, str] | None = None, **options: float
) -> dict[str, dict[str, float]]:
    """{baseline: {"auc": …, "auc_seen": …}} on the test part; ``auc_seen`` on samples whose item is in training."""
    scores = baseline_scores(train, test, columns=columns, **options)
    assert test.label is not None
    label = np.asarray(test.columns[test.label].values)
    column = Roles(train, "baselines", COLUMNS, columns).find("item")
    seen = np.ones(len(label), bool) if column is None else np.isin(_rows(test, column), _rows(train, column))
    return {
        name: {"auc": metrics.auc(score, label), "auc_seen": metrics.auc(score[seen], label[seen])}
        for name, score in scores.items()
    }


def _owners(train: Clients, test: Clients) -> tuple[Array, Array, int]:
    """The number of each sample's client, alike in both parts, and how many clients there are."""
    everyone, number = np.unique(np.concatenate([train.client_ids, test.client_ids]), return_inverse=True)
    known, other = np.split(number, [len(train)])
    return np.repeat(known, train.sizes), np.repeat(other, test.sizes), len(everyone)


def _rows(clients: Clients, column: str) -> Array:
    return clients.gather(np.arange(clients.samples), [column], local=False)[column]
