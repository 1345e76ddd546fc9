"""FedPer's server: the base by samples, W_B + Σ n_i Δ_i / Σ n_i; heads stay where they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from reference import EXACT, TABLE, TOLERANCE, Settings, assert_close, play, start_of, train

import fedsub as fs

HEAD = ("out.weight", "out.bias")
ZERO = {name: np.zeros(()) for name in (TABLE, *HEAD)}


@pytest.mark.parametrize("engine", ["serial", "batched"])
@pytest.mark.parametrize("count", [None, 3])
def test_the_base_is_averaged_by_samples_and_heads_are_not(engine: str, count: int | None, tmp_path: Path) -> None:
    method = fs.methods.fedper(
        personal=list(HEAD), personal_init="shared", lr=0.3, local_epochs=1, batch_size=4, batches="ordered",
        clients_per_round=count,
    )  # fmt: skip
    found, cohorts = play(EXACT, method, tmp_path / "run", 3, engine=engine)
    start, sizes = start_of(EXACT.objective()), EXACT.sizes
    base, heads = start[TABLE], [{k: start[k] for k in HEAD} for _ in sizes]
    for cohort in cohorts:
        assert len(cohort) == (count or len(sizes))
        assert len({sizes[i] for i in cohort}) > 1
        total = np.zeros_like(base)
        for i in cohort:
            trained, _ = train(EXACT, i, {TABLE: base, **heads[i]}, Settings(), ZERO)
            total += sizes[i] * (trained[TABLE] - base)
            heads[i] = {k: trained[k] for k in HEAD}
        base = base + total / sizes[cohort].sum()
    # The server's heads are those it began with, bit for bit.
    assert all(np.array_equal(found[k], start[k]) for k in HEAD)
    assert all(not np.array_equal(heads[cohorts[-1][0]][k], start[k]) for k in HEAD)
    assert_close({TABLE: found[TABLE]}, {TABLE: base}, TOLERANCE)
