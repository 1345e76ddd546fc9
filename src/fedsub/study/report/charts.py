"""The charts of a comparison: a metric against rounds, bytes and estimated time, and by feature heat."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fedsub.running.result import Result, mean_std
from fedsub.study.report import words as w
from fedsub.study.report.chart import Chart, Line, Mark, Tick, bounded, file_name
from fedsub.study.report.curves import (
    Curve,
    Decile,
    Position,
    by_decile,
    curve,
    decile_groups,
    decile_metric,
    megabytes,
    positive,
)

if TYPE_CHECKING:
    from fedsub.study.comparing import Comparison

LOG_FROM = 20  # methods whose totals differ by this factor do not share a linear axis
BAND = " Lines are means over the seeds, bands reach from the lowest to the highest."
BARS = " Points are means over the seeds, bars reach from the lowest to the highest."


def shown_metrics(comparison: Comparison) -> list[str]:
    """The metrics with charts: the main one first, then the table's other columns."""
    known = w.measured(comparison)
    main = [comparison.metric] if comparison.metric in known else []
    return list(dict.fromkeys(main + w.chosen(comparison)))


def by_metric(comparison: Comparison) -> dict[str, list[Chart]]:
    """All that can be drawn of every shown metric. What is shown by heat appears once, with the first metric."""
    drawn, out = set(), {}
    for metric in shown_metrics(comparison):
        charts = out[metric] = [rounds_chart(comparison, metric)]
        if moves_bytes(comparison):
            charts.append(bytes_chart(comparison, metric))
        if comparison.timed:
            charts.append(time_chart(comparison, metric))
        shown = decile_metric(comparison, metric)
        if shown is not None and shown not in drawn:
            drawn.add(shown)
            charts.append(deciles_chart(comparison, shown))
    return out


def rounds_chart(comparison: Comparison, metric: str, looks: Sequence[str] | None = None) -> Chart:
    """A metric against rounds: the mean of the seeds, a band from lowest to highest, the target.

    ``looks``: the order of labels that gives the colours, where several charts share them.
    """
    name = w.words(metric)
    chart = Chart(f"rounds-{file_name(metric)}", "by rounds", xlabel="rounds", ylabel=w.with_unit(metric), whole=True)
    found = {label: curve(results, metric) for label, results in comparison.results.items()}
    if not any(found.values()):
        return replace(chart, empty=f"no finite {name} was measured")
    chart = replace(
        chart, lines=_lines(found, looks or list(comparison.results)), marks=target_marks(comparison, metric),
        caption=f"{name} against rounds.{band(comparison)}",
        description=f"Line chart: {name} against rounds. {_last_values(comparison, metric)}",
    )  # fmt: skip
    return bounded(chart, metric)


def bytes_chart(comparison: Comparison, metric: str) -> Chart:
    """A metric against the megabytes that a client in every round would have moved, down and up.

    A method that moves nothing, the centralised baseline, is a dashed line at its best value.
    """
    caption = f"{w.words(metric)} against the data that a client in every round would have moved, down and up."
    label = "megabytes per participating client, down and up, summed over the rounds"
    chart = Chart(f"bytes-{file_name(metric)}", "by bytes", caption, xlabel=label)
    return _against(chart, comparison, metric, megabytes)


def time_chart(comparison: Comparison, metric: str) -> Chart:
    """A metric against the time that the rounds would take on the comparison's devices, as estimated.

    A method that moves nothing does not run on them: it is a dashed line at its best value.
    """
    name = f"time-{file_name(metric)}"
    if not comparison.timed:
        why = "no estimated time is known: it takes runs that were kept in directories"
        return Chart(name, "by time", empty=why)
    clocks = [comparison.clock(r) for results in comparison.results.values() for r in results]
    unit, length = w.duration_unit(max((max(c.values()) for c in clocks if c), default=0.0))
    label = f"estimated {unit} {w.on_devices(comparison)}, summed over the rounds"
    caption = (
        f"{w.words(metric)} against the time that the rounds would take {w.on_devices(comparison)}: an estimate from "
        "assumed bandwidths, latencies and speeds, in which a round lasts as long as its slowest client, and an "
        "asynchronous step until enough have answered."
    )

    def position(result: Result) -> dict[int, float]:
        return {n: seconds / length for n, seconds in comparison.clock(result).items()}

    return _against(Chart(name, "by time", caption, xlabel=label), comparison, metric, position)


def _against(chart: Chart, comparison: Comparison, metric: str, position: Position) -> Chart:
    """A metric against what training costs; methods that move nothing cost nothing and are lines."""
    found: dict[str, Curve] = {}
    marks, order = list(target_marks(comparison, metric)), list(comparison.results)
    for label, results in comparison.results.items():
        if _moves(results):
            found[label] = curve(results, metric, position)
        elif math.isfinite(best := mean_std([r.best(metric) for r in results])[0]):
            text = f"{w.cut(label, 26)}, best {w.number(best)}"
            marks.append(Mark(best, text, "--", order.index(label)))
    if not any(found.values()):
        return replace(chart, empty=f"no {w.words(metric)} of a method that moves bytes was measured")
    ends = [max([*c.x, *(x for tail in c.tails for x, _ in tail)]) for c in found.values() if c]
    log = max(ends) > LOG_FROM * min(e for e in ends if e) if any(ends) else False
    if log:
        found = {label: positive(c) for label, c in found.items()}
    told = f"Line chart: {chart.caption} {_last_values(comparison, metric)}"
    chart = replace(
        chart, lines=_lines(found, order), marks=tuple(marks), ylabel=w.with_unit(metric), log=log,
        caption=chart.caption + band(comparison), description=told,
    )  # fmt: skip
    return bounded(chart, metric)


def deciles_chart(comparison: Comparison, metric: str) -> Chart:
    """A metric of the final evaluation by the heat of each sample's coldest feature.

    Drawn is the test split if there is one (see `decile_metric`): the mean of the seeds, and a bar from
    lowest to highest. Beneath each group is its number of samples.
    """
    shown = decile_metric(comparison, metric)
    chart = Chart(f"deciles-{file_name(shown or metric)}", "by heat", points=True)
    if shown is None:
        return replace(chart, empty=f"{w.words(metric)} was not measured by feature heat")
    groups = decile_groups(comparison, shown)
    found = {label: by_decile(results, shown, groups) for label, results in comparison.results.items()}
    drawn, order = [label for label, values in found.items() if values], list(found)
    if not drawn:
        return replace(chart, empty=f"no finite {w.words(shown)} was measured by feature heat")
    lines = []
    for i, label in enumerate(drawn):
        shift = (i - (len(drawn) - 1) / 2) * min(0.1, 0.5 / len(drawn))
        # Features that were never trained are not a step on the way from cold to hot.
        parts = [[j for j, g in enumerate(groups) if (g.group < 0) == unseen] for unseen in (False, True)]
        curves = tuple(_points(found[label], groups, places, shift) for places in parts)
        lines.append(Line(label, order.index(label), tuple(c for c in curves if c)))
    caption = (
        f"{w.words(shown)} at the end, by the heat of the coldest feature of each sample: "
        f"the number of clients that hold it.{left_out(comparison, shown)}"
    )
    chart = replace(
        chart, lines=tuple(lines), marks=_chance(comparison, shown), ticks=_ticks(groups),
        xlabel="heat of the sample’s coldest feature, in tenths of all features\n(small: number of samples)",
        ylabel=w.with_unit(shown), caption=caption + (BARS if several(comparison) else ""),
        description=f"Chart: {caption} {_ends(found, groups)}",
    )  # fmt: skip
    return bounded(chart, shown)


def several(comparison: Comparison) -> bool:
    return any(len(results) > 1 for results in comparison.results.values())


def band(comparison: Comparison) -> str:
    return BAND if several(comparison) else ""


def moves_bytes(comparison: Comparison) -> bool:
    return any(r.bytes_per_client() for results in comparison.results.values() for r in results)


def left_out(comparison: Comparison, metric: str) -> str:
    """Methods missing in a decile plot, so that nobody looks for them."""
    groups, runs = decile_groups(comparison, metric), comparison.results.items()
    names = [w.one_line(label) for label, results in runs if not by_decile(results, metric, groups)]
    return f" Without {w.listed(names)}, whose samples are not grouped in the same way." if names else ""


def target_marks(comparison: Comparison, metric: str) -> tuple[Mark, ...]:
    target = comparison.target
    if target is None or target.metric != metric:
        return ()
    limit = w.target_limit(target).replace(" ", "\u00a0")  # not broken between sign and number
    return (Mark(target.value, f"target {limit}"),)


def _lines(found: Mapping[str, Curve], order: Sequence[str]) -> tuple[Line, ...]:
    return tuple(Line(label, order.index(label), (curve,)) for label, curve in found.items())


def _points(values: Mapping[int, list[float]], groups: list[Decile], places: list[int], shift: float) -> Curve:
    out = Curve()
    for place in places:
        if seeds := values.get(groups[place].group):
            out.add(place + shift, seeds)
    return out


def _ticks(groups: list[Decile]) -> tuple[Tick, ...]:
    names, shorter = {-1: "unseen", 0: "coldest", 9: "hottest"}, {-1: "new"}
    out = []
    for group, samples in ((g.group, f"{g.samples:,}") for g in groups):
        tenth, alone = str(group + 1), group < 0 and len(groups) > 1
        out.append(Tick(names.get(group, tenth), shorter.get(group, tenth), samples, apart=alone))
    return tuple(out)


def _chance(comparison: Comparison, metric: str) -> tuple[Mark, ...]:
    """What a model that knows nothing gets with two classes; unknown for more classes or other losses."""
    kind = metric.rpartition(".")[2]
    names = {name.rpartition(".")[2] for name in w.measured(comparison)}
    if "accuracy" in names and not names & {"auc", "half_ce"}:
        return ()
    known = {"ce": (math.log(2), "ln 2"), "half_ce": (math.log(2) / 2, "½ ln 2"), "auc": (0.5, "chance")}
    return (Mark(*known[kind]),) if kind in known else ()


def _moves(results: list[Result]) -> bool:
    return any(r["down"] + r["up"] for result in results for r in result.history)


def _last_values(comparison: Comparison, metric: str) -> str:
    """For those who cannot see the picture."""
    parts = []
    for label, results in comparison.results.items():
        last = [values[-1] for r in results if (values := r.series(metric)[1])]
        parts.append(f"{w.one_line(label)} {w.number(mean_std(last)[0])}")
    return f"Last values: {', '.join(parts)}."


def _ends(found: Mapping[str, Mapping[int, list[float]]], every: list[Decile]) -> str:
    groups = [g.group for g in every if g.group >= 0]
    parts = []
    for label, values in found.items():
        cold, hot = (mean_std(values.get(g, []))[0] for g in (groups[0], groups[-1])) if groups else (math.nan,) * 2
        parts.append(f"{w.one_line(label)} {w.number(cold)} and {w.number(hot)}")
    return f"Coldest and hottest group: {', '.join(parts)}."
