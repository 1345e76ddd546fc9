"""The mixture beside MAML: `python examples/mixture.py maml`."""

import numpy as np
import torch
from mixture_problem import Logistic, breast_cancer

from fedsub.families import mixture


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
