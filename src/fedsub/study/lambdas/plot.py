"""The table and the picture of a path: distances to both ends and the held-out metric over λ."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsub.disk.files import dump, make_folder, plain, write_atomic
from fedsub.disk.text import csv_bytes
from fedsub.running.result import better

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedsub.study.lambdas.choose import LambdaPath


def write(found: LambdaPath, folder: Path) -> None:
    """path.csv, path.json and path.png."""
    make_folder(folder)
    names = list(found.points[0])
    write_atomic(folder / "path.csv", csv_bytes([names, *(list(plain(point).values()) for point in found.points)]))
    write_atomic(folder / "path.json", dump(found.summary(), indent=2))
    picture = io.BytesIO()
    draw(found).savefig(picture, format="png", dpi=150)
    write_atomic(folder / "path.png", picture.getvalue())


def draw(found: LambdaPath) -> Figure:
    """Left how far x(λ) is from both ends, right what it is worth on validation samples; the chosen λ is marked."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from fedsub.study.report.drawing import INK, MUTED, finish, style
    from fedsub.study.report.words import with_unit

    figure = Figure(figsize=(9.6, 4.2))
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    lams = [p["lam"] for p in found.points]
    places = _places(lams)
    for index, (key, label) in enumerate((("to_local", "to x(0), purely local"), ("to_global", "to x(∞), one model"))):
        left.plot(places, [p[key] for p in found.points], label=label, ms=4.5, **style(index))
    left.set(ylabel="distance, root mean square over clients")
    left.set_ylim(bottom=0)
    left.legend(frameon=False, fontsize=9, labelcolor=INK)
    key = f"validation.{found.metric}"
    right.plot(places, [p[key] for p in found.points], ms=4.5, **style(2))
    right.set(ylabel=with_unit(key))
    chosen = places[lams.index(found.chosen)]
    for axes in (left, right):
        axes.axvline(chosen, color=MUTED, linestyle=":", lw=1.3, zorder=1)
        _ticks(axes, lams, places)
        axes.set(xlabel="λ")
        finish(axes)
    right.plot([chosen], [found.best[key]], "o", ms=10, mfc="none", mec=INK, mew=1.4)
    text = f"chosen: λ = {name(found.chosen)}"
    late = chosen > (min(places) + max(places)) / 2
    right.annotate(
        text, (chosen, found.best[key]), (-12 if late else 12, 12 if better(key) == "higher" else -18),
        textcoords="offset points",
        ha="right" if late else "left", fontsize=9, color=INK,
    )  # fmt: skip
    right.margins(y=0.2)
    return figure


def name(lam: float) -> str:
    return "∞" if math.isinf(lam) else f"{lam:.3g}"


def _places(lams: list[float]) -> list[float]:
    """log10 λ; 0 and ∞ stand beside the others, at the distance of two neighbours but at least half a decade."""
    inner = [math.log10(lam) for lam in lams if 0 < lam < math.inf]
    low, high = (min(inner), max(inner)) if inner else (0.0, 0.0)
    gap = max(0.5, (high - low) / max(1, len(inner) - 1))
    return [low - gap if lam == 0 else high + gap if math.isinf(lam) else math.log10(lam) for lam in lams]


def _ticks(axes: Any, lams: list[float], places: list[float]) -> None:
    inner = [place for lam, place in zip(lams, places, strict=True) if 0 < lam < math.inf]
    whole = range(math.ceil(min(inner) - 1e-9), math.floor(max(inner) + 1e-9) + 1) if inner else range(0)
    step = max(1, -(-len(whole) // 7))
    ticks = {float(k): f"$10^{{{k}}}$" for k in whole[::step]}
    if len(ticks) < 2:
        ticks = {place: name(lam) for lam, place in zip(lams, places, strict=True) if 0 < lam < math.inf}
    ticks |= {place: name(lam) for lam, place in zip(lams, places, strict=True) if lam == 0 or math.isinf(lam)}
    axes.set_xticks(list(ticks), list(ticks.values()))
