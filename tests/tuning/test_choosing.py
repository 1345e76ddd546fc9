"""Which setting wins: criteria, ties, the edge of the grid, trials that diverge or are refused."""

from __future__ import annotations

import math

import pytest
from searches import FIXED, rows, tune

from fedsub.errors import MethodError, RunError
from fedsub.running.result import Target
from fedsub.study.tuning import space
from fedsub.study.tuning.choose import Criterion, Setting, choose, warnings
from fedsub.study.tuning.trials import Trial


def trial(*losses: float, seed: int = 0) -> Trial:
    history = [{"round": i, "validation.ce": v, "train.ce": v} for i, v in enumerate(losses)]
    return Trial(seed, len(losses) - 1, history, {"validation": {"ce": losses[-1]}, "train": {"ce": losses[-1]}})


def setting(number: int, *trials: Trial, lr: float | None = None) -> Setting:
    return Setting("A", number, {"lr": float(number) if lr is None else lr}, list(trials))


def test_criteria():
    early, late = setting(1, trial(0.7, 0.3, 0.6)), setting(2, trial(0.7, 0.6, 0.5))
    assert choose([early, late], Criterion("final")) is late
    assert choose([early, late], Criterion("best")) is early
    assert Criterion("best").rounds(early.trials[0]) == 1
    target = Target.parse("train.ce<=0.5")
    assert choose([late, early], Criterion("rounds", target)) is early
    assert choose([early, late], Criterion("rounds", Target.parse("train.ce<=0.1"))) is late  # never: the loss decides
    assert Criterion("best").value(trial(0.1, 0.4)) == 0.4  # the untrained model does not count


def test_ties_go_to_the_first_and_nan_loses():
    same = [setting(n, trial(0.7, 0.5)) for n in (1, 2)]
    assert choose(same, Criterion()) is same[0]
    broken = setting(0, trial(0.7, 0.1), trial(0.7, math.nan, seed=1))
    good = setting(3, trial(0.7, 0.6), trial(0.7, 0.6, seed=1))
    assert choose([broken, good], Criterion()) is good
    assert choose([broken], Criterion()) is broken
    assert choose([setting(0, Trial(0, 2, failure="NaN"))], Criterion()) is None


def test_the_edge_of_the_grid_is_a_warning():
    def said(lr: float, *axes: str, drawn: bool = False) -> list[str]:
        return warnings(setting(1, trial(0.7, 0.5), lr=lr), [space.parse_axis(a) for a in axes], drawn=drawn)

    (warning,) = said(3.0, "lr=1,2,3")
    assert "the best lr, 3, is at the upper end of what was searched (1 to 3); search larger values" in warning
    assert "lower end" in said(0.1, "lr=0.1..10/3")[0]
    assert said(2.0, "lr=1,2,3") == said(1.0, "lr=1") == said(9.0, "lr=0.1..10") == []
    assert "upper end" in said(9.0, "lr=0.1..10", drawn=True)[0]
    assert said(1.0, "lr=0.1..10", drawn=True) == []


def test_a_diverged_trial_loses(tmp_path):
    found = tune(grid={"lr": [0.1, 1e38]}, out=tmp_path)
    assert {label: s.values["lr"] for label, s in found.chosen.items()} == {"FedAvg": 0.1, "FedSubAvg": 0.1}
    bad = [r for r in rows(tmp_path) if r["lr"] == "1e+38"]
    assert {r["status"] for r in bad} <= {"failed", "diverged"}
    assert {r["validation loss"] for r in bad} == {"inf"}
    with pytest.raises(RunError, match="No trial of any method came to a finite validation loss"):
        tune(grid={"lr": [1e38]})


def test_a_refused_setting_loses_too(tmp_path):
    found = tune({"prox": {"method": "fedprox", **FIXED}}, grid={"lr": [0.1, 200.0]}, out=tmp_path)
    assert found.chosen["prox"].values == {"lr": 0.1}
    assert rows(tmp_path)[1]["status"] == "refused"
    with pytest.raises(MethodError, match="every setting is refused"):
        tune({"prox": {"method": "fedprox", **FIXED}}, grid={"lr": [200.0]})
