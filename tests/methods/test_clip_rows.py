"""ClipRows: each row of the mean update by its own Euclidean norm, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from known_answers import ENGINES
from reference import EXACT, TABLE, TOLERANCE, Settings, assert_close, play, simulate, start_of

import fedsub as fs

EVERYBODY = list(range(len(EXACT.sizes)))
LOCAL = {"lr": 0.3, "local_epochs": 1, "batch_size": 2, "batches": "ordered", "clients_per_round": None}


def clipped(s: Settings) -> tuple[dict, np.ndarray, float]:
    """One round of everybody with the longer half of the rows clipped: the model, which rows, and the limit."""
    start = start_of(EXACT.objective())
    free = simulate(EXACT, start, replace(s, server_lr=1.0), [EVERYBODY])
    step = free[TABLE] - start[TABLE]
    lengths = np.sqrt((step**2).sum(1))
    max_norm = float(np.median(lengths[lengths > 0])) * 1.01
    factors = np.array([min(1.0, max_norm / length) if length else 1.0 for length in lengths])
    dense = {k: v for k, v in free.items() if k != TABLE}
    assert all(np.linalg.norm(v - start[k]) > max_norm for k, v in dense.items())  # dense ones would be clipped, too
    return {TABLE: start[TABLE] + factors[:, None] * step, **dense}, factors < 1, max_norm


@ENGINES
@pytest.mark.parametrize("average", ["samples", "holders by samples"])
def test_rows_that_are_too_long_are_scaled_down(engine: str, average: str, tmp_path: Path) -> None:
    expected, long, max_norm = clipped(Settings(average=average, batch_size=2))
    make = fs.methods.fedavg if average == "samples" else fs.methods.fedsubavg
    found, _ = play(EXACT, make(clip_rows=max_norm, **LOCAL), tmp_path / "run", 1, engine=engine)
    assert_close(found, expected, TOLERANCE)
    lengths = np.linalg.norm(found[TABLE] - start_of(EXACT.objective())[TABLE], axis=1)
    np.testing.assert_allclose(lengths[long], max_norm, rtol=1e-9)
    assert (lengths[~long] < max_norm).all()
    assert 2 < long.sum() < (lengths > 0).sum() - 2


@ENGINES
def test_what_is_clipped_is_the_step_that_fednova_makes(engine: str, tmp_path: Path) -> None:
    """The limit is on how far a row moves in a round, τ_eff included."""
    expected, _, max_norm = clipped(Settings(average="samples", batch_size=2, nova=True))
    found, _ = play(EXACT, fs.methods.fednova(clip_rows=max_norm, **LOCAL), tmp_path / "run", 1, engine=engine)
    assert_close(found, expected, TOLERANCE)
