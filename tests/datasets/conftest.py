"""Tiny releases for the tests of data sets, and a cache of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_releases import RELEASES, SMALL


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDSUB_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def releases(tmp_path: Path) -> dict[str, Path]:
    """Every release in its original form: where its file or folder is."""
    return {name: make(tmp_path / "releases" / name) for name, make in RELEASES.items()}


@pytest.fixture
def small() -> dict[str, dict[str, int]]:
    return SMALL
