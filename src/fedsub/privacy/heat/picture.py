"""The picture of private heat: estimated against exact, a panel for every mechanism."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsub.privacy.heat.measured import Measured

_POINT, _BAND, _LINE = "#0072B2", "#56B4E9", "#D55E00"  # Okabe & Ito
_MOST = 20_000  # points of a panel


def draw(found: Sequence[Measured], path: str | Path) -> None:
    """Write a PNG. Estimates below 1 lie on the line at 1, to which they are clipped."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(len(found), 3)
    lines = -(-len(found) // columns)
    figure = Figure(figsize=(4.2 * columns + 0.6, 4.1 * lines + 0.5), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).ravel()
    for axes, one in zip(panels, found, strict=False):
        _panel(axes, one)
    for axes in panels[len(found) :]:
        axes.set_visible(False)
    handles, labels = panels[0].get_legend_handles_labels()
    columns = len(labels) if len(panels) > 1 else 2  # a lone panel is too narrow for one line
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, markerscale=5)
    figure.savefig(path, format="png")


def _panel(axes: Any, one: Measured) -> None:
    own = one.exact > 0
    exact, estimated, deviations = (values[own] for values in (one.exact, one.estimated, one.deviations))
    order = np.argsort(exact, kind="stable")
    exact, estimated, deviations = exact[order], estimated[order], deviations[order]
    some = np.unique(np.linspace(0, len(exact) - 1, min(len(exact), _MOST)).astype(np.int64))
    band = np.clip([exact - 2 * deviations, exact + 2 * deviations], 1, one.whole)
    axes.fill_between(exact, *band, color=_BAND, alpha=0.25, lw=0, label="± 2 standard deviations")
    axes.plot(
        exact[some], np.clip(estimated[some], 1, one.whole), ".", color=_POINT, ms=2, alpha=0.35,
        label="a row", rasterized=True,
    )  # fmt: skip
    axes.plot([1, one.whole], [1, one.whole], color="black", lw=1, label="exact")
    if one.resolvable > 1:
        axes.axvline(one.resolvable, color=_LINE, ls="--", lw=1.3, label="resolvable heat")
    clipped = np.count_nonzero(estimated < 1)
    axes.set(xscale="log", yscale="log", xlabel="exact heat", ylabel="estimated heat, clipped to 1 and all")
    first, _, rest = one.title.partition(", ")
    axes.set_title(f"{first}\n{rest}\n{clipped:,} of {len(exact):,} held rows clipped to 1", fontsize=9)
    axes.grid(True, which="major", color="#DDDDDD", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.label_outer()
