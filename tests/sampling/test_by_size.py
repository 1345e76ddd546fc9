"""BySize: its law with and without replacement, by counting."""

from __future__ import annotations

import numpy as np
from drawing import ROUNDS, UNEVEN, close, cohorts, no_probe

from fedsub.method.sampling import (
    BySize,
)


def test_first_draw_by_size_is_by_size() -> None:
    for how in (BySize(1), BySize(1, replacement=True)):
        close(cohorts(how.bind(UNEVEN)), UNEVEN / UNEVEN.sum())


def test_by_size_without_replacement_is_sequential() -> None:
    p = UNEVEN / UNEVEN.sum()
    # in the first draw, or in the second after j
    two = p + np.array([sum(p[j] * p[k] / (1 - p[j]) for j in range(6) if j != k) for k in range(6)])
    close(cohorts(BySize(2).bind(UNEVEN)), two)


def test_by_size_with_replacement_is_independent() -> None:
    bound = BySize(4, replacement=True).bind(UNEVEN)
    p = UNEVEN / UNEVEN.sum()
    close(cohorts(bound), p, 4 * ROUNDS)
    twins = [bound.select(r, 1, no_probe).clients for r in range(ROUNDS)]
    close(sum(int(c[0] == c[1]) for c in twins), (p**2).sum())
    assert any(bound.select(r, 1, no_probe).repeats.max() > 0 for r in range(20))
