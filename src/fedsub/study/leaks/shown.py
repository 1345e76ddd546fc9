"""The table and the picture of what leaks."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np

from fedsub.disk.files import dump, make_folder, output_folder, write_atomic
from fedsub.study.attacked import Attacked
from fedsub.study.leaks.study import COLUMNS

TABLE = {
    "named.precision": "rows named:\nprecision", "named.recall": "recall", "used.precision": "rows used:\nprecision",
    "used.recall": "recall", "used.auc": "AUC", "labels.auc": "labels:\nAUC", "labels.right": "right",
    "others.auc": "of others:\nAUC", "others.right": "right", "rebuilt.error": "rebuilt:\nerror",
}  # fmt: skip
ROWS = {"named.recall": ("held: recall", "#56B4E9"), "named.precision": ("held: precision", "#0072B2"),
        "used.recall": ("used: recall", "#E69F00"), "used.precision": ("used: precision", "#D55E00")}  # fmt: skip
LABELS = {"labels.right": ("of clients in the round", "#009E73"), "others.right": ("of others", "0.55")}


def save(found: Attacked, folder: Path) -> None:
    """leaks.json, leaks.csv (a line per protection and seed) and leaks.png."""
    make_folder(output_folder(folder))
    write_atomic(folder / "leaks.json", dump(found.plain(), indent=2))
    write_atomic(folder / "leaks.csv", found.csv(COLUMNS).encode())
    picture = BytesIO()
    draw(found, picture)
    write_atomic(folder / "leaks.png", picture.getvalue())


def columns(found: Attacked) -> list[str]:
    """Those of `TABLE` that hold anything."""
    return [name for name in TABLE if any(name in row for row in found.rows)]


def draw(found: Attacked, to: Path | BytesIO) -> None:
    """Rows, labels and, where numbers were rebuilt, their error. A bar reaches from the lowest to the highest seed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names, shown = found.protections(), set(columns(found))
    panels = [("rows of a client", ROWS), ("labels that are guessed right", LABELS)]
    panels = [(title, some) for title, some in panels if shown & set(some)]
    rebuilt = "rebuilt.error" in shown
    count = max(1, len(panels) + rebuilt)
    figure = Figure(figsize=(2.2 + 3.4 * count, 0.42 * len(names) + 1.9), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, count, sharey=True, squeeze=False)[0]
    places = np.arange(len(names))
    for panel, (title, some) in zip(axes, panels, strict=False):
        for k, (what, (label, colour)) in enumerate(some.items()):
            shift = (k - (len(some) - 1) / 2) * 0.16
            found.draw(panel, places + shift, what, color=colour, label=label)
        panel.set(title=title, xlim=(-0.03, 1.03))
    if rebuilt:
        found.draw(axes[-1], places, "rebuilt.error", color="#CC79A7", label="rebuilt numbers")
        axes[-1].axvline(1, color="0.6", lw=1, ls="--", label="the data's mean")
        axes[-1].set(title="error of rebuilt numbers", xlim=(min(-0.05, axes[-1].get_xlim()[0]), None))
    axes[0].set(yticks=places, yticklabels=names)
    axes[0].invert_yaxis()
    for panel in axes:
        panel.title.set_fontsize(10)
        panel.grid(True, color="#DDDDDD", linewidth=0.7)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(axis="y", length=0)
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16 if len(names) > 4 else -0.25), ncols=2,
                     frameon=False, fontsize=8)  # fmt: skip
    figure.savefig(to, format="png")
