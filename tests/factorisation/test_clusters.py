"""Clusters that are spread unevenly over clients are found."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from fedsub.errors import ConfigError
from fedsub.families.factorisation import FedMAvg, factorise
from fedsub.families.factorisation.clusters import accuracy, assigned, gaussian_clusters, matching, spread_start


def test_the_best_matching_is_that_of_brute_force() -> None:
    rng = np.random.default_rng(0)
    for size in range(1, 6):
        counts = rng.integers(0, 20, (size, size))
        best = max(sum(counts[i, p[i]] for i in range(size)) for p in permutations(range(size)))
        assert matching(counts) == best
    assert accuracy(np.array([0, 0, 1, 2]), np.array([2, 2, 0, 0])) == 0.75
    with pytest.raises(ConfigError, match="at most 12"):
        matching(np.zeros((13, 13), int))


def test_clients_have_their_own_clusters() -> None:
    data = gaussian_clusters(20, 40, clusters=4, per_client=2, seed=3)
    assert {len(np.unique(labels)) for labels in data.labels} == {2}
    assert len(np.unique(np.concatenate(data.labels))) == 4
    again = gaussian_clusters(20, 40, clusters=4, per_client=2, seed=3)
    np.testing.assert_array_equal(data.blocks[7], again.blocks[7])
    assert len({block.shape[1] for block in data.blocks}) > 5
    with pytest.raises(ConfigError, match="per_client"):
        gaussian_clusters(per_client=9)


@pytest.mark.parametrize(("projection", "least"), [("simplex", 0.97), ("one-hot", 0.97)])
def test_clusters_are_found_though_no_client_has_all(projection: str, least: float) -> None:
    data = gaussian_clusters(12, 25, clusters=4, per_client=1, dim=8, seed=1)
    method = FedMAvg(clients_per_round=6, projection=projection, q1=10)
    start = spread_start(data.blocks, 4)
    done = factorise(data.blocks, 4, rounds=25, method=method, start=start, every=25, seed=1)
    found = np.concatenate([assigned(h) for h in done.h])
    assert accuracy(np.concatenate(data.labels), found) >= least
    for h in done.h:
        np.testing.assert_allclose(h.sum(0), 1)


def test_one_hot_columns_are_k_means_assignments() -> None:
    data = gaussian_clusters(4, 20, clusters=3, dim=4, spread=1.5, seed=5)
    done = factorise(data.blocks, 3, rounds=1, method=FedMAvg(projection="one-hot"), start=data.centres)
    for block, h in zip(data.blocks, done.h, strict=True):
        distance = ((block[:, None] - data.centres[:, :, None]) ** 2).sum(0)
        np.testing.assert_array_equal(assigned(h), distance.argmin(0))
        assert set(h.ravel().tolist()) == {0.0, 1.0}
