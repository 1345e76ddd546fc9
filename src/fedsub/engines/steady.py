"""Make a client's numbers independent of how many clients share its tensor operations.

Torch computes exponentials and the like with vector instructions, and the last few values of a tensor, which
do not fill a vector, with other code that may differ in the last bit. Which values are the last ones depends
on the chunk size. So where a client's share of a tensor does not fill whole vectors, the tensor is padded
until all of it does.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Graph

aten = torch.ops.aten

WIDTH = 64  # values; two AVX-512 registers of float32, and a multiple of every narrower one
_INEXACT = {
    getattr(aten, name).default
    for name in (
        "softplus", "softplus_backward", "sigmoid", "sigmoid_backward", "tanh", "tanh_backward", "exp", "expm1", "log",
        "log1p", "log2", "exp2", "gelu", "gelu_backward", "silu", "silu_backward", "elu", "elu_backward", "mish",
        "mish_backward", "sin", "cos", "erf", "rsqrt",
    )
    if hasattr(getattr(aten, name), "default")
}  # fmt: skip


def steady(graph: Graph, clients: int) -> int:
    """Pad the operations that need it; returns how many."""
    changed = 0
    for node in graph.nodes:
        if node.op != "call_function" or node.target not in _INEXACT:
            continue
        value = node.meta.get("val")
        if isinstance(value, Tensor) and value.numel() % (clients * WIDTH):
            node.target = _padded(node.target)
            changed += 1
    return changed


def _padded(operation: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def padded(*args, **kwargs) -> Tensor:
        like = next(a for a in args if isinstance(a, Tensor))
        count = like.numel()
        flat = [F.pad(a.reshape(-1), (0, -count % WIDTH)) if isinstance(a, Tensor) else a for a in args]
        return operation(*flat, **kwargs)[:count].view(like.shape)

    padded.__name__ = f"padded_{operation.__name__.replace('.', '_')}"
    padded.__module__ = __name__
    return padded
