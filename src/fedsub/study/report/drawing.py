"""The look that all plots share: colours, line styles, keys and labels beside the axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedsub.running.result import better
from fedsub.study.report import words as w
from fedsub.study.report.curves import Curve

# Okabe and Ito's colours, told apart by colour-blind readers; their yellow is too pale for a line.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (8, 2, 2, 2)))
MARKERS = "os^Dv<>P"
INK, MUTED, GRID = "#1f2328", "#646c76", "#dfe2e6"  # page.py replaces them by the reader's light or dark ones
LABEL_LENGTH = 40


@dataclass(frozen=True)
class SideLabel:
    """A horizontal line's name, written to the right of the axes; ``line``: draw it in this style."""

    y: float
    text: str
    colour: str
    line: str = ""


def style(index: int) -> dict[str, Any]:
    """Colour, line style and marker of the method at this place; no two of the first 49 look the same."""
    lap, place = divmod(index, len(COLOURS))
    return {
        "color": COLOURS[place],
        "linestyle": STYLES[(place + lap) % len(STYLES)],
        "marker": MARKERS[index % len(MARKERS)],
        "lw": 1.8,
    }


def canvas(narrow: bool) -> tuple[Figure, Any]:
    figure = Figure(figsize=(4.1, 4.2) if narrow else (7.6, 4.6))
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def nothing(figure: Figure, axes: Any, sentence: str) -> Figure:
    """A figure that says why it is empty."""
    axes.set_axis_off()
    text = "\n".join(wrap(sentence, 40))
    axes.text(0.5, 0.5, text, ha="center", va="center", color=MUTED, transform=axes.transAxes)
    return figure


def finish(axes: Any, vertical: bool = True) -> None:
    axes.grid(True, axis="both" if vertical else "y", which="major", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(which="both", color=MUTED, labelcolor=INK, labelsize=9)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)


def y_limits(axes: Any, curves: Sequence[Curve], lines: Sequence[float], metric: str) -> None:
    """Show everything, except where a run that diverged would press all others into a line."""
    values = sorted([*(v for c in curves for v in c.trained()), *lines])
    low, high = values[0], values[-1]
    starts = [c.mean[0] for c in curves if c.mean]
    if better(metric) == "lower" and starts:
        room = max(*starts, *lines, low) - low
        if room > 0 and high > low + 3 * room:
            high = low + 1.25 * room
    pad = 0.04 * (high - low) or 0.05 * abs(high) or 0.5
    axes.set_ylim(low - pad, high + pad)
    if high < values[-1]:
        text = f"cut off at {high + pad:.3g}; highest value {values[-1]:.3g}"
        axes.text(0.99, 0.985, text, ha="right", va="top", color=MUTED, fontsize=8, transform=axes.transAxes)


def side_labels(figure: Figure, axes: Any, labels: Sequence[SideLabel], rows: int = 1) -> None:
    """Write the labels right of the axes, at their lines' heights but never over each other.

    ``rows``: how many rows of axes share the figure's height.
    """
    low, high = axes.get_ylim()
    line_height = 0.165 / (0.7 * figure.get_figheight() / rows)
    edge = 0.0
    for label in sorted(labels, key=lambda label: label.y):
        if label.line:
            axes.axhline(label.y, color=label.colour, linestyle=label.line, lw=1.3, zorder=1.5)
        text = wrap(label.text, 12)[:4]
        half = len(text) * line_height / 2
        centre = max((label.y - low) / (high - low), edge + half)
        edge = centre + half
        shown = axes.text(1.012, centre, "\n".join(text), color=label.colour, transform=axes.transAxes)
        shown.set(va="center", ha="left", fontsize=8.5, parse_math=False)


def key(figure: Figure, handles: Sequence[Any], labels: Sequence[str], narrow: bool) -> None:
    """The legend beneath the axes."""
    names = [w.cut(label, LABEL_LENGTH) for label in labels]
    fit = (46 if narrow else 104) // (max(map(len, names)) + 9)
    columns = max(1, min(len(names), fit))
    columns = -(-len(names) // -(-len(names) // columns))  # rows of equal length
    place = "outside lower center"
    legend = figure.legend(handles, [str(i) for i in range(len(names))], loc=place, ncols=columns, frameon=False)
    legend.set_in_layout(True)
    for line in legend.get_lines():
        line.set_linewidth(1.8)
    for text, name in zip(legend.get_texts(), names, strict=True):
        # Set afterwards and without mathematics: matplotlib hides labels that begin with an underscore.
        text.set(text=name, parse_math=False, fontsize=9, color=INK)
