"""Last and chosen rounds beside the best one, and paired intervals of the difference to a reference method."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats
from test_honest_tables import FAST, curve
from worlds import bag, item_data

import fedsub as fs
from fedsub.errors import ConfigError
from fedsub.running.result import Result, Target
from fedsub.study.comparing import Comparison
from fedsub.study.paired import paired, t_quantile
from fedsub.study.report import csv_rows, latex_table, markdown_table, render, text_table
from fedsub.study.report.columns import Column, columns, notes


def run(seed: int, *, test: tuple[float, ...], validation: tuple[float, ...] | None = None) -> Result:
    others: dict[str, Any] = {"test__auc": test} | ({"validation__auc": validation} if validation else {})
    return curve(0.69, *(0.6 for _ in test[1:]), seed=seed, **others)


def column(found: Comparison, heading: str) -> Column:
    (one,) = [c for c in columns(found) if c.heading.startswith(heading)]
    return one


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 10, 99, 1000])
def test_the_quantile_is_that_of_scipy(freedom):
    assert t_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-9)
    assert t_quantile(freedom, 0.8) == pytest.approx(stats.t.ppf(0.9, freedom), rel=1e-9)


def test_the_interval_is_that_of_a_paired_t_test():
    draw = np.random.default_rng(3)
    one, other = draw.normal(1, 1, 6), draw.normal(0, 1, 6)
    found = paired(dict(enumerate(one.tolist())), dict(enumerate(other.tolist())))
    known = stats.ttest_rel(one, other).confidence_interval(0.95)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((known.low, known.high))
    assert found.mean == pytest.approx(np.mean(one - other))
    assert found.seeds == 6
    assert found.excludes_zero is bool(known.low > 0 or known.high < 0)


def test_seeds_are_paired_by_number_and_those_without_a_value_are_left_out():
    found = paired({5: 1.0, 1: 2.0, 2: math.nan, 9: 7.0}, {1: 1.9, 2: 3.0, 5: 0.9})
    assert found is not None
    assert found.seeds == 2
    assert found.mean == pytest.approx(0.1)
    assert paired({1: 2.0}, {1: 1.0}) is None  # one seed says nothing of chance
    assert paired({1: 2.0, 2: 3.0}, {3: 1.0}) is None


def test_last_and_chosen_rounds_stand_beside_the_best():
    falling = [run(s, test=(0.5, 0.9, 0.7, 0.6), validation=(0.9, 0.6, 0.8, 0.7)) for s in (0, 1)]
    found = Comparison({"A": falling}, metric="test.auc")
    assert found.chosen_by == "validation.auc"
    assert [falling[0].best_round("validation.auc"), falling[0].best_round("test.auc")] == [2, 1]
    for at, value in (("best", "0.9000"), ("last", "0.6000"), ("chosen", "0.7000")):
        assert column(found, f"{at} test ROC").cells == [f"{value} ± 0.0000"]
        assert f"{at} test ROC" in render(found)
        head, row = csv_rows(found)
        assert row[head.index(f"{at} test.auc: mean")] == repr(float(value))
    assert row[head.index("chosen round: mean")] == "2.0"
    assert any("with the best area under the ROC curve on validation samples" in said for said in notes(found))
    (shown,) = found.rows()
    assert (shown["last"]["test.auc"], shown["chosen"]["test.auc"]) == ((0.6, 0.0), (0.7, 0.0))

    without = Comparison({"A": [run(0, test=(0.5, 0.9, 0.6))]}, metric="test.auc")
    assert without.chosen_by is None
    assert not any("chosen" in c.heading for c in columns(without))
    assert "chosen" not in without.rows()[0]
    assert math.isnan(curve(0.5).last("train.ce"))  # round 0 is no last round of training


def test_bold_only_where_the_interval_excludes_zero():
    noisy = {"A": (0.60, 0.70, 0.65), "Noise": (0.75, 0.61, 0.70), "Better": (0.66, 0.77, 0.71)}
    made = {label: [run(s, test=(0.5, v)) for s, v in enumerate(values)] for label, values in noisy.items()}
    better = Comparison({k: made[k] for k in ("A", "Better")}, metric="test.auc")
    known = stats.ttest_rel(noisy["Better"], noisy["A"]).confidence_interval(0.95)
    assert known.low > 0
    difference = column(better, "last test ROC area (AUC) minus A")
    assert difference.cells == ["–", f"+{known.low:.4f} to +{known.high:.4f}"]
    assert column(better, "best test ROC").best == {1}
    for text in (text_table(better), markdown_table(better), latex_table(better), render(better)):
        assert difference.cells[1].split()[0] in text
    head, first, second = csv_rows(better)
    place = head.index("last test.auc minus A: low")
    assert first[place] == ""
    assert float(second[place]) == pytest.approx(known.low)
    assert better.rows()[1]["difference"]["test.auc"]["high"] == pytest.approx(known.high)

    noise = Comparison({k: made[k] for k in ("A", "Noise")}, metric="test.auc")
    assert column(noise, "best test ROC").best == frozenset()  # 0.687 against 0.650, and yet
    assert stats.ttest_rel(noisy["Noise"], noisy["A"]).pvalue > 0.05
    # At the reference itself the second best decides.
    from_best = Comparison({k: made[k] for k in ("A", "Better")}, metric="test.auc", reference="Better")
    assert column(from_best, "best test ROC").best == {1}
    assert column(from_best, "last test ROC area (AUC) minus Better").cells[0].startswith("−")
    assert "excludes zero" in text_table(better)
    assert "Bold: best of its column, and the 95\u00a0% interval" in render(better).replace(" %", "\u00a0%")


def test_one_seed_marks_the_best_and_says_what_that_is_worth():
    found = Comparison({"A": [run(0, test=(0.5, 0.6))], "B": [run(0, test=(0.5, 0.7))]}, metric="test.auc")
    assert column(found, "best test ROC").best == {1}
    assert not any("minus" in c.heading for c in columns(found))
    assert any("One seed" in said for said in notes(found))


def test_a_target_never_reached_counts_as_its_last_round_at_least():
    slow, fast = [[curve(0.69, *[v] * 300, seed=s) for s in range(3)] for v in (0.68, 0.6)]
    found = Comparison({"Slow": slow, "Fast": fast}, Target.parse("train.ce<=0.65"))
    assert column(found, "rounds to").best == {1}


def test_a_wide_text_is_folded_with_the_names_in_every_fold():
    long: dict[str, Any] = {f"slice{i}__auc": (0.5, 0.6) for i in range(12)}
    found = Comparison({"A method": [curve(0.69, 0.6, **long)], "B": [curve(0.69, 0.6, **long)]})
    lines = text_table(found).splitlines()
    assert max(map(len, lines)) <= 150
    assert len([line for line in lines if line.startswith("A method")]) > 1
    text = " ".join(text_table(found).split())
    for i in range(12):
        assert f"slice{i}" in text


def test_compare_takes_validation_and_a_reference(tmp_path):
    train, test = item_data((9,) * 6).split(0.7)
    train, validation = train.split(0.7, seed=1)
    methods = {"A": fs.methods.fedavg(clients_per_round=3), "B": fs.methods.fedavg(lr=0.5, clients_per_round=3)}
    found = fs.compare(
        methods, lambda seed: bag(train, seed=seed), train, test=test, validation=validation, seeds=2,
        metric="test.auc", reference="B", out=tmp_path / "out", **FAST,
    )  # fmt: skip
    assert (found.reference, found.chosen_by) == ("B", "validation.auc")
    result = found.results["A"][1]
    rounds, values = result.series("validation.auc")
    best = rounds[1 + int(np.argmax(values[1:]))]
    assert found.by_seed("A", "test.auc", "chosen")[1] == result.history[best]["test.auc"]
    assert found.difference("B", "test.auc") is None
    assert found.difference("A", "test.auc", "last").seeds == 2  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="reference is 'C', expected one of the methods"):
        fs.compare(methods, bag(train), train, reference="C", **FAST)
