"""Which test samples name an id that training has seen."""

from __future__ import annotations

import numpy as np

from fedsub.data.clients import Array, Clients


def seen_in_training(train: Clients, test: Clients, column: str = "item") -> Array:
    """For every test sample, whether some training sample has the same id in ``column``; bool [test samples].

    A model knows nothing of the others but where their table row began, so metrics should be given with and
    without them: ``take(test, np.flatnonzero(seen_in_training(train, test)))``.
    """
    known = np.zeros(train.size(column), bool)
    known[train.gather(np.arange(train.samples), [column], local=False)[column]] = True
    return known[test.gather(np.arange(test.samples), [column], local=False)[column]]
