"""Poisson: a coin for every client."""

from __future__ import annotations

import math

import numpy as np
from drawing import EVEN, ROUNDS, close, cohorts, no_probe

from fedsub.method.sampling import (
    Poisson,
)


def test_poisson_flips_a_coin_per_client() -> None:
    bound = Poisson(2).bind(np.append(EVEN, 0))  # N = 8: who has no data does not count
    sizes = np.array([len(bound.select(r, 4, no_probe)) for r in range(ROUNDS)])
    assert abs(sizes.mean() - 2) < 4 * math.sqrt(8 * 0.25 * 0.75 / ROUNDS)
    close(float((sizes == 0).sum()), 0.75**8)
    close(cohorts(bound)[:8], np.full(8, 0.25))
    assert bound.may_be_empty
    assert bound.select(int(np.argmin(sizes)), 4, no_probe).clients.tolist() == []
    assert len(Poisson(8).bind(EVEN).select(1, 0, no_probe)) == 8  # q = 1
    close(cohorts(bound, eligible=np.array([1, 2]))[1:3], np.full(2, 0.25))  # q does not change
