"""Curves and plots of results made by hand: what is drawn, and what they say."""

from __future__ import annotations

import math

import pytest
from made_results import comparison, make, texts

from fedsub.study.report import (
    bytes_plot,
    deciles_plot,
    png,
    rounds_plot,
)
from fedsub.study.report.charts import left_out
from fedsub.study.report.curves import by_decile, curve, decile_groups, decile_metric, megabytes
from fedsub.study.report.drawing import COLOURS, style


def test_seeds_that_end_early_go_on_alone():
    found = curve([make(values=(0.7, 0.6)), make(seed=1, values=(0.7, 0.5, 0.4))], "train.ce")
    assert (found.x, found.low, found.high) == ([0, 10], [0.7, 0.5], [0.7, 0.6])
    assert found.mean == pytest.approx([0.7, 0.55])
    assert found.tails == [[(10, 0.5), (20, 0.4)]]


def test_megabytes_add_up_per_client():
    run = make(bytes_=1_000_000)
    assert list(megabytes(run).values()) == [0, 1, 2]  # 5 clients share 5 MB a round
    assert curve([run], "train.ce", megabytes).x == [0, 1, 2]


def test_deciles_prefer_test_and_read_nan_as_text():
    run = make(splits=("train", "test"))
    run.final["test"]["deciles"][0] = {"group": -1, "samples": 7, "ce": "nan"}  # as read back from JSON
    result = comparison(a=[run])
    assert decile_metric(result, "train.ce") == "test.ce"
    assert decile_metric(comparison(a=[make()]), "train.ce") == "train.ce"
    assert decile_metric(comparison(a=[make(deciles=False)]), "train.ce") is None
    groups = decile_groups(result, "test.ce")
    assert [(g.group, g.samples) for g in groups] == [(-1, 7), (0, 50), (9, 2500)]
    assert by_decile([run], "test.ce", groups) == {0: [0.7], 9: [pytest.approx(0.61)]}


def test_other_groups_are_not_compared():
    """To a centralised run all features are equally hot: its one group is no tenth of the others."""
    pooled = make(bytes_=0)
    pooled.final["train"]["deciles"] = [{"group": 4, "samples": 2557, "ce": 0.5}]
    result = comparison(central=[pooled], fed=[make()])
    groups = decile_groups(result, "train.ce")
    assert 4 not in {g.group for g in groups}
    assert by_decile([pooled], "train.ce", groups) == {}
    heat = texts(deciles_plot(result))
    assert "fed" in heat
    assert "central" not in heat
    assert "Without central, whose samples" in left_out(result, "train.ce")


def test_looks_differ():
    looks = {(style(i)["color"], str(style(i)["linestyle"])) for i in range(49)}
    assert len(looks) == 49
    assert len({str(style(i)["linestyle"]) for i in range(len(COLOURS))}) == len(COLOURS)


def test_plots_say_what_they_show():
    result = comparison(**{"_hidden $x$": [make(), make(seed=1)], "central": [make(bytes_=0)]})
    rounds = texts(rounds_plot(result))
    assert "cross-entropy on training samples (nats)" in rounds
    assert "target\n≤\u00a00.65" in rounds
    assert "_hidden $x$" in rounds
    moved = texts(bytes_plot(result))
    assert "megabytes per participating client" in moved
    assert "best" in moved  # the baseline's line
    heat = texts(deciles_plot(result))
    assert "unseen\ncoldest\nhottest" in heat  # the empty second tenth is left out
    assert "2,500" in heat
    assert "ln 2" in heat


@pytest.mark.parametrize(
    ("plot", "run", "says"),
    [
        (rounds_plot, make(values=(0.7,)), "rounds"),
        (bytes_plot, make(values=(0.7, 0.6)), "megabytes"),
        (rounds_plot, make(values=(math.nan, math.nan)), "no finite cross-entropy"),
        (rounds_plot, make(values=(0.69, 30.0, 0.6)), "cut off at 0.717; highest value 30"),
        (rounds_plot, make(values=(0.5, 0.5)), "rounds"),
        (deciles_plot, make(deciles=False), "was not measured by"),
        (bytes_plot, make(bytes_=0), "moves bytes"),
    ],
    ids=["single", "one step", "nan", "diverged", "flat", "no deciles", "no bytes"],
)
def test_plots_of_odd_runs(plot, run, says):
    figure = plot(comparison(None, a=[run]))
    assert says in texts(figure).replace("\n", " ")
    assert png(figure).startswith(b"\x89PNG")
