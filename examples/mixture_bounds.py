"""Communications against the lower bound: `python examples/mixture.py bounds`."""

import numpy as np
from mixture_canvas import canvas, look, plain, save
from mixture_problem import Logistic, breast_cancer, solve

from fedsub import data
from fedsub.families import mixture
from fedsub.families.mixture.constants import communications_bound
from fedsub.study.report.drawing import MARKERS, MUTED, finish

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
