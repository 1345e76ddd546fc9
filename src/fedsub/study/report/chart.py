"""One chart as data: what matplotlib draws for files and print, and uPlot in the browser."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedsub.objective.metrics import NORMS
from fedsub.running.result import better
from fedsub.study.report import words as w
from fedsub.study.report.curves import Curve
from fedsub.study.report.drawing import COLOURS, LABEL_LENGTH, pixels, style

DIGITS = 7  # significant ones of a number in the page: more than a screen can show


@dataclass(frozen=True)
class Mark:
    """A horizontal line with its name beside it. ``look``: of the method at this place; None: of no method."""

    y: float
    text: str
    line: str = ":"  # dotted, or "--"
    look: int | None = None


@dataclass(frozen=True)
class Line:
    """What one method draws, in its own colour. ``thin``: of its shared model alone."""

    label: str
    look: int
    parts: tuple[Curve, ...]  # more than one where the line is broken
    thin: bool = False


@dataclass(frozen=True)
class Tick:
    """A place on the axis that has a name, and a smaller second line beneath it."""

    name: str
    short: str
    under: str = ""
    apart: bool = False  # not in a row with those that follow


@dataclass(frozen=True)
class Chart:
    """``name`` is that of its file; ``tab`` tells it from the others of its section; ``empty`` says why it is."""

    name: str
    tab: str
    caption: str = ""
    description: str = ""  # for those who cannot see it
    xlabel: str = ""
    ylabel: str = ""
    lines: tuple[Line, ...] = ()
    marks: tuple[Mark, ...] = ()
    ticks: tuple[Tick, ...] = ()  # names of the places 0, 1, 2 …
    limits: tuple[float, float] | None = None
    cut: str = ""  # what ``limits`` leave out
    points: bool = False  # points with bars, not lines with bands
    log: bool = False
    logy: bool = False
    whole: bool = False  # x is a number of rounds
    percent: bool = False  # x is a share
    start: float | None = None  # the value before training, where the curves do not begin with it
    empty: str = ""

    def curves(self) -> list[Curve]:
        return [part for line in self.lines for part in line.parts if part]

    def shown(self, curve: Curve) -> list[float]:
        """The values that the limits keep in sight."""
        return curve.values() if self.points or self.start is not None else curve.trained()

    def plain(self) -> dict[str, Any]:
        """As JSON for the page: short names, few digits, nothing that is not a number."""
        lines = [
            {"label": w.cut(line.label, LABEL_LENGTH), **pixels(style(line.look, thin=line.thin)), "parts": parts}
            for line in self.lines
            if (parts := [p for part in line.parts for p in _plain(part, self.shown(part))])
        ]
        marks = [{"y": m.y, "text": m.text, "dash": m.line == "--"} | _colour(m.look) for m in self.marks]
        return {
            "name": self.name, "tab": self.tab, "about": self.description, "xlabel": self.xlabel,
            "ylabel": self.ylabel, "lines": lines, "marks": marks, "cut": self.cut, "points": self.points,
            "ticks": [vars(tick) for tick in self.ticks], "limits": self.limits, "log": self.log,
            "logy": self.logy, "percent": self.percent,
        }  # fmt: skip


def file_name(metric: str) -> str:
    """A metric as part of a file name."""
    return re.sub(r"[^\w.-]+", "-", metric)


def bounded(chart: Chart, metric: str) -> Chart:
    """The chart with limits that show everything, except where a run that diverged would press all others flat."""
    curves, lines = chart.curves(), [mark.y for mark in chart.marks]
    values = sorted([*(v for c in curves for v in chart.shown(c)), *lines])
    if not values:
        return chart
    low, high = values[0], values[-1]
    if metric.rpartition(".")[2] in NORMS and low > 0:  # they fall by powers of ten
        return replace(chart, logy=True, limits=(low / 1.2, high * 1.2))
    starts = [c.mean[0] for c in curves if c.mean] if chart.start is None else [chart.start]
    if better(metric) == "lower" and starts and not chart.points:
        room = max(*starts, *lines, low) - low
        if room > 0 and high > low + 3 * room:
            high = low + 1.25 * room
    pad = (0.06 if chart.points else 0.04) * (high - low) or 0.05 * abs(high) or 0.5
    cut = f"cut off at {high + pad:.3g}; highest value {values[-1]:.3g}" if high < values[-1] else ""
    return replace(chart, limits=(low - pad, high + pad), cut=cut)


def _plain(curve: Curve, shown: Sequence[float]) -> Iterable[dict[str, Any]]:
    """A curve as columns of numbers, then each seed that goes on alone."""
    if curve.x:
        found: dict[str, Any] = {"x": _short(curve.x), "y": _short(curve.mean)}
        if curve.low != curve.high:
            found |= {"low": _short(curve.low), "high": _short(curve.high)}
        yield found | {"range": _short([min(shown), max(shown)])}
    for tail in curve.tails:
        ys = [y for _, y in tail]
        yield {"x": _short([x for x, _ in tail]), "y": _short(ys), "range": _short([min(ys), max(ys)]), "alone": True}


def _short(values: Sequence[float]) -> list[float | int | None]:
    out: list[float | int | None] = []
    for value in values:
        number = float(f"{value:.{DIGITS}g}")
        out.append(None if not math.isfinite(number) else int(number) if number == int(number) else number)
    return out


def _colour(look: int | None) -> dict[str, Any]:
    return {} if look is None else {"colour": look % len(COLOURS)}
