"""Federated matrix factorisation on MovieLens latest-small: FedMAvg for several m, SFMF, and FedMAvg by submodels.

python examples/fedmavg.py DIR [OUT] [ROUNDS] [SEEDS]     (DIR holds ratings.csv or .parquet; without one: generated)

Prints a table and, if OUT is named, keeps the runs there (they are resumed) and draws two pictures: error against
rounds and against bytes for several m as in Wang et al. (ICASSP 2021), and submodels against the full method.
"""

import sys
from itertools import accumulate
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import fedsub as fs
from fedsub.study.report.drawing import COLOURS, MUTED, STYLES, finish

RANK = 8
SHARED = {"l2": 0.1, "projection": "ball:1"}
RANKING = fs.Ranking("movie", k=10, metrics=("precision", "recall", "ndcg"), liked=4, clients=100)


def ratings(folder):
    """A column movie and a column rating, for each user."""
    if folder is not None:
        return fs.datasets.load("movielens-latest-small", Path(folder)).drop("timestamp")
    draw = np.random.default_rng(0)
    tastes, films = draw.normal(size=(120, 3)), draw.normal(size=(300, 3))
    user, movie = np.nonzero(draw.random((120, 300)) < 0.15 / np.sqrt(np.arange(1, 301)) * 4)
    rating = 3.5 + 0.5 * (tastes[user] * films[movie]).sum(1) + 0.5 * draw.normal(size=len(user))
    data = {"user": user, "movie": movie, "rating": np.clip(rating, 0.5, 5).astype(np.float32)}
    return fs.Clients.from_arrays(data, "user", ids=["movie"], label="rating", binary_label=False, sizes={"movie": 300})


def baseline(train, test, shrink=5):
    """RMSE of the user's mean plus the item's mean deviation from it, held back by ``shrink`` ratings."""
    every = np.arange(train.samples)
    rows, user = train.gather(every, ("movie", "rating"), local=False), train.clients_of(every)
    mean = np.bincount(user, rows["rating"]) / np.bincount(user)
    count = np.bincount(rows["movie"], minlength=train.size("movie")) + shrink
    item = np.bincount(rows["movie"], rows["rating"] - mean[user], len(count)) / count
    place = {client: p for p, client in enumerate(train.client_ids.tolist())}
    who = np.array([place[c] for c in test.client_ids.tolist()])[test.clients_of(np.arange(test.samples))]
    held = test.gather(np.arange(test.samples), ("movie", "rating"), local=False)
    errors = [held["rating"] - mean[who], held["rating"] - mean[who] - item[held["movie"]]]
    return [float(np.sqrt((error**2).mean())) for error in errors]


def methods(clients):
    make = fs.methods.fedmavg
    sizes = sorted({min(m, clients) for m in (10, 50, 100)}) + [clients]
    found = {f"FedMAvg, m={m}": make(clients_per_round=m, **SHARED) for m in sizes}
    found["SFMF"] = fs.methods.sfmf(step=0.001, l2=15.0)
    for count, temper in ((sizes[-2], 0.0), (sizes[-2], 0.3), (sizes[-2], 1.0), (None, 0.3), (None, 0.5), (None, 1.0)):
        label = f"submodel, {'everybody' if count is None else f'm={count}'}, temper={temper:g}"
        found[label] = make(clients_per_round=count, submodel=True, temper=temper, **SHARED)
    return found, f"FedMAvg, m={sizes[-2]}"


def curves(results):
    """(rounds, RMSE, bytes sent by clients, all bytes), means over seeds."""
    rounds = results[0].series("test.rmse")[0]
    error = np.mean([r.series("test.rmse")[1] for r in results], 0)
    up = np.mean([list(accumulate(h["up"] for h in r.history)) for r in results], 0)
    both = np.mean([list(accumulate(h["up"] + h["down"] for h in r.history)) for r in results], 0)
    return np.array(rounds), error, up[rounds], both[rounds]


def table(found, reference):
    goal = curves(found[reference])[1].min()
    total = curves(found[reference])[3][curves(found[reference])[1].argmin()]
    print(f"\n{'method':<34} {'best':>7} {'round':>6} {'last':>7} {'up/round':>9} {'total':>9}   reaches {goal:.4f}")
    for label, results in found.items():
        rounds, error, up, both = curves(results)
        at = np.flatnonzero(error <= goal + 5e-5)  # to the four digits shown
        when = f"round {rounds[at[0]]}, {amount(both[at[0]])}, {both[at[0]] / total:.2%}" if len(at) else "never"
        last = up[-1] / rounds[-1]
        print(
            f"{label:<34} {error.min():7.4f} {rounds[error.argmin()]:6d} {error[-1]:7.4f} {amount(last):>9} "
            f"{amount(both[-1]):>9}   {when}"
        )


def ranks(found):
    print(
        "\nranking of unrated items at the end: precision, recall and NDCG of the first 10; recall by heat of the item"
    )
    for label, results in found.items():
        means = {k: np.mean([r.final["test"][k] for r in results]) for k in RANKING.names}
        groups = [d for r in results for d in r.final["test"]["ranking"]["deciles"]]
        hot = np.mean([d["recall@10"] for d in groups if d["group"] == 9])
        cold = [d for d in groups if d["group"] < 9]
        rest = sum(d["recall@10"] * d["positives"] for d in cold) / max(1, sum(d["positives"] for d in cold))
        print(
            f"{label:<34} "
            + "  ".join(f"{v:.4f}" for v in means.values())
            + f"   hottest tenth {hot:.4f}, others {rest:.4f}"
        )


def amount(count):
    return f"{count / 1e9:.3g} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"


def picture(found, lines, path, *, which, title):
    """Two panels: held-out error against rounds, and against bytes (2: sent by clients, 3: all)."""
    figure = Figure(figsize=(9.2, 4.2), layout="constrained", dpi=110)
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    for k, (label, floor) in enumerate(lines.items()):
        colour = MUTED if floor else COLOURS[k % len(COLOURS)]
        rounds, error, *traffic = curves(found[label])
        kind = {"color": colour, "linestyle": STYLES[k % len(STYLES)], "lw": 1.8, "label": label}
        left.plot(rounds, error, **kind)
        right.plot(traffic[which - 2][1:] / 1e9, error[1:], **kind)
    left.set_xlabel("rounds")
    left.set_ylabel("held-out RMSE (stars)")
    right.set_xlabel(
        ("GB sent by the clients" if which == 2 else "GB sent and received by the clients") + ", log scale"
    )
    right.set_xscale("log")
    low = min(curves(found[label])[1].min() for label in lines)
    left.set_ylim(low - 0.003, max(curves(found[label])[1][0] for label in lines) + 0.003)
    for axes in (left, right):
        finish(axes)
    left.set_title(title, fontsize=10, loc="left")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9, frameon=False, handlelength=3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    print(path)


def main(folder=None, out=None, rounds=400, seeds=1):
    folder = None if folder in (None, "-") else folder
    train, test = ratings(folder).split(0.8, seed=0)
    user, both = baseline(train, test)
    print(
        f"{len(train)} users, {train.size('movie')} movies, {train.samples} training ratings, {test.samples} held out"
    )
    print(f"held-out RMSE of the user's mean {user:.4f}, of user's and item's mean {both:.4f}")
    chosen, reference = methods(len(train))
    keep = None if out is None else Path(out) / "runs"
    done = fs.compare(
        chosen,
        lambda seed: fs.models.make_objective(train, "factorisation", rank=RANK, seed=seed),
        train,
        test=test,
        rounds=rounds,
        seeds=seeds,
        out=keep,
        resume=keep is not None,
        evaluate=fs.Evaluate(every=max(1, rounds // 40), samples={"train": 5000}, ranking=RANKING),
    )
    table(done.results, reference)
    ranks(done.results)
    if out is not None:
        full = {label: label == "SFMF" for label in chosen if not label.startswith("submodel")}
        title = f"FedMAvg and SFMF, rank {RANK}, {len(train)} users"
        picture(done.results, full, Path(out) / "fedmavg.png", which=2, title=title)
        parts = {reference: True} | {label: False for label in chosen if label.startswith("submodel")}
        picture(done.results, parts, Path(out) / "submodels.png", which=3, title="FedMAvg in full and by submodels")


if __name__ == "__main__":
    given = sys.argv[1:]
    main(*given[:2], *map(int, given[2:4]))
