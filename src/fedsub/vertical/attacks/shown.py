"""The table and the picture of attacks: beside each protection what is left of them, and what it costs the task."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np

from fedsub.disk.files import dump, make_folder, output_folder, write_atomic
from fedsub.study.attacked import Attacked
from fedsub.vertical.attacks.study import ALL, ATTACKS, OF_GRADIENTS, ONE

COLOURS = {"norm": "#0072B2", "direction": "#D55E00", "spectral": "#009E73", "activations": "#CC79A7",
           "completion": "#E69F00"}  # fmt: skip  # Okabe & Ito
HEADINGS = (
    "protection", "task", *[f"{name}\n({look})" for look in ("one pass", "all passes") for name in OF_GRADIENTS],
    "activations", "completion", "untrained",
)  # fmt: skip


def table(found: Attacked) -> list[list[str]]:
    """Cells by protection: means over seeds, ± the standard deviation; "–" where there is nothing to attack."""
    return found.table(("task", *ATTACKS))


def save(found: Attacked, folder: Path, *, marks: dict[str, float] | None = None) -> None:
    """attack.json, attack.csv (a line per protection and seed) and attack.png."""
    make_folder(output_folder(folder))
    write_atomic(folder / "attack.json", dump(found.plain(), indent=2))
    write_atomic(folder / "attack.csv", found.csv(("task", *ATTACKS)).encode())
    picture = BytesIO()
    draw(found, picture, marks=marks)
    write_atomic(folder / "attack.png", picture.getvalue())


def draw(found: Attacked, to: Path | BytesIO, *, marks: dict[str, float] | None = None) -> None:
    """Left: the AUC of every attack; right: the task's. A bar reaches from the lowest to the highest seed.

    ``marks`` are AUC of the task that are known, by name.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = found.protections()
    figure = Figure(figsize=(10.5, 0.46 * len(names) + 2.1), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1.7, 1))
    places = np.arange(len(names))
    for k, attack in enumerate(COLOURS):
        shift = (k - (len(COLOURS) - 1) / 2) * 0.14
        looks = {ALL: f"{attack}.{ALL}", ONE: f"{attack}.{ONE}"} if attack in OF_GRADIENTS else {ALL: attack}
        for look, what in looks.items():
            hollow = {"markerfacecolor": "white"} if look == ONE else {}
            label = attack if look == ALL else None
            found.draw(left, places + shift, what, color=COLOURS[attack], label=label, **hollow)
    plain = [np.mean(v) for name in names if (v := found.of(name, "untrained"))]
    if plain:
        left.axvline(float(np.mean(plain)), color="0.45", ls="--", lw=1, label="own features, untrained")
    left.axvline(0.5, color="0.75", lw=1)
    left.set(xlabel="AUC of attacks on labels", yticks=places, yticklabels=names, xlim=(None, 1.02))
    left.invert_yaxis()
    left.set_title("filled: all passes; hollow: the last pass alone", fontsize=9)
    found.draw(right, places, "task", color="black")
    for text, value in (marks or {}).items():
        right.axvline(value, color="0.45", ls=":", lw=1.2)
        right.annotate(text, (value, 1), xycoords=("data", "axes fraction"), xytext=(0, 3), textcoords="offset points",
                       ha="center", fontsize=8, color="0.3")  # fmt: skip
    right.set(xlabel=f"task: {found.metric}")
    for axes in (left, right):
        axes.grid(True, color="#DDDDDD", linewidth=0.7)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9)
    figure.savefig(to, format="png")
