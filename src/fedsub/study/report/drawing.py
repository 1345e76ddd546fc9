"""The look that all plots share: colours, line styles, keys and labels beside the axes."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedsub.study.report import words as w

# Okabe and Ito's colours, told apart by colour-blind readers; their yellow is too pale for a line.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (8, 2, 2, 2)))
_STROKES = {"-": (), "--": (3.7, 1.6), "-.": (6.4, 1.6, 1, 1.6), ":": (1, 1.65)}  # as matplotlib has them
MARKERS = "os^Dv<>P"
INK, MUTED, GRID = "#1f2328", "#646c76", "#dfe2e6"  # svg.py replaces them by the reader's light or dark ones
LABEL_LENGTH = 40
SIZE = (7.6, 4.6)  # inches
ROWS = 3  # of the key, for which that has room


def style(index: int, *, thin: bool = False) -> dict[str, Any]:
    """Colour, line style and marker of the method at this place; no two of the first 49 look the same.

    ``thin``: of its shared model alone.
    """
    lap, place = divmod(index, len(COLOURS))
    line = STYLES[(place + lap) % len(STYLES)]
    return {
        "color": COLOURS[place],
        "linestyle": (":" if line == "-" else "-") if thin else line,
        "marker": MARKERS[index % len(MARKERS)],
        "lw": 1.0 if thin else 1.8,
    }


def pixels(look: dict[str, Any]) -> dict[str, Any]:
    """A look as the page draws it: the colour's place, strokes and gaps and the width in pixels."""
    line, width = look["linestyle"], look["lw"] + 0.2
    strokes = _STROKES[line] if isinstance(line, str) else line[1]
    dash = [round(width * length, 1) for length in strokes]
    return {"colour": COLOURS.index(look["color"]), "dash": dash, "width": width}


def log_steps(low: float, high: float, dense: float = 0.0) -> tuple[float, ...]:
    """The multiples of powers of ten that a logarithmic axis names; more of them up to a ratio of ``dense``."""
    return (1.0, 2.0, 3.0, 5.0, 7.0) if high < dense * low else (1.0,) if high > 1000 * low else (1.0, 3.0)


def canvas() -> tuple[Figure, Any]:
    figure = Figure(figsize=SIZE)
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


def side_labels(figure: Figure, axes: Any, marks: Sequence[tuple[float, str, str]], rows: int = 1) -> None:
    """Write (height, text, colour) right of the axes, at their lines' heights but never over each other.

    ``rows``: how many rows of axes share the figure's height.
    """
    axes.get_ylim()  # settles the limits
    line_height = 0.165 / (0.7 * figure.get_figheight() / rows)
    edge = 0.0
    for y, words, colour in sorted(marks):
        text = wrap(words, 12)[:4]
        half = len(text) * line_height / 2
        at = axes.transLimits.transform(axes.transScale.transform((1.0, y)))[1]  # as a share of the height
        centre = max(at, edge + half)
        edge = centre + half
        shown = axes.text(1.012, centre, "\n".join(text), color=colour, transform=axes.transAxes)
        shown.set(va="center", ha="left", fontsize=8.5, parse_math=False)


def key(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> int:
    """The legend beneath the axes; returns its number of rows."""
    names = [w.cut(label, LABEL_LENGTH) for label in labels]
    columns = max(1, min(len(names), 104 // (max(map(len, names)) + 9)))
    rows = -(-len(names) // columns)
    columns = -(-len(names) // rows)  # rows of equal length
    place = "lower center" if figure.get_layout_engine() is None else "outside lower center"
    legend = figure.legend(handles, [str(i) for i in range(len(names))], loc=place, ncols=columns, frameon=False)
    legend.set_in_layout(True)
    for line in legend.get_lines():
        line.set_linewidth(1.8)
    for text, name in zip(legend.get_texts(), names, strict=True):
        # Set afterwards and without mathematics: matplotlib hides labels that begin with an underscore.
        text.set(text=name, parse_math=False, fontsize=9, color=INK)
    return rows


def arrange(figure: Figure, axes: Any, *, rows: int, beneath: float, beside: bool) -> None:
    """Room around the axes, in inches: for ``rows`` of the key, what stands ``beneath`` and ``beside`` them.

    Every text here has a size that is known, so that matplotlib's layout engine, which draws everything once more
    to measure it, is not needed.
    """
    figure.set_figheight(SIZE[1] + 0.21 * max(0, rows - ROWS))  # a long key does not press the axes flat
    width, height = figure.get_size_inches()
    axis = axes.yaxis
    ticks = axis.get_major_formatter().format_ticks(axis.get_majorticklocs())
    lines = axis.label.get_text().count("\n") + 1
    left = 0.22 + 0.17 * lines + 0.085 * max(map(len, ticks), default=4)
    bottom = 0.1 + 0.21 * rows + beneath
    figure.subplots_adjust(
        left=left / width, right=1 - (1.05 if beside else 0.15) / width, bottom=bottom / height, top=1 - 0.12 / height
    )
