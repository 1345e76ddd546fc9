"""Charts drawn by matplotlib, for files, for print and for pages without scripts.

Each function returns a matplotlib Figure of its own; pyplot's global state is left alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from io import BytesIO
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from fedsub.study.report import charts, clients
from fedsub.study.report.chart import Chart, Line, Mark
from fedsub.study.report.curves import Curve
from fedsub.study.report.drawing import (
    INK,
    MUTED,
    arrange,
    canvas,
    finish,
    key,
    log_steps,
    nothing,
    side_labels,
    style,
)

if TYPE_CHECKING:
    from fedsub.study.comparing import Comparison

TICKS = {"nbins": 6, "steps": [1, 2, 2.5, 5, 10]}


def rounds_plot(comparison: Comparison, metric: str | None = None) -> Figure:
    """A metric against rounds: the mean of the seeds, a band from lowest to highest, the target."""
    return plot(charts.rounds_chart(comparison, metric or comparison.metric))


def bytes_plot(comparison: Comparison, metric: str | None = None) -> Figure:
    """A metric against the megabytes that a client in every round would have moved, down and up."""
    return plot(charts.bytes_chart(comparison, metric or comparison.metric))


def time_plot(comparison: Comparison, metric: str | None = None) -> Figure:
    """A metric against the time that the rounds would take on the comparison's devices, as estimated."""
    return plot(charts.time_chart(comparison, metric or comparison.metric))


def deciles_plot(comparison: Comparison, metric: str | None = None) -> Figure:
    """A metric of the final evaluation by the heat of each sample's coldest feature."""
    return plot(charts.deciles_chart(comparison, metric or comparison.metric))


def clients_plot(comparison: Comparison) -> Figure:
    """The metric of the clients one by one, for methods with personal models."""
    return plot(clients.clients_chart(comparison))


def gains_plot(comparison: Comparison) -> Figure:
    """By how much the clients' losses are lower with own parameters than without."""
    return plot(clients.gains_chart(comparison))


def plot(chart: Chart) -> Figure:
    """Any chart."""
    figure, axes = canvas()
    if chart.empty:
        return nothing(figure, axes, chart.empty)
    handles = draw(axes, chart)
    _labels(figure, axes, chart)
    rows = key(figure, list(handles.values()), list(handles)) if handles else 0
    beneath = 0.25 + 0.17 * len(axes.get_xlabel().splitlines()) + (0.18 if chart.ticks else 0.0)
    arrange(figure, axes, rows=rows, beneath=beneath, beside=bool(chart.marks))
    return figure


def panels_plot(panels: Mapping[str, Comparison]) -> Figure:
    """Comparisons side by side, one panel each with its own metric against rounds, and one key for all of them."""
    across = min(2, len(panels))
    down = -(-len(panels) // across)
    figure = Figure(figsize=(7.6 if across == 1 else 11.4, 3.9 * down + 0.7))
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    FigureCanvasAgg(figure)
    places = figure.subplots(down, across, squeeze=False).reshape(-1)
    order = list(dict.fromkeys(label for found in panels.values() for label in found.results))
    handles: dict[str, Any] = {}
    for axes, (title, found) in zip(places, panels.items(), strict=False):
        axes.set_title(title, fontsize=10.5, color=INK, parse_math=False)
        chart = charts.rounds_chart(found, found.metric, order)
        if chart.empty:
            nothing(figure, axes, chart.empty)
            continue
        handles = draw(axes, chart) | handles
        _labels(figure, axes, chart, rows=down)
    for axes in places[len(panels) :]:
        axes.set_axis_off()
    if handles:
        shown = [label for label in order if label in handles]
        key(figure, [handles[label] for label in shown], shown)
    return figure


def png(figure: Figure) -> bytes:
    """The figure as a PNG of 150 dots per inch."""
    out = BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font")  # drawn as boxes; the page has the name
        # Compressed less: half the time, a twentieth larger.
        figure.savefig(out, format="png", dpi=150, pil_kwargs={"compress_level": 3})
    return out.getvalue()


def draw(axes: Any, chart: Chart) -> dict[str, Any]:
    """Everything within the axes; lines by label."""
    handles = {line.label: _line(axes, chart, line) for line in chart.lines}
    for mark in chart.marks:
        dash = (0, (6, 4)) if mark.line == "--" else mark.line
        axes.axhline(mark.y, color=_colour(chart, mark), linestyle=dash, lw=1.3, zorder=1.5)
    axes.set(xlabel=chart.xlabel, ylabel="\n".join(wrap(chart.ylabel, 48)))
    _x_axis(axes, chart)
    if chart.logy:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=log_steps(*(chart.limits or (1.0, 1.0)), dense=60)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.4g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    if chart.limits is not None:
        axes.set_ylim(*chart.limits)
    if chart.cut:
        look = {"ha": "right", "va": "top", "color": MUTED, "fontsize": 8}
        axes.text(0.99, 0.985, chart.cut, transform=axes.transAxes, **look)
    finish(axes, vertical=not chart.points)
    return handles


def _line(axes: Any, chart: Chart, line: Line) -> Any:
    look = style(line.look, thin=line.thin)
    if chart.points:
        look |= {"ms": 5, "mec": "white", "mew": 0.5}
    drawn = [_curve(axes, chart, part, look) for part in line.parts or (Curve(),)]
    return drawn[0]


def _curve(axes: Any, chart: Chart, found: Curve, look: dict[str, Any]) -> Any:
    colour = look["color"]
    if not chart.points:
        look = look | {"marker": "o" if len(found.x) <= 12 and not chart.percent else None, "ms": 4}
    (drawn,) = axes.plot(found.x, found.mean, **look | {"zorder": 3})
    if found.low != found.high:
        if chart.points or len(found.x) == 1:
            axes.vlines(found.x, found.low, found.high, color=colour, lw=1, alpha=0.7)
        else:
            axes.fill_between(found.x, found.low, found.high, color=colour, alpha=0.15, lw=0, zorder=2)
    for tail in found.tails:
        axes.plot(*zip(*tail, strict=True), **look | {"lw": 0.8, "ms": 3})
    return drawn


def _x_axis(axes: Any, chart: Chart) -> None:
    axes.margins(x=0.02)
    if chart.ticks:
        axes.set_xticks(range(len(chart.ticks)), [tick.name for tick in chart.ticks])
        axes.set_xlim(-0.6, len(chart.ticks) - 0.4)
        for i, tick in enumerate(chart.ticks):
            base = {"xy": (i, 0), "xycoords": axes.get_xaxis_transform(), "textcoords": "offset points"}
            axes.annotate(tick.under, xytext=(0, -17), ha="center", va="top", fontsize=7, color=MUTED, **base)
        if chart.ticks[0].apart:
            axes.axvline(0.5, color=MUTED, lw=0.8)
        axes.xaxis.labelpad = 13
    elif chart.percent:
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
        axes.xaxis.set_major_locator(MaxNLocator(5))
    elif chart.log:
        ends = [x for curve in chart.curves() for x in (*curve.x, *(x for tail in curve.tails for x, _ in tail))]
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=log_steps(min(ends), max(ends))))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=chart.whole, **TICKS))
    if not chart.ticks and not chart.percent:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.10g}"))


def _labels(figure: Figure, axes: Any, chart: Chart, rows: int = 1) -> None:
    marks = [(mark.y, mark.text, _colour(chart, mark)) for mark in chart.marks if mark.text]
    side_labels(figure, axes, marks, rows)


def _colour(chart: Chart, mark: Mark) -> str:
    """A method's own; a target is something to look at, what knowing nothing gives is not."""
    if mark.look is not None:
        return style(mark.look)["color"]
    return MUTED if chart.points or chart.percent else INK
