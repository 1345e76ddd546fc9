"""The small plots of docs/methods: each method beside FedAvg (grey) and FedSubAvg, on generated data.

Two tasks. *Films*: logistic regression on MovieLens-like data at one twentieth of its size, where heat matters.
*Tastes*: forty clients who value thirty things differently, in different numbers of samples, where drift matters;
its best possible loss is known, and the plots show the distance to it. *Stars*: ratings by 200 users with tastes of
their own, for matrix factorisation. The mixture's methods are shown by their distance to the personal models x(λ)
that they look for, on the breast cancer data of examples/mixture_problem.py. One seed: pictures, not evidence.

python examples/method_pictures.py [DIRECTORY] [NAME ...]
"""

import sys
from pathlib import Path

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from mixture_canvas import plain as plain_numbers
from mixture_problem import solve
from pictured_methods import Line, Mixed, pictures
from pictured_tasks import FILMS, STEPS, personal, trained
from PIL import Image

import fedsub as fs
from fedsub.study.report.drawing import COLOURS, MUTED, STYLES, finish


def draw_mixed(picture, path):
    functions, best = personal(picture.lam, picture.exact, picture.l2)
    figure, axes = sheet()
    looks = [(COLOURS[0], "-"), (COLOURS[1], "--"), (COLOURS[2], "-."), (MUTED, "-")]
    for (label, solver), (colour, dashes) in zip(picture.lines.items(), looks, strict=False):
        solver = solver(functions) if callable(solver) else solver
        run = solve(solver, functions, best, until=1e-11, most=50_000, communications=picture.upto)
        axes.plot(getattr(run, picture.against), run.distances, color=colour, ls=dashes, lw=1.8, label=label)
    words = {"communications": "communications", "epochs": "passes over the data"}[picture.against]
    end = f"x({'∞' if np.isinf(picture.lam) else 'λ'})"
    axes.set(yscale="log", xlabel=words, ylabel=f"squared distance to {end}, relative")
    axes.set(xlim=(-0.02 * picture.upto, 1.02 * picture.upto), ylim=(3e-11, 3))
    keep(figure, axes, picture.title, path)


def sheet():
    figure = Figure(figsize=(4.8, 3.3), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def keep(figure, axes, title, path):
    finish(axes)
    axes.set_title(title, fontsize=8.5, loc="left")
    figure.legend(loc="outside lower center", ncols=2, fontsize=7.5, frameon=False, handlelength=2.8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.canvas.draw()
    image = Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB")
    palette = image.quantize(256, dither=Image.Dither.NONE)  # a third of the bytes of full colour
    palette.save(path, optimize=True, dpi=(120, 120))


def series(picture, line):
    """What is drawn of a line: its places and its losses."""
    against, losses, _ = trained(picture.task, line.method)
    return against[picture.against], losses


def draw(picture, path):
    plain = picture.plain or {"films": FILMS, "tastes": STEPS, "stars": FILMS}[picture.task]
    lines = list(picture.lines)
    shown = {line.label for line in lines}
    beside = {"FedAvg": fs.methods.fedavg(**plain), "FedSubAvg": fs.methods.fedsubavg(**plain)}
    lines += [Line(label, method) for label, method in beside.items() if label not in shown]
    base = trained(picture.task, beside["FedAvg"])[2]
    figure, axes = sheet()
    others = iter([(COLOURS[0], "-"), (COLOURS[2], "-."), (COLOURS[3], ":"), (COLOURS[5], STYLES[4])])
    for line in lines:
        x, losses = series(picture, line)
        colour, dashes = {"FedAvg": (MUTED, "-"), "FedSubAvg": (COLOURS[1], "--")}.get(line.label) or next(others)
        label = line.label
        if picture.traffic and label not in ("FedAvg", "FedSubAvg"):
            ratio = trained(picture.task, line.method)[2] / base
            label += f"  ({ratio:.0f}× the bytes)" if ratio >= 10 else f"  ({ratio:.2g}× the bytes)"
        start = 1 if picture.against == "up" else 0  # a log axis has no 0
        front = 2 if line.label in beside else 3
        axes.plot(x[start:], losses[start:], color=colour, linestyle=dashes, lw=1.8, label=label, zorder=front)
    if picture.against == "up":
        axes.set_xscale("log")
        plain_numbers(axes.xaxis, (1.0, 3.0))
        axes.set_xlabel("MB sent by the clients, all together")
    elif picture.against == "clock":
        axes.set_xlabel("simulated seconds on phones")
        end = max(series(picture, line)[0][-1] for line in picture.lines)
        seen = [loss for line in lines for x, loss in zip(*series(picture, line), strict=True) if x <= end]
        axes.set(xlim=(0, end), ylim=(min(seen) - 0.005, None))
    else:
        axes.set_xlabel("rounds")
    if picture.task == "tastes":
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, 1e-5), high)
        plain_numbers(axes.yaxis, (1.0,) if high > 100 * max(low, 1e-5) else (1.0, 2.0, 5.0))
        axes.set_ylabel("train loss above the best")
    elif picture.task == "stars":
        axes.set_ylabel("train RMSE (stars)")
    else:
        axes.set_ylabel("train loss (cross-entropy)")
        top = max(trained(picture.task, line.method)[1][0] for line in lines)
        low, high = axes.get_ylim()
        axes.set_ylim(low, min(high, top + 0.012))
    keep(figure, axes, picture.title, path)


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images/methods")
    every = pictures()
    for name in sys.argv[2:] or every:
        drawn = every[name]
        (draw_mixed if isinstance(drawn, Mixed) else draw)(drawn, folder / f"{name}.png")
        print(folder / f"{name}.png", flush=True)
