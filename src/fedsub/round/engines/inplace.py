"""Let elementwise operations of a traced graph overwrite inputs that nobody else reads.

A step of a small network on many clients is bound by memory: each fresh output is written to new pages.
Where an operation is the only reader of a tensor that another operation has just made, it may write its
result there. Values do not change, not even in the last bit.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import Graph, Node

from fedsub import torch_private

aten = torch.ops.aten

_UNARY = {
    aten.sigmoid.default: aten.sigmoid_.default,
    aten.tanh.default: aten.tanh_.default,
    aten.relu.default: aten.relu_.default,
    aten.exp.default: aten.exp_.default,
    aten.neg.default: aten.neg_.default,
    aten.mul.Scalar: aten.mul_.Scalar,
    aten.add.Scalar: aten.add_.Scalar,
}
_BINARY = {
    aten.add.Tensor: aten.add_.Tensor,
    aten.mul.Tensor: aten.mul_.Tensor,
    aten.sub.Tensor: aten.sub_.Tensor,
    aten.div.Tensor: aten.div_.Tensor,
}
# Sums into a tensor that was made for them: out of place, a copy of it would be made first.
_SUMS = {aten.index_add.default: aten.index_add_.default}
_COMMUTES = {aten.add.Tensor, aten.mul.Tensor}
# Gradient of an activation: (gradient, saved) -> gradient, written over the incoming gradient.
_BACKWARD = {
    aten.sigmoid_backward.default: aten.sigmoid_backward.grad_input,
    aten.tanh_backward.default: aten.tanh_backward.grad_input,
    aten.threshold_backward.default: aten.threshold_backward.grad_input,
}


def overwrite(graph: Graph) -> int:
    """Rewrite the graph in place; returns how many operations no longer allocate."""
    changed = 0
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in _UNARY and _free(node.args[0], node):
            node.target = _UNARY[node.target]
        elif node.target in _BACKWARD and _free(node.args[0], node):
            node.target, node.kwargs = _BACKWARD[node.target], {**node.kwargs, "grad_input": node.args[0]}
        elif node.target in _SUMS and _free(node.args[0], node):
            node.target = _SUMS[node.target]
        elif node.target in _BINARY:
            first, second = node.args[:2]
            if _free(first, node):
                node.target = _BINARY[node.target]
            elif node.target in _COMMUTES and not node.kwargs and len(node.args) == 2 and _free(second, node):
                node.target, node.args = _BINARY[node.target], (second, first)
            else:
                continue
        else:
            continue
        changed += 1
    return changed


def _free(source: object, reader: Node) -> bool:
    """Whether ``reader`` alone reads ``source``, which has the result's form and memory of its own."""
    if not isinstance(source, Node) or not _same_form(source, reader):
        return False
    if sum(arg is source for arg in reader.all_input_nodes) != 1 or _occurrences(source, reader) != 1:
        return False
    node, reader_of = source, reader
    while True:
        if node.op != "call_function" or set(node.users) != {reader_of}:
            return False
        results = torch_private.results(node.target)
        if results is None:
            return False
        aliased = [result for result in results if result != "fresh"]
        if not aliased:
            return len(results) == 1  # made by this operation: its memory is fresh
        if not isinstance(node.args[0], Node) or node.target in (aten.expand.default, aten.as_strided.default):
            return False
        if aliased[0] == "written" and len(results) == 1 and node.target not in _OVERWRITERS:
            return False
        # A view, or an operation already made to overwrite: look behind it.
        node, reader_of = node.args[0], node


_OVERWRITERS = {*_UNARY.values(), *_BINARY.values(), *_BACKWARD.values()}


def _same_form(a: Node, b: Node) -> bool:
    x, y = a.meta.get("val"), b.meta.get("val")
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        return False
    return x.shape == y.shape and x.dtype == y.dtype and x.stride() == y.stride() and x.is_contiguous()


def _occurrences(source: Node, reader: Node) -> int:
    return sum(arg is source for arg in (*reader.args, *reader.kwargs.values()))
