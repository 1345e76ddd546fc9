"""Make a client's numbers independent of how many clients share its tensor operations.

Torch computes exponentials and the like with vector instructions, and the last few values of a tensor, which
do not fill a vector, with other code that may differ in the last bit. Which values are the last ones depends
on the chunk size. So where a client's share of a tensor does not fill whole vectors, the tensor is padded
until all of it does.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import Graph, Node

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
    padded: dict[Node, Node] = {}  # a tensor that several operations read is padded once
    for node in list(graph.nodes):
        value = node.meta.get("val")
        if node.op != "call_function" or node.target not in _INEXACT or not isinstance(value, Tensor):
            continue
        count = value.numel()
        if count % (clients * WIDTH) == 0:
            continue
        with graph.inserting_before(node):
            for source in node.all_input_nodes:
                if source not in padded:
                    flat = graph.call_function(aten.reshape.default, (source, [count]))
                    padded[source] = graph.call_function(aten.constant_pad_nd.default, (flat, [0, -count % WIDTH]))
        users = list(node.users)
        node.args = tuple(padded[a] if isinstance(a, Node) else a for a in node.args)
        node.meta = {}
        with graph.inserting_after(node):
            cut = graph.call_function(aten.slice.Tensor, (node, 0, 0, count))
        with graph.inserting_after(cut):
            back = graph.call_function(aten.view.default, (cut, list(value.shape)))
        back.meta["val"] = value
        for user in users:
            user.replace_input_with(node, back)
        changed += 1
    return changed
