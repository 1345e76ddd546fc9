"""Pictures of a comparison: a metric against rounds, bytes and estimated time, and by feature heat.

Each function takes a `Comparison` and a metric and returns a matplotlib Figure of its own; pyplot's
global state is left alone. ``narrow=True`` draws for the width of a phone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from fedsub.running.result import Result, mean_std
from fedsub.study.report import words as w
from fedsub.study.report.curves import (
    Curve,
    Decile,
    Position,
    by_decile,
    curve,
    decile_groups,
    decile_metric,
    megabytes,
)
from fedsub.study.report.drawing import (
    INK,
    MUTED,
    SideLabel,
    canvas,
    finish,
    key,
    nothing,
    side_labels,
    style,
    y_limits,
)

if TYPE_CHECKING:
    from fedsub.study.comparing import Comparison

TICKS = {"nbins": 6, "steps": [1, 2, 2.5, 5, 10]}
LOG_FROM = 20  # methods whose totals differ by this factor do not share a linear axis


def rounds_plot(comparison: Comparison, metric: str | None = None, *, narrow: bool = False) -> Figure:
    """A metric against rounds: the mean of the seeds, a band from lowest to highest, the target."""
    metric = metric or comparison.metric
    figure, axes = canvas(narrow)
    handles = draw_rounds(axes, comparison, metric, list(comparison.results), narrow=narrow)
    if not handles:
        return nothing(figure, axes, f"no finite {w.words(metric)} was measured")
    side_labels(figure, axes, _target(comparison, metric))
    key(figure, list(handles.values()), list(handles), narrow)
    return figure


def panels_plot(panels: Mapping[str, Comparison], *, narrow: bool = False) -> Figure:
    """Comparisons side by side, one panel each with its own metric against rounds, and one key for all of them."""
    across = 1 if narrow else min(2, len(panels))
    down = -(-len(panels) // across)
    figure = Figure(figsize=(4.1, 3.4 * down + 0.7) if narrow else (7.6 if across == 1 else 11.4, 3.9 * down + 0.7))
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    FigureCanvasAgg(figure)
    places = figure.subplots(down, across, squeeze=False).reshape(-1)
    order = list(dict.fromkeys(label for found in panels.values() for label in found.results))
    handles: dict[str, Any] = {}
    for axes, (title, found) in zip(places, panels.items(), strict=False):
        axes.set_title(title, fontsize=10.5, color=INK, parse_math=False)
        drawn = draw_rounds(axes, found, found.metric, order, narrow=narrow)
        if not drawn:
            nothing(figure, axes, f"no finite {w.words(found.metric)} was measured")
            continue
        handles |= {label: line for label, line in drawn.items() if label not in handles}
        side_labels(figure, axes, _target(found, found.metric), rows=down)
    for axes in places[len(panels) :]:
        axes.set_axis_off()
    if handles:
        shown = [label for label in order if label in handles]
        key(figure, [handles[label] for label in shown], shown, narrow)
    return figure


def draw_rounds(
    axes: Any, comparison: Comparison, metric: str, order: Sequence[str], *, narrow: bool = False
) -> dict[str, Any]:
    """Curves of a metric against rounds; lines by label, {} if there is nothing finite. ``order`` gives the looks."""
    curves = {label: curve(results, metric) for label, results in comparison.results.items()}
    if not any(curves.values()):
        return {}
    handles = {label: _draw(axes, order.index(label), found) for label, found in curves.items()}
    axes.set(xlabel="rounds", ylabel=_wrapped(w.with_unit(metric), narrow))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, **TICKS))
    axes.margins(x=0.02)
    y_limits(axes, list(curves.values()), [mark.y for mark in _target(comparison, metric)], metric)
    finish(axes)
    return handles


def bytes_plot(comparison: Comparison, metric: str | None = None, *, narrow: bool = False) -> Figure:
    """A metric against the megabytes that a client in every round would have moved, down and up.

    A method that moves nothing, the centralised baseline, is a dashed line at its best value.
    """
    label = "megabytes per participating client, down and up, summed over the rounds"
    return _against(comparison, metric or comparison.metric, megabytes, label, narrow)


def time_plot(comparison: Comparison, metric: str | None = None, *, narrow: bool = False) -> Figure:
    """A metric against the time that the rounds would take on the comparison's devices, as estimated.

    A method that moves nothing does not run on them: it is a dashed line at its best value.
    """
    if not comparison.timed:
        return nothing(*canvas(narrow), "no estimated time is known: it takes runs that were kept in directories")
    clocks = [comparison.clock(r) for results in comparison.results.values() for r in results]
    unit, length = w.duration_unit(max((max(c.values()) for c in clocks if c), default=0.0))
    label = f"estimated {unit} {w.on_devices(comparison)}, summed over the rounds"

    def position(result: Result) -> dict[int, float]:
        return {n: seconds / length for n, seconds in comparison.clock(result).items()}

    return _against(comparison, metric or comparison.metric, position, label, narrow)


def _against(comparison: Comparison, metric: str, position: Position, xlabel: str, narrow: bool) -> Figure:
    """A metric against what training costs; methods that move nothing cost nothing and are lines."""
    figure, axes = canvas(narrow)
    curves: dict[str, Curve] = {}
    still: dict[str, float] = {}
    for label, results in comparison.results.items():
        if _moves(results):
            curves[label] = curve(results, metric, position)
        else:
            still[label] = mean_std([r.best(metric) for r in results])[0]
    if not any(curves.values()):
        return nothing(figure, axes, f"no {w.words(metric)} of a method that moves bytes was measured")
    handles, marks, order = [], _target(comparison, metric), list(comparison.results)
    ends = [max([*c.x, *(x for tail in c.tails for x, _ in tail)]) for c in curves.values() if c]
    log = max(ends) > LOG_FROM * min(e for e in ends if e) if any(ends) else False
    for label, found in curves.items():
        handles.append(_draw(axes, order.index(label), _positive(found) if log else found))
    for label, best in still.items():
        if math.isfinite(best):
            colour = style(order.index(label))["color"]
            axes.axhline(best, color=colour, linestyle=(0, (6, 4)), lw=1.4)
            marks.append(SideLabel(best, f"{w.cut(label, 26)}, best {w.number(best)}", colour))
    axes.set(xlabel=_wrapped(xlabel, narrow), ylabel=_wrapped(w.with_unit(metric), narrow))
    if log:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if max(ends) > 1000 * min(ends) else (1.0, 3.0)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(**TICKS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.10g}"))
    axes.margins(x=0.02)
    y_limits(axes, list(curves.values()), [mark.y for mark in marks], metric)
    finish(axes)
    side_labels(figure, axes, marks)
    key(figure, handles, list(curves), narrow)
    return figure


def deciles_plot(comparison: Comparison, metric: str | None = None, *, narrow: bool = False) -> Figure:
    """A metric of the final evaluation by the heat of each sample's coldest feature.

    Drawn is the test split if there is one (see `decile_metric`): the mean of the seeds, and a bar from
    lowest to highest. Beneath each group is its number of samples.
    """
    metric = metric or comparison.metric
    shown = decile_metric(comparison, metric)
    figure, axes = canvas(narrow)
    if shown is None:
        return nothing(figure, axes, f"{w.words(metric)} was not measured by feature heat")
    groups = decile_groups(comparison, shown)
    place = {g.group: float(i) for i, g in enumerate(groups)}
    found_of = {label: by_decile(results, shown, groups) for label, results in comparison.results.items()}
    handles, drawn, order = [], [label for label, found in found_of.items() if found], list(found_of)
    if not drawn:
        return nothing(figure, axes, f"no finite {w.words(shown)} was measured by feature heat")
    for label in drawn:
        i, found = order.index(label), found_of[label]
        shift = (drawn.index(label) - (len(drawn) - 1) / 2) * min(0.1, 0.5 / len(drawn))
        look = style(i)
        marked = {"marker": look["marker"], "ms": 5, "mec": "white", "mew": 0.5}
        ys = [mean_std(found.get(g.group, []))[0] for g in groups]
        xs = [place[g.group] + shift for g in groups]
        seen = [j for j, g in enumerate(groups) if g.group >= 0]
        (line,) = axes.plot([xs[j] for j in seen], [ys[j] for j in seen], **look | marked)
        handles.append(line)
        if len(seen) < len(groups):  # never trained: not a step on the way from cold to hot
            axes.plot(xs[:1], ys[:1], color=look["color"], linestyle="none", **marked)
        for g, x in zip(groups, xs, strict=True):
            if len(values := found.get(g.group, [])) > 1:
                axes.vlines(x, min(values), max(values), color=look["color"], lw=1, alpha=0.7)
    marks = _chance(comparison, shown)
    for mark in marks:
        axes.axhline(mark.y, color=MUTED, linestyle=":", lw=1.3, zorder=1.5)
    if len(groups) > 1 and groups[0].group < 0:
        axes.axvline(0.5, color=MUTED, lw=0.8)
    _decile_axis(axes, groups, narrow)
    axes.set(ylabel=_wrapped(w.with_unit(shown), narrow))
    axes.margins(y=0.06)
    axes.set_ylim(axes.get_ylim())
    finish(axes, vertical=False)
    side_labels(figure, axes, marks)
    key(figure, handles, drawn, narrow)
    return figure


def png(figure: Figure) -> bytes:
    """The figure as a PNG of 150 dots per inch."""
    out = BytesIO()
    figure.savefig(out, format="png", dpi=150)
    return out.getvalue()


def _draw(axes: Any, index: int, found: Curve) -> Any:
    look = style(index)
    marker = "o" if len(found.x) <= 12 else None
    (line,) = axes.plot(found.x, found.mean, **look | {"marker": marker, "ms": 4, "zorder": 3})
    if found.low != found.high:
        if len(found.x) > 1:
            axes.fill_between(found.x, found.low, found.high, color=look["color"], alpha=0.15, lw=0, zorder=2)
        else:
            axes.vlines(found.x, found.low, found.high, color=look["color"], lw=1)
    for tail in found.tails:
        axes.plot(
            *zip(*tail, strict=True), color=look["color"], linestyle=look["linestyle"], lw=0.8, marker=marker, ms=3
        )
    return line


def _target(comparison: Comparison, metric: str) -> list[SideLabel]:
    target = comparison.target
    if target is None or target.metric != metric:
        return []
    limit = w.target_limit(target).replace(" ", "\u00a0")  # not broken between sign and number
    return [SideLabel(target.value, f"target {limit}", INK, line=":")]


def _chance(comparison: Comparison, metric: str) -> list[SideLabel]:
    """What a model that knows nothing gets with two classes; unknown for more classes or other losses."""
    kind = metric.rpartition(".")[2]
    names = {name.rpartition(".")[2] for name in w.measured(comparison)}
    if "accuracy" in names and not names & {"auc", "half_ce"}:
        return []
    known = {"ce": (math.log(2), "ln 2"), "half_ce": (math.log(2) / 2, "½ ln 2"), "auc": (0.5, "chance")}
    return [SideLabel(*known[kind], MUTED)] if kind in known else []


def _moves(results: list[Result]) -> bool:
    return any(r["down"] + r["up"] for result in results for r in result.history)


def _positive(found: Curve) -> Curve:
    """Without the start at zero, which a logarithmic axis cannot show."""
    keep = [i for i, x in enumerate(found.x) if x > 0]
    parts = [[part[i] for i in keep] for part in (found.x, found.mean, found.low, found.high)]
    return Curve(*parts, tails=[[p for p in tail if p[0] > 0] for tail in found.tails])


def _decile_axis(axes: Any, groups: list[Decile], narrow: bool) -> None:
    names = {-1: "new"} if narrow else {-1: "unseen", 0: "coldest", 9: "hottest"}
    axes.set_xticks(range(len(groups)), [names.get(g.group, str(g.group + 1)) for g in groups])
    axes.set_xlim(-0.6, len(groups) - 0.4)
    for i, g in enumerate(groups):
        text = w.compact(g.samples) if narrow else f"{g.samples:,}"
        base = {"xy": (i, 0), "xycoords": axes.get_xaxis_transform(), "textcoords": "offset points"}
        axes.annotate(text, xytext=(0, -17), ha="center", va="top", fontsize=7, color=MUTED, **base)
    text = "heat of the sample’s coldest feature, in tenths of all features\n(small: number of samples)"
    if narrow:
        new = "; new: unseen" if groups[0].group < 0 else ""
        text = f"tenth of the sample’s coldest feature\n(1 coldest, 10 hottest{new};\nsmall: number of samples)"
    axes.set_xlabel(text, labelpad=13)


def _wrapped(text: str, narrow: bool) -> str:
    if not narrow:
        return text
    middle = text.rfind(" ", 0, len(text) // 2 + 6)
    return f"{text[:middle]}\n{text[middle + 1 :]}"
