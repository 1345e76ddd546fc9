"""When a target is reached."""

from __future__ import annotations

from fedsub.running.result import Result, Target
from fedsub.study.reproduce import hits

LOW, HIGH = Target.parse("train.ce<=0.5"), Target.parse("train.ce>=0.5")


def curve(*values: float) -> Result:
    history = [{"round": 10 * i, "train.ce": v} for i, v in enumerate(values)]
    return Result("m", 0, history, {}, 1.0, "serial")


def test_a_lucky_evaluation_is_a_hit_but_no_smoothed_one():
    lucky = curve(0.9, 0.45, 0.6, 0.6, 0.6, 0.6, 0.5, 0.4, 0.4)
    assert hits.first(lucky, LOW) == 10
    assert hits.smoothed(lucky, LOW) == 80  # (0.6 + 0.6 + 0.5 + 0.4 + 0.4) / 5 = 0.5
    assert hits.smoothed(curve(0.1, 0.1), LOW) is None  # fewer than five evaluations
    assert hits.smoothed(curve(*[0.9] * 5), HIGH) == 40


def test_rounds_over_the_seeds():
    assert hits.text([100, 120, 110], 200) == "110 ± 10"
    assert hits.text([None, None], 200) == "200+"
    assert hits.text([100, None], 200) == "100 (1 of 2)"
    assert hits.text([7], 200) == "7"
    assert hits.text([3, 4], 50) == "3.5 ± 1"
