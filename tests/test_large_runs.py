"""The scripts of large runs and of plans beside runs, in little."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent / "experiments"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"experiment_{name}", ROOT / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


@pytest.mark.slow
def test_a_large_run_that_is_killed_ends_like_one_that_is_not(tmp_path, capsys):
    scale = script("scale")
    sizes = ["--clients", "300", "--rows", "3000", "--samples", "1500", "--rounds", "24", "--cohort", "10"]
    killed = scale.main([str(tmp_path / "a"), *sizes, "--kill", "13", "--beside", "30", "300"])
    whole = scale.main([str(tmp_path / "b"), *sizes, "--kill", "0"])
    assert killed["large"]["resumed"]
    assert not whole["large"]["resumed"]
    assert killed["large"]["final"] == whole["large"]["final"]  # every measure of the model, to the last bit
    assert len(killed["small"]) == 2
    assert killed["ratio"] > 0
    assert json.loads((tmp_path / "a/scale.json").read_text())["growth"] == killed["growth"]
    assert "beside the small population" in capsys.readouterr().out


@pytest.mark.slow
def test_a_plan_comes_true():
    found = script("planning").main(["LR, a thousandth"])["LR, a thousandth"]
    assert found["all"]["down"] == found["all"]["up"] == 1
    for ratio in ("down", "up"):
        assert found["fifth"][ratio] == pytest.approx(1, abs=0.05)
    assert 0.5 < found["fifth"]["memory"] < 2
    assert 0.2 < found["fifth"]["time"] < 5  # of a machine that may be another one, and busy
