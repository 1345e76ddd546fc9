"""Clients that never deliver: means are over those that do, by the formulas in numpy (`reference`)."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from reference import AVERAGES, EXACT, TOLERANCE, Settings, assert_close, play, simulate, start_of

import fedsub as fs

LOSE = "lost" if "lost" in inspect.signature(fs.run).parameters else "dropout"
ENGINES = pytest.mark.parametrize("engine", ["serial", "batched"])


def check(s: Settings, folder: Path, engine: str, rounds: int) -> None:
    found, cohorts = play(EXACT, s.method(fs.Everyone()), folder, rounds, engine=engine, **{LOSE: 0.4})
    sizes = EXACT.sizes
    for delivered in cohorts:
        assert 0 < len(delivered) < len(sizes)
        assert set(delivered) <= set(range(len(sizes)))
    assert any(len({sizes[i] for i in delivered}) > 1 for delivered in cohorts)  # by samples is not by clients
    start = start_of(EXACT.objective())
    assert_close(found, simulate(EXACT, start, s, cohorts), TOLERANCE)


@ENGINES
@pytest.mark.parametrize("average", AVERAGES)
def test_a_mean_is_over_those_who_delivered(engine: str, average: str, tmp_path: Path) -> None:
    """Σ over the delivered by their number or their samples: K is not the number of those who were invited."""
    check(Settings(average=average), tmp_path / "run", engine, 2)


@ENGINES
@pytest.mark.parametrize("average", ["clients", "samples", "holders by samples", "holders unbiased"])
def test_scaffold_and_fednova_count_those_who_delivered(engine: str, average: str, tmp_path: Path) -> None:
    """The share K/N by which c moves, and τ_eff; a client that was lost keeps its c_i."""
    s = Settings(average=average, scaffold=True, nova=True, batch_size=2)
    check(s, tmp_path / "run", engine, 3)
