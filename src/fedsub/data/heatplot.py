"""The picture of `fedsub.data.heat`: rows by rank, and a histogram of heat."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsub.data.clients import Array, Clients
from fedsub.data.heat import histogram, row_heat, summarise

# Okabe & Ito's colours, which remain distinct under the common forms of colour blindness. Yellow is
# too faint for a line on white and is left out.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 1)))


def plot(clients: Clients, path: str | Path) -> None:
    """Write the picture; see `fedsub.data.heat.plot`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    report = summarise(clients)
    figure = Figure(figsize=(11, 5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)  # a figure of its own: pyplot's global state is left alone
    ranks, bars = figure.subplots(1, 2)
    lines = _lines(clients)
    _plot_ranks(ranks, lines)
    _plot_histogram(bars, lines)
    handles, labels = bars.get_legend_handles_labels()
    if len(lines) > 1:  # the lines are the same in both panels: take each once, with its marker
        handles, labels = [*ranks.get_legend_handles_labels()[0], handles[0]], [*labels[1:], labels[0]]
    columns = min(len(labels), 4)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, handlelength=3.2)
    dispersion = report.overall.dispersion
    value = f"{dispersion:,.0f}" if dispersion >= 100 else f"{dispersion:.3g}"
    spread = f"feature heat dispersion {value}" if lines else "no row is held"
    figure.suptitle(f"{report.clients:,} clients, {spread}", fontsize=13)
    figure.savefig(path, format="png")


def _lines(clients: Clients) -> list[tuple[str, Array]]:
    """(label, heat of held rows, hottest first), the largest space first."""
    heats = []
    for space in clients.spaces.values():
        heat = row_heat(space, clients.sizes)[int(space.padding) :]
        heats.append((space.name, np.sort(heat[heat > 0])[::-1]))
    heats.sort(key=lambda line: -len(line[1]))
    most = len(_COLOURS)
    if len(heats) > most:
        rest = heats[most - 1 :]
        together = np.sort(np.concatenate([heat for _, heat in rest]))[::-1]
        heats = [*heats[: most - 1], (f"{len(rest)} other spaces", together)]
    return [(f"{name} ({len(heat):,} rows held)", heat) for name, heat in heats if len(heat)]


def _plot_ranks(axes: Any, lines: Sequence[tuple[str, Array]]) -> None:
    for j, (label, heat) in enumerate(lines):
        # A log axis cannot show a million points; a thousand evenly spread ones draw the same line.
        at = np.unique(np.round(np.geomspace(1, len(heat), 1000)).astype(np.int64))
        marker = "o" if len(heat) <= 30 else None
        axes.plot(
            at,
            heat[at - 1],
            color=_COLOURS[j],
            linestyle=_STYLES[j],
            marker=marker,
            ms=3.5,
            lw=1.8,
            label=label,
        )
    axes.set(xscale="log", yscale="log", xlabel="rank of the row (hottest first)")
    axes.set(ylabel="heat (clients that hold the row)", title="Heat by rank")
    _finish(axes)


def _plot_histogram(axes: Any, lines: Sequence[tuple[str, Array]]) -> None:
    heat = np.concatenate([heat for _, heat in lines] or [np.zeros(0, np.int64)])
    edges, counts = histogram(heat)
    # One space is its own total: the same colour as its line says so. Otherwise the total is grey.
    colour, name = ("#D9D9D9", f"all ({len(heat):,} rows held)") if len(lines) > 1 else (_COLOURS[0], "")
    name = name or (lines[0][0] if lines else "no rows")
    axes.stairs(counts, edges, fill=True, color=colour, label=name, baseline=0.5)
    for j, (label, own) in enumerate(lines if len(lines) > 1 else ()):
        part = np.histogram(own, edges)[0]
        axes.stairs(part, edges, color=_COLOURS[j], linestyle=_STYLES[j], lw=1.5, label=label, baseline=0.5)
    axes.set(xscale="log", yscale="log", xlabel="heat (clients that hold the row)")
    axes.set(ylabel="rows in the bin", title="Histogram of heat")
    axes.set_ylim(bottom=0.5)
    _finish(axes)


def _finish(axes: Any) -> None:
    axes.grid(True, which="major", color="#DDDDDD", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
