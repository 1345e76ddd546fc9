"""No data of this computer's cache, and no report that takes longer to draw than its runs to train."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSUB_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDSUB_TRACEBACK", raising=False)
    return tmp_path


@pytest.fixture
def real_plots() -> None:
    """Ask for it to have the curves drawn."""


@pytest.fixture(autouse=True)
def quick_plots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "real_plots" not in request.fixturenames:
        monkeypatch.setattr("fedsub.study.reproduce.output.panels_plot", lambda panels, **_: Figure(figsize=(1, 1)))
