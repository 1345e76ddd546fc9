"""Proxes of the local functions, of all clients at once, by accelerated gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from fedsub.families.mixture.constants import Constants, inner_condition, momentum
from fedsub.families.mixture.functions import Functions, norms
from fedsub.trees import Tree


@dataclass(frozen=True)
class Solved:
    """Where local solves ended, what they cost, and the mean loss where they began."""

    x: Tree
    loss: float
    gradients: int  # of terms, over all clients


def local_prox(
    functions: Functions,
    constants: Constants,
    centre: Tree,
    lam: float,
    start: Tree,
    *,
    tolerance: float = 0.0,
    most: int | None = None,
) -> Solved:
    """argmin_z f_i(z) + (λ/2) ‖z − c_i‖² of every client, by Nesterov's method with κ = (L+λ)/(μ+λ).

    ``lam`` 0 gives the local minimisers. A client stops when the norm of its gradient is at most ``tolerance``, or
    as small as rounding lets it be; the others go on. ``most`` bounds the steps; by default there are enough for
    the theory to promise an error of the size of rounding.
    """
    smoothness, dtype = constants.L + lam, next(iter(start.values())).dtype
    rounding = float(torch.finfo(dtype).eps)
    kappa = inner_condition(constants.L, constants.strongly_convex("A local prox"), lam)
    beta = momentum(kappa, 1.0)
    most = math.ceil(2 * math.sqrt(kappa) * math.log(kappa / rounding)) + 10 if most is None else most

    z, y = start, {name: leaf.clone() for name, leaf in start.items()}
    active, loss, gradients = np.ones(functions.clients, bool), math.nan, 0
    for step in range(most):
        losses, gradient = functions.gradient(y)
        if step == 0:
            loss = float(np.mean(losses))
        gradients += int(functions.terms[active].sum())
        for name, leaf in gradient.items():
            leaf.add_(y[name], alpha=lam).sub_(centre[name], alpha=lam)
        still = norms(functions, gradient) > np.maximum(tolerance, 4 * rounding * smoothness * norms(functions, y))
        moving = None if active.all() else functions.spread(active)
        active &= still
        keeping = None if active.all() else functions.spread(active)
        for name, leaf in gradient.items():
            if moving is not None:
                leaf.mul_(moving[name])
            new = torch.sub(y[name], leaf, alpha=1 / smoothness)
            ahead = torch.sub(new, z[name], out=leaf)
            if keeping is not None:
                ahead.mul_(keeping[name])
            y[name] = torch.add(new, ahead, alpha=beta, out=y[name])
            gradient[name] = new
        z = gradient
        if not active.any():
            break
    return Solved(z, loss, gradients)
