"""Clustering as matrix factorisation: columns of W are centres, a column of H says which centre a point belongs to.

With one-hot columns ‖X − WH‖² is the objective of k-means, with columns on the simplex its relaxation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsub import rng
from fedsub.errors import ConfigError
from fedsub.families.factorisation.factorise import normal

MOST = 12  # clusters for which the best matching is searched


@dataclass(frozen=True)
class Clusters:
    """Points of all clients: ``blocks[p]`` is [dim, N_p], ``labels[p]`` [N_p], ``centres`` [dim, clusters]."""

    blocks: list[np.ndarray]
    labels: list[np.ndarray]
    centres: np.ndarray


def gaussian_clusters(
    clients: int = 30,
    points: int = 60,
    *,
    clusters: int = 5,
    dim: int = 10,
    per_client: int | None = 2,
    spread: float = 0.3,
    seed: int = 0,
) -> Clusters:
    """Gaussian clusters around normal centres, spread unevenly over clients.

    A client has between half and one and a half times ``points`` points, of ``per_client`` clusters only (None: of
    all, as in i.i.d. data). ``spread`` is the standard deviation around a centre.
    """
    for name, value in {"clients": clients, "points": points, "clusters": clusters, "dim": dim}.items():
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}.")
    if per_client is not None and not 1 <= per_client <= clusters:
        raise ConfigError(f"per_client must lie between 1 and clusters={clusters}, got {per_client}.")
    centres = normal((dim, clusters), int(rng.key(seed, rng.OTHER, 6) >> np.uint64(2)))  # not those W may start at
    blocks, labels = [], []
    for p in range(clients):
        word = rng.key(seed, rng.OTHER, 7, p)
        size = max(1, round(points * (0.5 + float(rng.uniform(np.array([word]))[0]))))
        own = rng.first_of_permutation(clusters, per_client or clusters, word)
        label = own[rng.below(rng.key(seed, rng.OTHER, 8, p, np.arange(size)), len(own))]
        noise = normal((dim, size), int(word >> np.uint64(2)))
        blocks.append(centres[:, label] + spread * noise)
        labels.append(label)
    return Clusters(blocks, labels, centres)


def spread_start(
    blocks: list[np.ndarray], rank: int, *, seed: int = 0, candidates: int = 10, near: int = 5
) -> np.ndarray:
    """A first W [M, rank] that lies in the data: candidates of clients, of which those far apart are taken.

    ``candidates`` times rank random clients each offer the mean of a random point and its ``near`` − 1 nearest ones.
    The server begins with the first and goes on with the one farthest from all it has (Gonzalez, 1985).
    """
    filled = [block for block in blocks if block.shape[1]]
    offered = []
    for who, which in rng.uniform(rng.key(seed, rng.OTHER, 9, np.arange(candidates * rank)[:, None], np.arange(2))):
        block = filled[int(who * len(filled))]
        first = int(which * block.shape[1])
        distance = ((block - block[:, first : first + 1]) ** 2).sum(0)
        offered.append(block[:, np.argsort(distance, kind="stable")[:near]].mean(1))
    points = np.array(offered)
    chosen = [0]
    while len(chosen) < rank:
        distance = ((points[:, None] - points[chosen][None]) ** 2).sum(2).min(1)
        chosen.append(int(distance.argmax()))
    return points[chosen].T


def assigned(h: np.ndarray) -> np.ndarray:
    """The cluster of every column of H: its largest entry."""
    return h.argmax(0)


def accuracy(labels: np.ndarray, found: np.ndarray) -> float:
    """The share of points in their cluster, under the naming of the found clusters that makes it largest."""
    labels, found = np.asarray(labels), np.asarray(found)
    size = int(max(labels.max(), found.max())) + 1
    counts = np.bincount(labels * size + found, minlength=size * size).reshape(size, size)
    return matching(counts) / len(labels)


def matching(counts: np.ndarray) -> int:
    """The largest sum of one entry per row, no two in a column; by dynamic programming over sets of columns."""
    size = len(counts)
    if size > MOST:
        raise ConfigError(f"The best matching is searched among at most {MOST} clusters, got {size}.")
    best = np.full(1 << size, -1, np.int64)  # best[s]: of the first |s| rows with the columns in s
    best[0] = 0
    sets = np.arange(1 << size)
    rows = np.array([bin(s).count("1") for s in sets])
    for row in range(size):
        here = sets[rows == row]
        for column in range(size):
            free = here[(here >> column) & 1 == 0]
            np.maximum.at(best, free | (1 << column), best[free] + counts[row, column])
    return int(best[-1])
