"""The problem of examples/mixture.py: logistic regression on few clients, and the course of a solver on it."""

from dataclasses import dataclass, replace

import numpy as np
import torch

import fedsub as fs
from fedsub import data
from fedsub.families import mixture
from fedsub.families.mixture.functions import minus, root_mean_square
from fedsub.families.mixture.linear import objective_constants
from fedsub.families.mixture.method import Mixture
from fedsub.families.mixture.modules import ModuleFunctions
from fedsub.families.mixture.path import spread_of, value_of
from fedsub.method.training import Options
from fedsub.objective.problem import Problem

L2, LAM = 0.01, 0.1

SPLITS = {"sorted": "clients differ (sorted by label)", "uniform": "clients are alike (at random)"}


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
