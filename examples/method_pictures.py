"""The small plots of docs/methods: each method beside FedAvg (grey) and FedSubAvg, on generated data.

Two tasks. *Films*: logistic regression on MovieLens-like data at one twentieth of its size, where heat matters.
*Tastes*: forty clients who value thirty things differently, in different numbers of samples, where drift matters;
its best possible loss is known, and the plots show the distance to it. *Stars*: ratings by 200 users with tastes of
their own, for matrix factorisation. The mixture's methods are shown by their distance to the personal models x(λ)
that they look for, on the breast cancer data of examples/mixture.py. One seed: pictures, not evidence.

python examples/method_pictures.py [DIRECTORY] [NAME ...]
"""

import sys
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from mixture import L2, LAM, Gradients, Logistic, breast_cancer, solve
from PIL import Image
from torch import nn

import fedsub as fs
from fedsub.families import mixture as mx
from fedsub.study.report.drawing import COLOURS, MUTED, STYLES, finish

FILMS = {"lr": 0.3, "clients_per_round": 20}
STEPS = {"lr": 0.3, "local_steps": 20, "batch_size": None, "clients_per_round": 20}
EPOCHS = {"lr": 0.05, "local_epochs": 4, "batch_size": 5, "clients_per_round": None}
ROUNDS, EVERY = 100, 5


@dataclass
class Line:
    label: str
    method: fs.Method


@dataclass
class Picture:
    title: str
    lines: list[Line]
    task: str = "films"
    against: str = "rounds"  # or "up": bytes sent by clients
    traffic: bool = False  # whether the key tells the bytes, relative to FedAvg's
    plain: dict | None = None  # settings of the FedAvg and FedSubAvg beside it


@dataclass
class Mixed:
    """Solvers of the mixture, or what makes them of the functions; the page's own first."""

    title: str
    lines: dict
    lam: float = LAM
    against: str = "communications"  # or "epochs": passes over the data
    upto: int = 150  # on that axis
    exact: bool = True  # whether there is an exact prox
    l2: float = L2


class Value(nn.Module):
    """One number for each thing."""

    def __init__(self, things):
        super().__init__()
        self.things = nn.Embedding(things, 1)
        nn.init.zeros_(self.things.weight)

    def forward(self, batch):
        return self.things(batch["thing"]).squeeze(-1)


@cache
def films():
    clients = fs.movielens_like(scale=0.05)
    train, _ = clients.split(0.8, seed=0)
    return train, fs.models.make_objective(train), "train.ce", 0.0


@cache
def tastes(clients=40, things=30):
    draw = np.random.default_rng(0)
    sizes = np.clip(draw.lognormal(3.0, 1.0, clients).astype(int), 4, 200)
    owner = np.repeat(np.arange(clients), sizes)
    habits = draw.dirichlet(np.full(things, 0.15), clients)
    thing = np.concatenate([draw.choice(things, n, p=p) for n, p in zip(sizes, habits, strict=True)])
    value = draw.normal(size=things)[thing] + draw.normal(size=(clients, things))[owner, thing]
    value = (value + 0.8 * np.log(sizes / sizes.mean())[owner]).astype(np.float32)  # busy clients are another kind
    data = {"client": owner, "thing": thing, "value": value}
    train = fs.Clients.from_arrays(data, client="client", ids=["thing"], label="value", binary_label=False)
    objective = fs.Objective(Value(train.size("thing")), fs.losses.squared("value"), tables={"things.weight": "thing"})
    mean = np.bincount(thing, value, things) / np.maximum(np.bincount(thing, minlength=things), 1)
    best = 0.5 * float(((value - mean[thing]) ** 2).mean())  # the loss is half the square
    return train, objective, "train.loss", best


@cache
def stars(users=200, films=400):
    draw = np.random.default_rng(0)
    tastes, kinds = draw.normal(size=(users, 3)), draw.normal(size=(films, 3))
    user, film = np.nonzero(draw.random((users, films)) < 0.9 / np.sqrt(np.arange(1, films + 1)))
    value = 3.5 + 0.5 * (tastes[user] * kinds[film]).sum(1) + 0.3 * draw.normal(size=len(user))
    data = {"user": user, "film": film, "rating": value.astype(np.float32)}
    train = fs.Clients.from_arrays(data, client="user", ids=["film"], label="rating", binary_label=False)
    return train, fs.models.make_objective(train, "factorisation", rank=4), "train.rmse", 0.0


RUNS: dict = {}


def trained(task, method):
    """The history of a run; methods that occur in several pictures are trained once."""
    key = task, repr(method)
    if key not in RUNS:
        train, objective, metric, best = {"films": films, "tastes": tastes, "stars": stars}[task]()
        evaluate = fs.Evaluate(every=EVERY if task == "films" else 2, samples=5000)
        engine = "batched" if isinstance(method, fs.Method) else "auto"  # factorisation has a solver of its own
        result = fs.run(method, objective, train, rounds=ROUNDS, evaluate=evaluate, engine=engine, seed=0)
        rounds, losses = result.series(metric)
        up = [0, *accumulate(r["up"] for r in result.history if r["round"] > 0)]
        total = sum(r["up"] + r["down"] for r in result.history)
        RUNS[key] = rounds, [loss - best for loss in losses], [up[r] / 1e6 for r in rounds], total
    return RUNS[key]


@cache
def personal(lam, exact, l2):
    """The clients' functions, in batches of 5, and x(λ)."""
    functions = (Logistic if exact else Gradients)(breast_cancer("sorted"), l2, batch_size=5)
    if np.isinf(lam):
        (end,) = mx.trace_path(functions, [lam], functions.constants, tolerance=1e-12)
        return functions, end.x
    return functions, functions.optima([lam])[0]


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


def draw(picture, path):
    plain = picture.plain or {"films": FILMS, "tastes": STEPS, "stars": FILMS}[picture.task]
    lines = list(picture.lines)
    shown = {line.label for line in lines}
    beside = {"FedAvg": fs.methods.fedavg(**plain), "FedSubAvg": fs.methods.fedsubavg(**plain)}
    lines += [Line(label, method) for label, method in beside.items() if label not in shown]
    base = trained(picture.task, beside["FedAvg"])[3]
    figure, axes = sheet()
    others = iter([(COLOURS[0], "-"), (COLOURS[2], "-."), (COLOURS[3], ":"), (COLOURS[5], STYLES[4])])
    for line in lines:
        rounds, losses, up, total = trained(picture.task, line.method)
        colour, dashes = {"FedAvg": (MUTED, "-"), "FedSubAvg": (COLOURS[1], "--")}.get(line.label) or next(others)
        label = line.label
        if picture.traffic and label not in ("FedAvg", "FedSubAvg"):
            ratio = total / base
            label += f"  ({ratio:.0f}× the bytes)" if ratio >= 10 else f"  ({ratio:.2g}× the bytes)"
        x = up if picture.against == "up" else rounds
        start = 1 if picture.against == "up" else 0  # a log axis has no 0
        front = 2 if line.label in beside else 3
        axes.plot(x[start:], losses[start:], color=colour, linestyle=dashes, lw=1.8, label=label, zorder=front)
    if picture.against == "up":
        axes.set_xscale("log")
        plain_numbers(axes.xaxis, (1.0, 3.0))
        axes.set_xlabel("MB sent by the clients, all together")
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


def plain_numbers(axis, subs):
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def pictures():
    m, f, s, e = fs.methods, FILMS, STEPS, EPOCHS
    some = "lr 0.3, 10 steps, 20 of 302 clients"
    return {
        "fedavg": Picture(f"FedAvg: {some}", [Line("FedAvg, 1 local step", m.fedavg(**{**f, "local_steps": 1}))]),
        "fedsubavg": Picture(
            f"FedSubAvg: {some}",
            [
                Line("FedSubAvg, temper=0.5", m.fedsubavg(**f, temper=0.5)),
                Line("FedSubAvg, max_coef=5", m.fedsubavg(**f, max_coef=5)),
            ],
        ),
        "fedprox": Picture(
            "Drift: 4 local epochs, lr 0.05, all of 40 clients",
            [Line("FedProx, mu=0.01", m.fedprox(**e)), Line("FedProx, mu=0.3", m.fedprox(**e, mu=0.3))],
            "tastes",
            plain=e,
        ),
        "fedsgd": Picture(
            "FedSGD: one step on all local data, 20 of 302 clients",
            [Line("FedSGD, lr=0.3", m.fedsgd(**f)), Line("FedSGD, lr=3", m.fedsgd(lr=3.0, clients_per_round=20))],
        ),
        "local_sgd": Picture(
            "Local SGD: lr 0.3, H=10; the others 20 of 302 clients",
            [Line("Local SGD, all 302", m.local_sgd(lr=0.3))],
            traffic=True,
        ),
        "centralsgd": Picture(
            "CentralSGD: batches of 20·5 samples, 10 a round",
            [
                Line("CentralSGD, lr=0.3", m.centralsgd(**f)),
                Line("CentralSGD, lr=3", m.centralsgd(lr=3.0, clients_per_round=20)),
            ],
        ),
        "sampled_heat": Picture(f"Sampled heat: {some}", [Line("sampled heat", m.sampled_heat(**f))]),
        "scaffold": Picture(
            "Drift: 20 full-batch steps, lr 0.3, 20 of 40 clients",
            [
                Line("Scaffold", m.scaffold(**s)),
                Line("FedSubAvg + control variates", m.fedsubavg(**s, variates="II")),
            ],
            "tastes",
            traffic=True,
        ),
        "scaffold_server": Picture(
            "Drift: 20 full-batch steps, lr 0.3, 20 of 40 clients",
            [Line("Scaffold (server), ours", m.scaffold_server(**s)), Line("Scaffold", m.scaffold(**s))],
            "tastes",
        ),
        "fednova": Picture(
            "Unequal steps: 4 local epochs, lr 0.05, all of 40 clients",
            [
                Line("FedNova", m.fednova(**e)),
                Line("FedSubAvg + normalised steps", m.fedsubavg(**e, normalise=True)),
            ],
            "tastes",
            plain=e,
        ),
        "fedavgm": Picture(
            f"FedAvgM: {some}",
            [
                Line("FedAvgM, momentum 0.9", m.fedavgm(**f)),
                Line("FedAvgM, 0.9, server_lr=0.1", m.fedavgm(**f, server_lr=0.1)),
            ],
        ),
        "fedadam": Picture(
            f"FedAdam: server_lr 0.01; {some}",
            [
                Line("FedAdam, τ=1e-3", m.fedadam(**f)),
                Line("FedAdam, τ=1e-5", m.fedadam(**f, tau=1e-5)),
                Line("FedAdam, τ=0.1", m.fedadam(**f, tau=0.1)),
            ],
        ),
        "fedyogi": Picture(
            f"FedYogi: server_lr 0.01; {some}",
            [Line("FedYogi, τ=1e-3", m.fedyogi(**f)), Line("FedAdam, τ=1e-3", m.fedadam(**f))],
        ),
        "fedadagrad": Picture(
            f"FedAdagrad: {some}",
            [
                Line("FedAdagrad, server_lr=0.1", m.fedadagrad(**f)),
                Line("FedAdagrad, server_lr=0.01", m.fedadagrad(**f, server_lr=0.01)),
            ],
        ),
        "frequency_aware": Picture(
            f"Frequency-aware: {some}",
            [
                Line("frequency-aware, server_lr=1", m.frequency_aware(**f)),
                Line("frequency-aware, server_lr=10", m.frequency_aware(**f, server_lr=10.0)),
            ],
        ),
        "signsgd": Picture(
            "SignSGD: 1 local step; the others 10; 20 of 302 clients",
            [
                Line("SignSGD, server_lr=0.001", m.signsgd(**f)),
                Line("SignSGD, server_lr=0.01", m.signsgd(**f, server_lr=0.01)),
            ],
            against="up",
        ),
        "ef_signsgd": Picture(
            f"EF-SignSGD: {some}",
            [
                Line("EF-SignSGD", m.ef_signsgd(**f)),
                Line("FedSubAvg, codec ef-sign", m.fedsubavg(**f, codec="ef-sign")),
            ],
            against="up",
        ),
        "power_of_choice": Picture(
            f"Power-of-choice, d=60: {some}",
            [
                Line("pow", m.power_of_choice(**f, candidates=60)),
                Line("rpow", m.power_of_choice(**f, candidates=60, variant="rpow")),
            ],
            traffic=True,
        ),
        "ucb_cs": Picture(f"UCB-CS, γ=0.7: {some}", [Line("UCB-CS", m.ucb_cs(**f))], traffic=True),
        "fedper": Picture(
            "FedPer: factorisation, 20 of 200 users, lr 0.3",
            [
                Line("FedPer, own user vector", m.fedper(**f, personal=["user", "offset"])),
                Line("FedSubAvg, own user vector", m.fedsubavg(**f, personal=["user", "offset"])),
            ],
            "stars",
        ),
        "fedsubadam": Picture(
            f"FedSubAvg + Adam: server_lr 0.01; {some}",
            [
                Line("FedSubAvg + Adam, τ=1e-3", m.fedsubadam(**f)),
                Line("FedAdam, τ=1e-3", m.fedadam(**f)),
                Line("FedSubAvg + Adam, τ=1e-5", m.fedsubadam(**f, tau=1e-5)),
                Line("FedAdam, τ=1e-5", m.fedadam(**f, tau=1e-5)),
            ],
        ),
        "fedsubadagrad": Picture(
            f"FedSubAvg + Adagrad: server_lr 0.1; {some}",
            [Line("FedSubAvg + Adagrad", m.fedsubadagrad(**f)), Line("FedAdagrad", m.fedadagrad(**f))],
        ),
        "fedmavg": Picture(
            "FedMAvg: rank 4, 20 of 200 users send",
            [
                Line("FedMAvg", m.fedmavg(clients_per_round=20)),
                Line("FedMAvg, submodel", m.fedmavg(clients_per_round=20, submodel=True)),
                Line("FedMAvg, submodel, temper=0.5", m.fedmavg(clients_per_round=20, submodel=True, temper=0.5)),
            ],
            "stars",
            traffic=True,
        ),
        "sfmf": Picture(
            "SFMF: rank 4, all 200 users send",
            [
                Line("SFMF, step 0.001", m.sfmf(l2=1.0)),
                Line("SFMF, step 0.003", m.sfmf(step=0.003, l2=1.0)),
                Line("FedMAvg, submodel, 20 users", m.fedmavg(clients_per_round=20, submodel=True)),
            ],
            "stars",
            traffic=True,
        ),
        "codecs": Picture(
            f"Codecs with FedSubAvg: {some}",
            [
                Line("ef-sign", m.fedsubavg(**f, codec="ef-sign")),
                Line("int8", m.fedsubavg(**f, codec="int8")),
                Line("topk:0.05", m.fedsubavg(**f, codec="topk:0.05")),
                Line("randomk:0.05", m.fedsubavg(**f, codec="randomk:0.05")),
            ],
            against="up",
        ),
        **mixed(),
    }


def mixed():
    """The ten methods of the mixture, for personal models of 20 clients."""
    few, many = 0.02, 4.0
    full, batches = "breast cancer, 20 clients, λ = 0.1", "breast cancer, 20 clients, batches of 5, λ = 0.1"

    def shorter(kind):  # a tenth of the step size, which depends on the functions
        return lambda f: kind(lam=LAM, alpha=kind(lam=LAM).begin(f, f.constants).number("alpha") / 10)

    return {
        "lgd": Mixed(
            "LGD: breast cancer, 20 clients, one model for all",
            {f"LGD, T = {t}": mx.LGD(local_steps=t) for t in (1, 5, 20)} | {"APGD2, λ = ∞": mx.APGD2(lam=np.inf)},
            lam=np.inf,
        ),
        "l2gd": Mixed(
            f"L2GD: {full}",
            {"L2GD": mx.L2GD(lam=LAM), "L2GD, a tenth of α": shorter(mx.L2GD), "L2GD+": mx.L2GDPlus(lam=LAM)},
        ),
        "l2gd_plus": Mixed(
            f"L2GD+: {full}",
            {"L2GD+": mx.L2GDPlus(lam=LAM), "L2GD": mx.L2GD(lam=LAM), "APGD1": mx.APGD1(lam=LAM)},
        ),
        "l2sgd": Mixed(
            f"L2SGD: {batches}",
            {"L2SGD": mx.L2SGD(lam=LAM), "L2SGD, a tenth of α": shorter(mx.L2SGD), "L2SGD+": mx.L2SGDPlus(lam=LAM)},
        ),
        "l2sgd2": Mixed(
            f"L2SGD2: {batches}",
            {"L2SGD2": mx.L2SGD2(lam=LAM), "L2SGD": mx.L2SGD(lam=LAM), "L2SGD+": mx.L2SGDPlus(lam=LAM)},
        ),
        "l2sgd_plus": Mixed(
            f"L2SGD+: {batches}",
            {"L2SGD+": mx.L2SGDPlus(lam=LAM), "L2SGD": mx.L2SGD(lam=LAM), "AL2SGD+": mx.AL2SGDPlus(lam=LAM)},
        ),
        "apgd1": Mixed(
            f"APGD1: breast cancer, 20 clients, λ = {few:g} = 0.05 L",
            {"APGD1": mx.APGD1(lam=few), "APGD2": mx.APGD2(lam=few), "L2GD+": mx.L2GDPlus(lam=few)},
            lam=few,
            upto=80,
        ),
        "apgd2": Mixed(
            f"APGD2: breast cancer, 20 clients, λ = {many:g} = 10 L",
            {"APGD2": mx.APGD2(lam=many), "APGD1": mx.APGD1(lam=many), "L2GD+": mx.L2GDPlus(lam=many)},
            lam=many,
        ),
        "iapgd": Mixed(
            f"IAPGD: {full}",
            {"IAPGD": mx.IAPGD(lam=LAM), "APGD1, prox to rounding": mx.APGD1(lam=LAM), "APGD2": mx.APGD2(lam=LAM)},
            against="epochs",
            upto=600,
            exact=False,
        ),
        "al2sgd_plus": Mixed(
            "AL2SGD+: breast cancer, batches of 5, λ = 0.1, l2 = 0.0001",
            {"AL2SGD+": mx.AL2SGDPlus(lam=LAM), "L2SGD+": mx.L2SGDPlus(lam=LAM), "APGD1": mx.APGD1(lam=LAM)},
            upto=1000,
            l2=1e-4,
        ),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images/methods")
    every = pictures()
    for name in sys.argv[2:] or every:
        drawn = every[name]
        (draw_mixed if isinstance(drawn, Mixed) else draw)(drawn, folder / f"{name}.png")
        print(folder / f"{name}.png", flush=True)
