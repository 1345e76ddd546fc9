"""Make a client's numbers independent of how many clients share its tensor operations.

Torch computes exponentials and the like with vector instructions, and the last few values of a tensor, which
do not fill a vector, with other code that may differ in the last bit. Which values are the last ones depends
on the chunk size. So where a client's share of a tensor does not fill whole vectors, the tensor is padded
until all of it does.

The last bit of a product of many pairs of matrices depends, on some processors, on where in memory a pair's result
begins. So where results do not begin at multiples of four values, their rows are made longer until they do.
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


_QUARTET = 4  # values
_SMALL = 400  # multiplications of a pair below which torch has a loop of its own, which knows no such places


def lacking(rows: int, columns: int, inner: int) -> int:
    """Columns to add to products [rows, columns] of matrices that share ``inner``."""
    if rows * columns % _QUARTET == 0 or rows * columns * inner < _SMALL:
        return 0
    return -columns % _QUARTET


def widened(weights: Tensor, rows: int) -> Tensor:
    """Weights [k, inner, columns], for products with [k, rows, inner]: with columns of zeros where any are lacking."""
    extra = lacking(rows, weights.shape[2], weights.shape[1])
    return torch.nn.functional.pad(weights, (0, extra)) if extra else weights


def steady(graph: Graph, clients: int) -> int:
    """Pad the operations that need it; returns how many."""
    changed = sum(_widen(graph, node) for node in list(graph.nodes))
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


def _widen(graph: Graph, node: Node) -> bool:
    """A product of pairs of matrices whose results would begin anywhere: with longer rows, cut off afterwards."""
    value = node.meta.get("val")
    if node.op != "call_function" or node.target not in (aten.bmm.default, aten.baddbmm.default):
        return False
    *added, left, right = node.args
    first = left.meta.get("val") if isinstance(left, Node) else None
    if not isinstance(value, Tensor) or not isinstance(first, Tensor):
        return False
    _, rows, columns = value.shape
    extra = lacking(rows, columns, first.shape[2])
    if not extra or any(one.meta["val"].shape[-1] != columns for one in added if isinstance(one, Node)):
        return False
    with graph.inserting_before(node):
        wider = [graph.call_function(aten.constant_pad_nd.default, (one, [0, extra])) for one in (*added, right)]
    users = list(node.users)
    node.args = (*wider[:-1], left, wider[-1])
    node.meta = {}
    with graph.inserting_after(node):
        cut = graph.call_function(aten.slice.Tensor, (node, 2, 0, columns))
    with graph.inserting_after(cut):
        whole = graph.call_function(aten.clone.default, (cut,), {"memory_format": torch.contiguous_format})
    whole.meta["val"] = value
    for user in users:
        user.replace_input_with(node, whole)
    return True
