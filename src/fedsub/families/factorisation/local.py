"""A client's local work: projected gradient steps on its own factor, gradient steps on its copy of the shared one.

    F_p(W, H) = (1/N_p) [ ‖X_p − W H‖² + λ Σ (‖w_i‖² + ‖h_j‖²) ]        norm and sum over the known entries (i, j)
    ∇_H = (2/N_p) [ Wᵀ(W H − X_p) + λ n_j h_j ]                          n_j, n_i: known entries of a column, a row
    ∇_W = (2/N_p) [ (W H − X_p) Hᵀ + λ n_i w_i ]

λ = 0 is the paper's problem. All functions take a stack of clients: W [c, s, k] and H [c, k, n].
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedsub.families.factorisation.projections import Projection
from fedsub.families.factorisation.stacks import Stack

FLOOR = 1e-12  # of Lipschitz constants, against factors that are zero


def residual(stack: Stack, w: Tensor, h: Tensor) -> Tensor:
    """W H − X on the known entries, 0 elsewhere; [c, s, n]."""
    error = (torch.bmm(w, h) - stack.x) * stack.weight[:, :, None]
    return error if stack.seen is None else error * stack.seen


def objective(stack: Stack, w: Tensor, h: Tensor, l2: float = 0.0) -> Tensor:
    """F_p of each client, [c]."""
    error = torch.bmm(w, h) - stack.x
    squares = residual(stack, w, h).mul_(error).sum((1, 2))
    if stack.constant is not None:
        squares = squares + stack.constant
    if l2:
        squares = squares + l2 * ((w * w).sum(2) * stack.per_row).sum(1)
        squares = squares + l2 * ((h * h).sum(1) * stack.per_column).sum(1)
    return squares / stack.columns


def gradient_h(stack: Stack, w: Tensor, h: Tensor, l2: float = 0.0) -> Tensor:
    gradient = torch.bmm(w.transpose(1, 2), residual(stack, w, h))
    if l2:
        gradient = gradient + l2 * h * stack.per_column[:, None, :]
    return gradient * _factor(stack)


def gradient_w(stack: Stack, w: Tensor, h: Tensor, l2: float = 0.0) -> Tensor:
    gradient = torch.bmm(residual(stack, w, h), h.transpose(1, 2))
    if l2:
        gradient = gradient + l2 * w * stack.per_row[:, :, None]
    return gradient * _factor(stack)


def lipschitz_h(stack: Stack, w: Tensor, l2: float = 0.0, gram: Tensor | None = None) -> Tensor:
    """L_H = (2/N_p) [λ_max(WᵀW) + λ max n_j] over the rows that a client holds, [c]."""
    gram = _gram(stack, w) if gram is None else gram
    largest = torch.linalg.eigvalsh(gram)[:, -1]
    if l2:
        largest = largest + l2 * stack.per_column.amax(1)
    return (2 * largest / stack.columns).clamp(min=FLOOR)


def lipschitz_w(stack: Stack, h: Tensor, l2: float = 0.0) -> Tensor:
    """L_W = (2/N_p) [λ_max(HHᵀ) · (largest weight of a row) + λ max n_i], [c]."""
    one = h.shape[2] == 1  # then λ_max is ‖h‖²
    largest = (h * h).sum((1, 2)) if one else torch.linalg.eigvalsh(torch.bmm(h, h.transpose(1, 2)))[:, -1]
    largest = largest * stack.weight.amax(1)
    if l2:
        largest = largest + l2 * stack.per_row.amax(1)
    return (2 * largest / stack.columns).clamp(min=FLOOR)


def h_steps(
    stack: Stack, w: Tensor, h: Tensor, *, steps: int, gamma1: float, project: Projection, l2: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Q1 times H ← P(H − ∇_H F_p / c_p) with c_p = (γ1/2) L_H; returns H and c_p [c].

    One-hot columns are set to the best ones at once: there are only k of them, and a gradient step is mostly too
    short to get from one to another.
    """
    gram = _gram(stack, w)
    rate = 0.5 * gamma1 * lipschitz_h(stack, w, l2, gram)
    real = (stack.per_column > 0)[:, None, :]  # padding stays 0, whatever the set
    if project.kind == "one-hot":
        return project(-_distances(stack, w), 1) * real, rate
    scale = _factor(stack) / rate[:, None, None]
    if stack.seen is None:  # all columns know the same rows, so W enters by WᵀW and WᵀX alone
        target = torch.bmm((w * stack.weight[:, :, None]).transpose(1, 2), stack.x)
        ridge = l2 * stack.per_column[:, None, :]
        for _ in range(steps):
            h = project(h - scale * (torch.bmm(gram, h) + ridge * h - target), 1) * real
        return h, rate
    for _ in range(steps):
        h = project(h - gradient_h(stack, w, h, l2) / rate[:, None, None], 1) * real
    return h, rate


def w_steps(stack: Stack, w: Tensor, h: Tensor, *, steps: int, d: float, l2: float = 0.0) -> Tensor:
    """Q2 times W ← W − ∇_W F_p / d, without projection."""
    for _ in range(steps):
        w = w - gradient_w(stack, w, h, l2) / d
    return w


def _distances(stack: Stack, w: Tensor) -> Tensor:
    """‖x − w_j‖² of every point and column of W over the known entries, without ‖x‖²; [c, k, n]."""
    mask = stack.weight[:, :, None] if stack.seen is None else stack.seen * stack.weight[:, :, None]
    return torch.bmm((w * w).transpose(1, 2), mask) - 2 * torch.bmm(w.transpose(1, 2), mask * stack.x)


def _gram(stack: Stack, w: Tensor) -> Tensor:
    """WᵀW over the rows that a client holds, [c, k, k]; an upper bound where columns know different rows."""
    weight = stack.weight if stack.seen is None else stack.weight * stack.seen.amax(2)
    return torch.bmm((w * weight[:, :, None]).transpose(1, 2), w)


def _factor(stack: Stack) -> Tensor:
    return (2 / stack.columns)[:, None, None]
