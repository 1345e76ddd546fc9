"""The mixture of global and local models on logistic regression: the pictures and tables of docs/mixture.md.

python examples/mixture.py path|methods|coins|bounds|maml [DIRECTORY]

Needs scikit-learn (pip install -e '.[sklearn]') for its breast cancer data: 569 samples, 30 features and a bias, cut
into 20 clients, sorted by label (clients differ) or at random (clients are alike). Everything is in float64, so that
rounding does not limit what is measured.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from PIL import Image

import fedsub as fs
from fedsub import data
from fedsub.families import mixture
from fedsub.families.mixture.constants import communications_bound
from fedsub.families.mixture.functions import minus, root_mean_square
from fedsub.families.mixture.linear import objective_constants
from fedsub.families.mixture.method import Mixture
from fedsub.families.mixture.modules import ModuleFunctions
from fedsub.families.mixture.path import spread_of, value_of
from fedsub.method.training import Options
from fedsub.objective.problem import Problem
from fedsub.study.report.drawing import COLOURS, MARKERS, MUTED, STYLES, finish

L2, LAM = 0.01, 0.1
SPLITS = {"sorted": "clients differ (sorted by label)", "uniform": "clients are alike (at random)"}


# %% The problem


def breast_cancer(split):
    return data.bundled("breast-cancer", clients=20, split=split, scaling="standard-unit")


class Gradients(ModuleFunctions):
    """The functions of a module ("linear" in float64), and their x(λ) by Newton's method."""

    def __init__(self, clients, l2=L2, kappa=None, batch_size=None):
        objective = fs.models.make_objective(clients, "linear", bias=True, l2=l2)
        objective.module.double()
        if kappa is not None:  # L = L₀ + l2 and μ = l2, so L/μ = kappa for l2 = L₀/(kappa−1)
            smooth = objective_constants(objective, clients).together.L - l2
            objective = replace(objective, l2=smooth / (kappa - 1))
        problem = Problem.bind(objective, clients)
        made = Mixture(solver=mixture.APGD2(lam=1.0), batch_size=batch_size)
        like, _, _ = made.functions(problem, problem.params(), Options(engine="batched"))
        super().__init__(problem, like.params, like.plan, batch_size=batch_size)
        self.constants, _ = made.constants(self)
        a = np.concatenate([clients.columns["features"].values, np.ones((clients.samples, 1))], axis=1)
        sizes, labels = clients.sizes, clients.columns["label"].values
        self.a = torch.zeros(len(sizes), int(sizes.max()), a.shape[1], dtype=torch.float64)  # [n, m, d], padded
        self.y, self.w = torch.zeros(2, *self.a.shape[:2], dtype=torch.float64)
        for i, (low, size) in enumerate(zip(clients.offsets[:-1], sizes, strict=True)):
            self.a[i, :size] = torch.from_numpy(a[low : low + size])
            self.y[i, :size] = torch.from_numpy(labels[low : low + size])
            self.w[i, :size] = 1 / size

    def optima(self, lams):
        """x(λ) for every λ: the path roughly, then Newton's method on all clients at once."""
        near = mixture.trace_path(self, lams, self.constants, tolerance=1e-3, most=50_000)
        return [self.polished(point.x, point.lam) for point in near]

    def polished(self, x, lam):
        """The Newton step d solves H_i d_i + λ(d_i − d̄) = −(∇f_i + λ(x_i − x̄)); d̄ by elimination of the d_i."""
        z = torch.cat([x["weight"], x["bias"].unsqueeze(1)], dim=1)
        one = torch.eye(z.shape[1], dtype=z.dtype)
        for _ in range(25):
            p = torch.sigmoid(torch.einsum("nmd,nd->nm", self.a, z))
            slope = torch.einsum("nmd,nm->nd", self.a, self.w * (p - self.y)) + self.l2 * z + lam * (z - z.mean(0))
            hessian = torch.einsum("nmd,nm,nme->nde", self.a, self.w * p * (1 - p), self.a) + self.l2 * one
            inverse = torch.linalg.inv(hessian + lam * one)
            alone = -torch.einsum("nde,ne->nd", inverse, slope)
            mean = torch.linalg.solve((inverse @ hessian).mean(0), alone.mean(0))  # I − λ(H+λ)⁻¹ = (H+λ)⁻¹H
            z = z + alone + lam * torch.einsum("nde,e->nd", inverse, mean)
        return {"weight": z[:, :-1].clone(), "bias": z[:, -1].clone()}


class Logistic(Gradients):
    """The same with an exact prox, for APGD1."""

    last = None

    def prox(self, centre, lam):
        """argmin_z f_i(z) + (λ/2)‖z − c_i‖² of every client, by Newton steps that are halved until they help."""
        c = torch.cat([centre["weight"], centre["bias"].unsqueeze(1)], dim=1)
        one = torch.eye(c.shape[1], dtype=c.dtype)

        def slope(z):
            p = torch.sigmoid(torch.einsum("nmd,nd->nm", self.a, z))
            g = torch.einsum("nmd,nm->nd", self.a, self.w * (p - self.y)) + self.l2 * z + lam * (z - c)
            return p, g, g.norm(dim=1)

        z = torch.zeros_like(c) if self.last is None else self.last
        p, gradient, size = slope(z)
        for _ in range(100):
            if size.max() < 1e-12:
                break
            hessian = torch.einsum("nmd,nm,nme->nde", self.a, self.w * p * (1 - p), self.a) + (self.l2 + lam) * one
            step = torch.linalg.solve(hessian, gradient)
            for _ in range(30):
                p, gradient, now = slope(z - step)
                worse = now > size
                if not worse.any():
                    break
                step[worse] /= 2
            z, before, size = z - step, size, now
            if size.max() < 1e-9 and size.max() > before.max() / 2:  # rounding
                break
        self.last = z
        return {"weight": z[:, :-1].clone(), "bias": z[:, -1].clone()}


@dataclass
class Run:
    """The course of a method: the distance is Σ‖x_i − x_i(λ)‖² / Σ‖x_i⁰ − x_i(λ)‖², the gap the same of F − F(x(λ))."""

    iterations: list
    communications: list
    epochs: list  # gradients of terms, over the number of terms
    distances: list
    gaps: list

    def needed(self, epsilon, what="distances"):
        """Communications and epochs until the distance (or gap) is at most epsilon; infinity if it never was."""
        found = zip(getattr(self, what), self.communications, self.epochs, strict=True)
        return next(((c, e) for d, c, e in found if d <= epsilon), (np.inf, np.inf))


def solve(solver, functions, best, *, until, most, every=None, gaps=False, seed=0, communications=np.inf):
    """Until the distance is ``until``, or for ``most`` iterations or ``communications``; looked at in each of these,
    or ``every`` so many iterations."""
    state = solver.begin(functions, functions.constants)
    least = F(functions, best, solver.lam) if gaps else np.nan

    def distance():
        return root_mean_square(functions, minus(state.x, best)) ** 2

    def gap():
        return F(functions, state.x, solver.lam) - least if gaps else np.nan

    first, top = distance(), gap()
    run = Run([0], [0], [0.0], [1.0], [1.0])
    for number in range(1, most + 1):
        step = solver.step(state, functions, number, seed)
        if step.communicated if every is None else number % every == 0:
            run.iterations.append(number)
            run.communications.append(int(state.numbers["communications"]))
            run.epochs.append(int(state.numbers["gradients"]) / int(functions.terms.sum()))
            run.distances.append(distance() / first)
            run.gaps.append(gap() / top)
            near = max(run.distances[-1], np.nan_to_num(run.gaps[-1])) <= until
            if near or run.communications[-1] >= communications:
                break
    return run


def F(functions, x, lam):
    return value_of(functions, x) + lam * spread_of(functions, x)


# %% Pictures


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


# %% Communications against the lower bound

EPSILONS = (1e-6, 1e-10)
EXACT = {"APGD1": mixture.APGD1, "APGD2": mixture.APGD2}
OTHERS = {"IAPGD": mixture.IAPGD, "AL2SGD+": mixture.AL2SGDPlus, "L2GD+": mixture.L2GDPlus}


def multiples(functions, shares, kinds, most=60_000, gaps=False):
    """Communications, and what multiple of √(min{L,λ}/μ) log(1/ε) they are, by (method, ε, what is ε, λ/L)."""
    c, found = functions.constants, {}
    for share, best in zip(shares, functions.optima([share * c.L for share in shares]), strict=True):
        for name, kind in kinds.items():
            lam = share * c.L
            run = solve(kind(lam=lam), functions, best, until=min(EPSILONS), most=most, gaps=gaps)
            for epsilon in EPSILONS:
                for what in ("distances", "gaps")[: 1 + gaps]:
                    need = run.needed(epsilon, what)[0]
                    found[name, epsilon, what, share] = need, need / communications_bound(c.L, c.mu, lam, epsilon)
    return found


def better(found, epsilon, what, share):
    """The better of APGD1 and APGD2: its multiple, communications and name."""
    return min((*found[name, epsilon, what, share][::-1], name) for name in EXACT)


def bounds(folder):
    """Communications to reach ε as a multiple of the lower bound, for λ from L/1000 to 10 L."""
    fine, coarse = np.geomspace(1e-3, 10, 9), np.geomspace(1e-3, 10, 5)
    figure, ((left, right),) = canvas(2, height=4.6)
    problems = {"breast cancer, κ = 10²": Logistic(breast_cancer("sorted"), kappa=1e2, batch_size=5)}
    for power, sign in ((2, "²"), (3, "³"), (4, "⁴")):
        made = data.generate_logistic(clients=20)
        problems[f"generated, κ = 10{sign}"] = Logistic(made, kappa=10.0**power)
    worst = 0.0
    for index, (name, functions) in enumerate(problems.items()):
        found = multiples(functions, fine, EXACT, gaps=True)
        if not index:
            several = found | multiples(functions, coarse, OTHERS)
        best = [better(found, EPSILONS[1], "distances", share) for share in fine]
        right.plot(fine, [q[0] for q in best], marker=MARKERS[index], ms=4, label=name, **look(index))
        print(f"\n{name}; lambda/L | " + " | ".join(f"{share:.3g}" for share in fine))
        for what in ("distances", "gaps"):
            for epsilon in EPSILONS:
                row = [better(found, epsilon, what, share) for share in fine]
                worst = max(worst, *(q[0] for q in row))
                print(
                    f"{what} {epsilon:g} | " + " | ".join(f"{q[0]:.2f} ({q[1]}, {q[2][-1]})" for q in row), flush=True
                )
    print(f"\nthe better one needs at most {worst:.2f} times the bound")
    for index, name in enumerate(EXACT | OTHERS):
        shares = [share for share in fine if (name, EPSILONS[0], "distances", share) in several]
        row = [several[name, EPSILONS[0], "distances", share] for share in shares]
        left.plot(shares, [q[1] for q in row], marker=MARKERS[index], ms=4, label=name, **look(index))
        for epsilon in EPSILONS:
            row = [several[name, epsilon, "distances", share] for share in coarse]
            print(f"{name} {epsilon:g} | " + " | ".join(f"{multiple:.2f} ({need})" for need, multiple in row))
    for axes, title in (
        (left, "breast cancer, κ = 10², ε = 1e-6"),
        (right, "the better of APGD1 and APGD2, ε = 1e-10"),
    ):
        axes.axhline(3, color=MUTED, lw=1, ls=":")
        axes.set(xscale="log", yscale="log", xlabel="λ / L")
        axes.set_title(title, fontsize=10, loc="left")
        plain(axes.yaxis, (1.0, 3.0))
        finish(axes)
        axes.legend(fontsize=8.5, loc="upper center", ncols=2, facecolor="white", framealpha=1, edgecolor="none")
    left.set_ylabel("communications / lower bound")
    save(figure, folder / "bounds.png")


# %% MAML


def maml_point(functions, alpha, start):
    """The z at which Σ f_i(z − α∇f_i(z)) is least, near ``start`` [d], by Newton's method."""
    a, y, w, l2 = functions.a, functions.y, functions.w, functions.l2

    def gradients(z):  # ∇f_i(z_i), [n, d]
        return torch.einsum("nmd,nm->nd", a, w * (torch.sigmoid(torch.einsum("nmd,nd->nm", a, z)) - y)) + l2 * z

    def total(z):
        x = z.expand(len(a), -1)
        x = x - alpha * gradients(x)
        logits = torch.einsum("nmd,nd->nm", a, x)
        return (w * (torch.nn.functional.softplus(logits) - y * logits)).sum() + l2 / 2 * (x * x).sum()

    z = start.clone()
    for _ in range(12):
        slope = torch.autograd.functional.jacobian(total, z)
        z = z - torch.linalg.solve(torch.autograd.functional.hessian(total, z), slope)
    return z


def maml(folder):
    """The mixture's models beside MAML's, from the same shared point and from MAML's own."""
    functions = Logistic(breast_cancer("sorted"))
    L = functions.constants.L
    lams = [L * 2**k for k in range(2, 9)]
    print("lambda/L | gap, same shared point | ratio | shared points apart | ratio")
    before = (np.nan, np.nan)
    for lam, x in zip(lams, functions.optima(lams), strict=True):
        mean = functions.mean(x)
        shared = torch.cat([mean["weight"][0], mean["bias"][:1]])
        gap = mixture.maml_gap(functions, x, lam)
        apart = float((maml_point(functions, 1 / lam, shared) - shared).norm())
        print(f"{lam / L:g} | {gap:.3e} | {before[0] / gap:.2f} | {apart:.3e} | {before[1] / apart:.2f}")
        before = gap, apart


if __name__ == "__main__":
    torch.set_num_threads(1)
    commands = {"path": path, "methods": methods, "coins": coins, "bounds": bounds, "maml": maml}
    if len(sys.argv) < 2 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1]](Path(sys.argv[2] if len(sys.argv) > 2 else "docs/images/mixture"))
