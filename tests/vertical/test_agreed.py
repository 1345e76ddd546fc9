"""What parties agree on without saying it: which samples a batch holds, whose samples they are."""

from __future__ import annotations

import numpy as np
import pytest

from fedsub.data.clients import Clients
from fedsub.vertical.agreed import batch_of, ids_digest


@pytest.mark.parametrize(("samples", "size"), [(46, 13), (12, 4), (5, 8), (1, 1)])
def test_a_pass_has_every_sample_once_and_every_pass_an_order_of_its_own(samples: int, size: int) -> None:
    batches = -(-samples // size)
    passes = [
        np.concatenate([batch_of(3, samples, size, turn * batches + k + 1) for k in range(batches)])
        for turn in range(6)
    ]  # fmt: skip
    assert all(sorted(one.tolist()) == list(range(samples)) for one in passes)
    assert all(len(batch_of(3, samples, size, turn * batches + 1)) == min(size, samples) for turn in range(6))
    if samples > 10:
        assert len({tuple(one.tolist()) for one in passes}) == 6
        assert batch_of(3, samples, size, 1).tolist() != batch_of(4, samples, size, 1).tolist()


def test_orders_are_random() -> None:
    """Every sample is as often in the first batch as any other: 400 passes, four standard deviations."""
    counts = np.bincount(np.concatenate([batch_of(0, 20, 5, 4 * turn + 1) for turn in range(400)]), minlength=20)
    assert np.abs(counts - 100).max() < 4 * (400 * 0.25 * 0.75) ** 0.5


def test_a_digest_tells_ids_their_order_and_where_they_end() -> None:
    def digest(*ids: str) -> int:
        data = {"id": list(ids), "x": np.arange(len(ids), dtype=float)}
        return ids_digest(Clients.from_arrays(data, client="id", ids=[], values=["x"]), "somebody")

    assert digest("a", "b", "c") == digest("c", "b", "a")  # read in any order, they are sorted
    assert len({digest("a", "b"), digest("a", "c"), digest("ab"), digest("a", "b", "c"), digest("a", "bc")}) == 5
