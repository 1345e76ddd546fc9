"""The mixture of global and local models on logistic regression: the pictures and tables of docs/mixture.md.

python examples/mixture.py path|methods|coins|bounds|maml [DIRECTORY]

Needs scikit-learn (pip install -e '.[sklearn]') for its breast cancer data: 569 samples, 30 features and a bias, cut
into 20 clients, sorted by label (clients differ) or at random (clients are alike). Everything is in float64, so that
rounding does not limit what is measured.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from mixture_bounds import bounds
from mixture_canvas import canvas, key, look, plain, save
from mixture_maml import maml
from mixture_problem import LAM, SPLITS, Logistic, breast_cancer, solve

from fedsub.families import mixture
from fedsub.study.report.drawing import COLOURS, MARKERS, MUTED, finish


def path(folder):
    """How far x(λ) is from both ends, f and ψ, over λ."""
    figure, (places,) = canvas(2, height=4.0)
    for axes, (split, title) in zip(places, SPLITS.items(), strict=True):
        functions = Logistic(breast_cancer(split))
        L = functions.constants.L
        points = list(
            mixture.trace_path(functions, [0, *np.geomspace(L / 1e4, 1e3 * L, 43), np.inf], functions.constants)
        )
        lams, (local, *inner, far) = [q.lam for q in points[1:-1]], points
        apart, rise = local.to_global, far.f - local.f
        axes.plot(lams, [q.to_local / apart for q in inner], **look(0))
        axes.plot(lams, [q.to_global / apart for q in inner], **look(1))
        axes.plot(lams, [(q.f - local.f) / rise for q in inner], **look(2))
        axes.plot(lams, [q.psi / local.psi for q in inner], **look(3))
        for value, name in ((functions.constants.mu, "μ"), (L, "L")):
            axes.axvline(value, color=MUTED, lw=0.9, ls=":")
            axes.text(value, 1.03, name, ha="center", color=MUTED, fontsize=9, transform=axes.get_xaxis_transform())
        axes.set_xscale("log")
        axes.set(xlabel="λ", ylim=(-0.03, 1.03))
        axes.set_title(title, fontsize=10, loc="left", pad=18)
        finish(axes)
        print(f"{split}: L = {L:.3f}, mu = {functions.constants.mu:g}; x(0) and x(inf) are {apart:.3f} apart;", end=" ")
        print(f"f from {local.f:.4f} to {far.f:.4f}, psi from {local.psi:.3f} to 0")
    places[0].set_ylabel("share of the whole way")
    labels = ["distance to x(0), local", "distance to x(∞), global", "f(x(λ)) above f(x(0))", "ψ(x(λ)) of ψ(x(0))"]
    key(figure, labels, 4)
    save(figure, folder / "path.png")


def methods(folder, batch_size=5, most=3500):
    """L2SGD, L2SGD2 and L2SGD+ with the same p and α: noise floors, and none."""
    figure, places = canvas(2, 2, height=6.4)
    kinds = {"L2SGD": mixture.L2SGD, "L2SGD2": mixture.L2SGD2, "L2SGD+": mixture.L2SGDPlus}
    for column, (split, title) in enumerate(SPLITS.items()):
        functions = Logistic(breast_cancer(split), batch_size=batch_size)
        (best,) = functions.optima([LAM])
        theory = mixture.L2SGDPlus(lam=LAM).begin(functions, functions.constants)
        shared = {"lam": LAM, "p": theory.number("p"), "alpha": theory.number("alpha")}
        for index, (name, kind) in enumerate(kinds.items()):
            run = solve(kind(**shared), functions, best, until=1e-10, most=most, every=20)
            places[0, column].plot(run.communications, run.distances, **look(index))
            places[1, column].plot(run.epochs, run.distances, **look(index))
            last = np.median(run.distances[-50:]) if len(run.iterations) > most / 20 else run.distances[-1]
            print(f"{split:8} {name:7} p = {shared['p']:.3f}: {run.iterations[-1]:5} iterations,", end=" ")
            print(f"{run.communications[-1]:4} communications, distance {last:.1e} at the end")
        places[0, column].set_title(title, fontsize=10, loc="left")
        places[0, column].set_xlabel("communications")
        places[1, column].set_xlabel("passes over the data (gradients of terms / number of terms)")
    for axes in places.flat:
        axes.set_yscale("log")
        finish(axes)
    for axes in places[:, 0]:
        axes.set_ylabel("squared distance to x(λ), relative")
    key(figure, list(kinds), 3)
    save(figure, folder / "methods.png")


def coins(folder, batch_size=5, epsilon=1e-6):
    """L2SGD+ with coins of several p, each with the step size that theory gives for it."""
    functions = Logistic(breast_cancer("sorted"), batch_size=batch_size)
    (best,) = functions.optima([LAM])
    star = mixture.L2SGDPlus(lam=LAM).begin(functions, functions.constants).number("p")
    figure, ((left, right),) = canvas(2, height=4.2, sharey=False)
    shown, labels, found = [0.02, 0.05, star, 0.5, 0.9], [], []
    for p in sorted([*shown, 0.1, 0.3, 0.7]):
        solver = mixture.L2SGDPlus(lam=LAM, p=p)
        runs = [solve(solver, functions, best, until=epsilon / 10, most=100_000, seed=seed) for seed in range(3)]
        found.append((p, *np.mean([run.needed(epsilon) for run in runs], axis=0)))
        print(f"p = {p:.3f}: {found[-1][1]:6.0f} communications, {found[-1][2]:6.0f} passes over the data")
        if p in shown:
            left.plot(runs[0].communications, runs[0].distances, **look(len(labels)))
            labels.append(f"p* = {p:.2f}" if p == star else f"p = {p:g}")
    ps, *needs = zip(*found, strict=True)
    for index, (need, name) in enumerate(zip(needs, ("communications", "passes over the data"), strict=True)):
        right.plot(ps, need, color=(COLOURS[6], MUTED)[index], marker=MARKERS[index], lw=1.8, ms=5, label=name)
    right.axvline(star, **look(2) | {"lw": 1.2})
    right.legend(fontsize=9, loc="upper right", facecolor="white", framealpha=1, edgecolor="none")
    right.set(xscale="log", yscale="log", xlabel="p", ylabel=f"until the distance is {epsilon:g}, mean of 3 seeds")
    plain(right.xaxis, (1.0, 2.0, 5.0))
    plain(right.yaxis, (1.0, 2.0, 5.0))
    left.set(yscale="log", xlabel="communications", ylabel="squared distance to x(λ), relative")
    left.set_title("L2SGD+ on clients that differ, one seed", fontsize=10, loc="left")
    right.set_title("what it takes", fontsize=10, loc="left")
    for axes in (left, right):
        finish(axes)
    key(figure, labels, 5)
    save(figure, folder / "coins.png")


if __name__ == "__main__":
    torch.set_num_threads(1)
    commands = {"path": path, "methods": methods, "coins": coins, "bounds": bounds, "maml": maml}
    if len(sys.argv) < 2 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1]](Path(sys.argv[2] if len(sys.argv) > 2 else "docs/images/mixture"))
