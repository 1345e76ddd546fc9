"""The looks of the pictures of examples/mixture.py."""

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from PIL import Image

from fedsub.study.report.drawing import COLOURS, MARKERS, STYLES


def canvas(across, down=1, height=3.6, sharey="row"):
    figure = Figure(figsize=(9.6, height), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    return figure, figure.subplots(down, across, squeeze=False, sharey=sharey)


def save(figure, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.canvas.draw()
    image = Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB")
    image.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True, dpi=(120, 120))
    print(path)


def plain(axis, subs):
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def look(index):
    return {"color": COLOURS[index], "linestyle": STYLES[index], "lw": 1.8}


def key(figure, labels, columns, marked=()):
    """A key beneath the picture: one entry for each label, in the looks 0, 1, …"""
    lines = [Line2D([], [], **look(i), marker=MARKERS[i] if i in marked else None, ms=5) for i in range(len(labels))]
    figure.legend(lines, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9, handlelength=3)
