"""The samples of a split that evaluations look at: chosen once, and kept packed while they are few.

They are the same in every round, so what it takes to choose and to gather them is paid at the first evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedsub import rng
from fedsub.data.clients import Clients

BATCH = 1024  # modest batches stay in the cache,
NUMBERS = 1 << 16  # and larger ones do, too, where a sample is not more than a few numbers
KEPT = 32 << 20  # bytes of a split's columns that are kept from one evaluation to the next


class Sampled:
    """``count`` random samples of a split (None: all), in their order; those of a name are always the same.

    ``numbers``: how many a module makes of a sample at first, by which batches are cut.
    """

    def __init__(self, name: str, clients: Clients, count: int | None, columns: tuple[str, ...], numbers: int):
        self.clients, self.columns, self.batch = clients, columns, max(BATCH, min(8 * BATCH, NUMBERS // numbers))
        if count is None or count >= clients.samples:
            self.samples = np.arange(clients.samples)
        else:
            word = rng.key(rng.EVALUATION, len(name), *name.encode())
            self.samples = rng.some_of(clients.samples, count, word)
        self.owners = clients.clients_of(self.samples)
        self._packed: list[dict[str, np.ndarray]] = []
        self._keeps = True

    def __len__(self) -> int:
        return len(self.samples)

    def batches(self) -> Iterator[dict[str, np.ndarray]]:
        """Columns with ids as rows of the full tables. They are the caller's: a module may write into its input."""
        if self._packed:
            for arrays in self._packed:
                yield {name: array.copy() for name, array in arrays.items()}
            return
        packed, size = [], 0
        for low in range(0, len(self), self.batch):
            some = slice(low, low + self.batch)
            arrays = self.clients.gather(self.samples[some], self.columns, local=False, owners=self.owners[some])
            size += sum(array.nbytes for array in arrays.values())
            if self._keeps and size > KEPT:
                self._keeps, packed = False, []
            if self._keeps:
                packed.append({name: array.copy() for name, array in arrays.items()})
            yield arrays
        self._packed = packed
