"""How good a factorisation is: its objective, and how far it is from a stationary point.

    F   = Σ ω_p F_p
    G_H = Σ ω_p c_p² ‖H_p − P(H_p − ∇_H F_p / c_p)‖²
    G_W = d² ‖W − P(W − ∇_W F / d)‖²               W: the projected mean, what the server has after a round

Both vanish at a stationary point; without projections they are squared norms of the gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedsub.families.factorisation import local as steps
from fedsub.families.factorisation.settings import FedMAvg
from fedsub.families.factorisation.stacks import Data


def measure(data: Data, method: FedMAvg, w: Tensor, h: Tensor) -> dict[str, float]:
    """``objective``, ``g_h`` and ``g_w``."""
    shares = torch.from_numpy(data.shares).to(w)
    total, g_h, largest = 0.0, 0.0, 0.0
    slope = torch.zeros_like(w)
    for stack in data.stacks:
        own, copies = h[stack.clients, :, : stack.x.shape[2]], stack.local(w)
        share = shares[stack.clients]
        total += float((share * steps.objective(stack, copies, own, method.l2)).sum())
        after, rate = steps.h_steps(
            stack, copies, own, steps=1, gamma1=method.gamma1, project=method.h_set, l2=method.l2
        )
        g_h += float((share * rate**2 * ((own - after) ** 2).sum((1, 2))).sum())
        largest = max(largest, float(steps.lipschitz_w(stack, own, method.l2).max()))
        stack.add(slope, steps.gradient_w(stack, copies, own, method.l2) * share[:, None, None])
    d = method.gamma2 * largest
    g_w = d**2 * float(((w - method.w_set(w - slope / d, 1)) ** 2).sum())
    return {"objective": total, "g_h": g_h, "g_w": g_w}
