"""A chart as SVG to stand inside a page: real text, the page's colours, no references to elsewhere.

Written directly, in a hundredth of the time that matplotlib takes to draw a file, because a page has many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib.ticker import LogLocator, MaxNLocator
from rich.cells import cell_len

from fedsub.study.report import words as w
from fedsub.study.report.chart import Chart, Line, Mark
from fedsub.study.report.curves import Curve
from fedsub.study.report.drawing import LABEL_LENGTH, log_steps, pixels, style
from fedsub.study.report.html import e

WIDTH, HEIGHT = 760, 340  # of the picture, and of the axes within it
TOP, RIGHT, BESIDE = 12, 16, 112  # BESIDE: room for names of horizontal lines
LETTER = 6.6  # width of a letter of 12 pixels, about


def picture(chart: Chart, name: str) -> str:
    """The chart as an <svg> element; ``name`` is unique on the page."""
    about = f'role="img" aria-label="{e(chart.description or chart.empty)}"'
    if chart.empty:
        return f'<svg viewBox="0 0 {WIDTH} 90" {about}>{_text(WIDTH / 2, 50, chart.empty, "mid muted")}</svg>'
    frame = _Frame.of(chart)
    parts = [*_grid(chart, frame)]
    parts += [_mark(chart, frame, mark) for mark in chart.marks]
    drawn = "".join(_line(chart, frame, line) for line in chart.lines)
    parts.append(f'<clipPath id="{name}-c"><rect {frame.box}/></clipPath><g clip-path="url(#{name}-c)">{drawn}</g>')
    parts += _names(chart, frame)
    key, height = _key(chart, frame.bottom + 28 + 16 * len(chart.xlabel.splitlines()) + (14 if chart.ticks else 0))
    return f'<svg viewBox="0 0 {WIDTH} {height:g}" {about}>{"".join(parts)}{key}</svg>'


@dataclass(frozen=True)
class _Frame:
    """Where values lie: from left to right and from top to bottom, in pixels."""

    left: float
    right: float
    bottom: float
    x: Callable[[float], float]
    y: Callable[[float], float]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]

    @classmethod
    def of(cls, chart: Chart) -> _Frame:
        curves = chart.curves()
        low, high = chart.limits or _spread([v for c in curves for v in c.values()] + [m.y for m in chart.marks])
        rise = math.log10 if chart.logy else float
        steps = (
            LogLocator(subs=log_steps(low, high, dense=60))
            if chart.logy
            else MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10])
        )
        y_ticks = [(v, _plain(v)) for v in steps.tick_values(low, high)]
        y_ticks = [(v, text) for v, text in y_ticks if low <= v <= high]
        left = 34 + LETTER * max((len(text) for _, text in y_ticks), default=3)
        right = WIDTH - (BESIDE if any(mark.text for mark in chart.marks) else RIGHT)
        bottom = TOP + HEIGHT
        xs = [x for c in curves for x in (*c.x, *(x for tail in c.tails for x, _ in tail))] or [0.0, 1.0]
        scale = math.log10 if chart.log else float
        first, last = (-0.6, len(chart.ticks) - 0.4) if chart.ticks else _spread([scale(x) for x in xs], 0.02)
        return cls(
            left, right, bottom,
            lambda x: left + (right - left) * (scale(x) - first) / (last - first),
            lambda y: bottom - HEIGHT * _within(rise, y, low, high),
            _x_ticks(chart, first, last), y_ticks,
        )  # fmt: skip

    @property
    def box(self) -> str:
        return f'x="{self.left:g}" y="{TOP}" width="{self.right - self.left:g}" height="{HEIGHT}"'


def _spread(values: Sequence[float], share: float = 0.05) -> tuple[float, float]:
    low, high = min(values), max(values)
    pad = share * (high - low) or 0.05 * abs(high) or 0.5
    return low - pad, high + pad


def _within(rise: Callable[[float], float], y: float, low: float, high: float) -> float:
    """Where y lies between the limits, 0 to 1; what is far beyond them stays near."""
    first, last = rise(low), rise(high)
    at = -1.0 if rise is not float and y <= 0 else (rise(y) - first) / (last - first)
    return min(max(at, -1.0), 2.0)


def _x_ticks(chart: Chart, first: float, last: float) -> list[tuple[float, str]]:
    if chart.ticks:
        return [(float(i), tick.name) for i, tick in enumerate(chart.ticks)]
    if chart.log:
        low, high = 10**first, 10**last
        values = LogLocator(subs=log_steps(low, high)).tick_values(low, high)
        return [(v, _plain(v)) for v in values if low <= v <= high]
    locator = MaxNLocator(integer=chart.whole, nbins=6, steps=[1, 2, 2.5, 5, 10])
    values = [v for v in locator.tick_values(first, last) if first <= v <= last]
    return [(v, f"{v:.0%}" if chart.percent else _plain(v)) for v in values]


def _grid(chart: Chart, f: _Frame) -> Iterable[str]:
    for y, text in f.y_ticks:
        yield f'<path class="grid" d="M{f.left:g} {f.y(y):.1f}H{f.right:g}"/>'
        yield _text(f.left - 7, f.y(y) + 4, text, "end")
    for i, (x, text) in enumerate(f.x_ticks):
        at = f.x(x)
        if not chart.points:
            yield f'<path class="grid" d="M{at:.1f} {TOP}V{f.bottom}"/>'
        yield _text(at, f.bottom + 17, text, "mid")
        if chart.ticks:
            yield _text(at, f.bottom + 31, chart.ticks[i].under, "mid muted tiny")
    if chart.ticks and chart.ticks[0].apart:
        yield f'<path class="frame" d="M{f.x(0.5):.1f} {TOP}V{f.bottom}"/>'
    yield f'<path class="frame" d="M{f.left:g} {TOP}V{f.bottom}H{f.right:g}"/>'


def _line(chart: Chart, f: _Frame, line: Line) -> str:
    look = pixels(style(line.look, thin=line.thin))
    out = []
    for part in line.parts:
        few = chart.points or (len(part.x) <= 12 and not chart.percent)
        out.append(_range(chart, f, part, look["colour"]))
        out.append(_path(f, zip(part.x, part.mean, strict=True), look, look["width"], few))
        out += [_path(f, tail, look, 1.0, few) for tail in part.tails]
    return "".join(out)


def _path(f: _Frame, points: Iterable[tuple[float, float]], look: dict[str, Any], width: float, dots: bool) -> str:
    found = [(f"{f.x(x):.1f}", f"{f.y(y):.1f}") for x, y in points]
    if not found:
        return ""
    colour = f"var(--c{look['colour']})"
    dash = f' stroke-dasharray="{" ".join(map(str, look["dash"]))}"' if look["dash"] else ""
    way = "M" + "L".join(f"{x} {y}" for x, y in found)
    out = f'<path fill="none" stroke="{colour}" stroke-width="{width:g}"{dash} d="{way}"/>'
    if dots:
        out += "".join(f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in found)
    return out


def _range(chart: Chart, f: _Frame, part: Curve, colour: int) -> str:
    """A band, or bars, from the lowest to the highest value of the seeds."""
    if part.low == part.high:
        return ""
    ends = [(f.x(x), f.y(low), f.y(high)) for x, low, high in zip(part.x, part.low, part.high, strict=True)]
    if chart.points or len(ends) == 1:
        way = "".join(f"M{x:.1f} {low:.1f}V{high:.1f}" for x, low, high in ends)
        return f'<path stroke="var(--c{colour})" d="{way}"/>'
    there = "L".join(f"{x:.1f} {high:.1f}" for x, _, high in ends)
    back = "L".join(f"{x:.1f} {low:.1f}" for x, low, _ in reversed(ends))
    return f'<path fill="var(--c{colour})" fill-opacity=".15" d="M{there}L{back}Z"/>'


def _mark(chart: Chart, f: _Frame, mark: Mark) -> str:
    dash = "7 5" if mark.line == "--" else "2 3"
    at = f.y(mark.y)
    return f'<path stroke="{_colour(mark)}" stroke-dasharray="{dash}" d="M{f.left:g} {at:.1f}H{f.right:g}"/>'


def _names(chart: Chart, f: _Frame) -> Iterable[str]:
    """The axes' names, and those of horizontal lines beside them, never over each other."""
    middle = TOP + HEIGHT / 2
    for i, text in enumerate(reversed(wrap(chart.ylabel, 52))):
        turned = f' transform="rotate(-90 {13 - 14 * i:g} {middle:g})"'
        yield _text(13 - 14 * i, middle, text, "mid", turned)
    under = f.bottom + 36 + (14 if chart.ticks else 0)
    for i, text in enumerate(chart.xlabel.splitlines()):
        yield _text((f.left + f.right) / 2, under + 16 * i, text, "mid")
    if chart.cut:
        yield _text(f.right - 4, TOP + 12, chart.cut, "end muted")
    floor = math.inf
    for mark in sorted((m for m in chart.marks if m.text), key=lambda m: m.y):
        lines = wrap(mark.text, 15)[:4]
        last = min(f.y(mark.y) + 4 + 7 * (len(lines) - 1), floor)
        for i, text in enumerate(reversed(lines)):
            yield _text(f.right + 8, last - 14 * i, text, "", f' style="fill:{_colour(mark)}"')
        floor = last - 14 * len(lines) - 2


def _key(chart: Chart, top: float) -> tuple[str, float]:
    """Methods beneath the axes in rows that fit, and where they end."""
    labels = [w.cut(line.label, LABEL_LENGTH) for line in chart.lines]
    widths = [44 + LETTER * cell_len(label) for label in labels]
    rows: list[list[int]] = [[]]
    for i, width in enumerate(widths):
        if rows[-1] and sum(widths[j] for j in rows[-1]) + width > WIDTH:
            rows.append([])
        rows[-1].append(i)
    out, y = [], top + 18
    for row in rows:
        x = (WIDTH - sum(widths[j] for j in row)) / 2
        for j in row:
            look = pixels(style(chart.lines[j].look, thin=chart.lines[j].thin))
            dash = f' stroke-dasharray="{" ".join(map(str, look["dash"]))}"' if look["dash"] else ""
            way = f'stroke="var(--c{look["colour"]})" stroke-width="{look["width"]:g}"{dash} d="M{x:.1f} {y - 4:g}h26"'
            out.append(f"<path {way}/>{_text(x + 32, y, labels[j])}")
            x += widths[j]
        y += 19
    return "".join(out), y


def _colour(mark: Mark) -> str:
    return "var(--muted)" if mark.look is None else f"var(--c{pixels(style(mark.look))['colour']})"


def _text(x: float, y: float, text: str, kind: str = "", more: str = "") -> str:
    kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{kind}{more}>{e(text)}</text>'


def _plain(value: float) -> str:
    value = float(np.format_float_positional(value, 10)) if value else 0.0
    small = value and (abs(value) < 1e-4 or abs(value) >= 1e7)
    return f"{value:g}" if small else f"{value:,.10g}".replace("-", "−")
