"""Clustering with FedMAvg: no client has more than one or two of five clusters, and all of them are found.

python examples/clusters.py [PICTURE]
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedsub.families.factorisation import FedMAvg, factorise
from fedsub.families.factorisation.clusters import accuracy, assigned, gaussian_clusters, spread_start
from fedsub.study.report.drawing import COLOURS, INK, MARKERS, MUTED, STYLES, finish

CLUSTERS, ROUNDS = 5, 40
CASES = [(1, "one-hot", 5), (2, "one-hot", 5), (None, "one-hot", 5), (1, "one-hot", None), (1, "simplex", 5)]


def trained(per_client, projection, count):
    data = gaussian_clusters(30, 40, clusters=CLUSTERS, per_client=per_client, spread=0.8, seed=0)
    truth = np.concatenate(data.labels)

    def watch(w, h):
        return {"accuracy": accuracy(truth, np.concatenate([assigned(own) for own in h]))}

    method = FedMAvg(clients_per_round=count, projection=projection, q1=10, q2_hat=3)
    start = spread_start(data.blocks, CLUSTERS, near=2)
    return data, factorise(data.blocks, CLUSTERS, rounds=ROUNDS, method=method, start=start, watch=watch)


def main(path=None):
    done = []
    for per_client, projection, count in CASES:
        who = "all 30 clients" if count is None else f"m={count} of 30"
        has = "all clusters each" if per_client is None else f"{per_client} cluster{'s' * (per_client > 1)} each"
        data, found = trained(per_client, projection, count)
        done.append((f"{projection}, {who}, {has}", data, found))
        last = found.history[-1]
        print(f"{done[-1][0]:<45} accuracy {last['accuracy']:.3f}  objective {last['objective']:.3f}")
    if path is not None:
        draw(done, Path(path))


def draw(done, path):
    figure = Figure(figsize=(9.2, 4.2), layout="constrained", dpi=110)
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for k, (label, _, found) in enumerate(done):
        rounds, values = zip(*[(r["round"], r["accuracy"]) for r in found.history[1:]], strict=True)
        left.plot(rounds, values, label=label, color=COLOURS[k], linestyle=STYLES[k], lw=1.8)
    _, data, found = done[0]
    points, truth = np.concatenate(data.blocks, 1), np.concatenate(data.labels)
    nearest = ((points[:, None] - data.centres[:, :, None]) ** 2).sum(0).argmin(0)
    best = float((nearest == truth).mean())
    left.axhline(best, color=MUTED, lw=1.2, linestyle="-", label="nearest true centre (1 cluster each)")
    left.set_xlabel("rounds")
    left.set_ylabel("points in their cluster (best naming)")
    left.set_title("Gaussian clusters, spread unevenly over 30 clients", fontsize=10, loc="left")
    mean = points.mean(1, keepdims=True)
    axes2 = np.linalg.svd(points - mean, full_matrices=False)[0][:, :2]
    flat, cluster = axes2.T @ (points - mean), np.concatenate([assigned(h) for h in found.h])
    for k in range(CLUSTERS):
        right.scatter(*flat[:, cluster == k], s=9, color=COLOURS[k], marker=MARKERS[k], alpha=0.6, linewidths=0)
    right.scatter(*(axes2.T @ (found.w - mean)), s=90, marker="X", color=INK, label="columns of W")
    right.scatter(
        *(axes2.T @ (data.centres - mean)),
        s=120,
        marker="o",
        facecolors="none",
        edgecolors=MUTED,
        lw=1.5,
        label="true centres",
    )
    right.set_xlabel("first principal direction")
    right.set_ylabel("second principal direction")
    right.set_title("one-hot, m=5, 1 cluster each: what was found", fontsize=10, loc="left")
    for axes in (left, right):
        finish(axes)
    handles, labels = left.get_legend_handles_labels()
    more = right.get_legend_handles_labels()
    figure.legend(
        handles + more[0],
        labels + more[1],
        loc="outside lower center",
        ncols=3,
        fontsize=8.5,
        frameon=False,
        handlelength=3,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    print(path)


if __name__ == "__main__":
    main(*sys.argv[1:2])
