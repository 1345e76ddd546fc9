"""What depends on data alone, computed before the first step, for all steps at once.

A recorded step numbers rows in the arena, compares ids with padding and lays weights out anew each time, though nothing
of it depends on what is trained. Such operations are moved out of the step: their tensors get the steps as a further,
first dimension. Only exact operations are moved, of which every value stands for itself; values do not change.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

aten = torch.ops.aten

_SHAPED = {aten.view.default, aten.reshape.default, aten._unsafe_view.default}
_ALONE = {
    aten.neg.default, aten.bitwise_not.default, aten.logical_not.default, aten.constant_pad_nd.default,
    aten.eq.Scalar, aten.ne.Scalar, aten.lt.Scalar, aten.le.Scalar, aten.gt.Scalar, aten.ge.Scalar,
    aten.add.Scalar, aten.sub.Scalar, aten.mul.Scalar,
}  # fmt: skip
_PAIRS = {aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.eq.Tensor, aten.ne.Tensor}


def moved_ahead(graph: Graph, fixed: int, lasting: int) -> Graph:
    """Take what depends on data alone out of ``graph``.

    Its arguments are parameters, ``lasting`` tensors that are the same in every step, and tensors of one step; the
    first two kinds are ``fixed`` in number.

    Returns the graph that comes first. Its arguments are the lasting tensors and those of all steps, stacked; its
    results are, stacked, what the graph takes from now on in place of a step's tensors.
    """
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    same, by_step = placeholders[fixed - lasting : fixed], placeholders[fixed:]
    first = Graph()
    twin: dict[Node, Node] = {node: first.placeholder(node.name) for node in (*same, *by_step)}
    varies = set(by_step)  # of the nodes that have a twin, those that differ from step to step
    for node in graph.nodes:
        if node.op == "call_function" and all(source in twin for source in node.all_input_nodes):
            arguments = _stacked(node, varies)
            if arguments is not None:
                twin[node] = first.call_function(
                    aten.reshape.default if node.target in _SHAPED else node.target,
                    tuple(twin[a] if isinstance(a, Node) else a for a in arguments),
                )
                twin[node].meta = dict(node.meta)
                if varies & set(node.all_input_nodes):
                    varies.add(node)
    needed = [node for node in graph.nodes if node in varies and any(user not in varies for user in node.users)]
    last = placeholders[-1]
    for node in needed:
        if node.op == "call_function":
            with graph.inserting_after(last):
                given = last = graph.placeholder(f"ahead_{node.name}")
            given.meta = dict(node.meta)
            node.replace_all_uses_with(given, delete_user_cb=lambda user: user not in varies)
    # First those that were arguments before, then the new ones, as they now stand in the graph.
    first.output(tuple(twin[node] for node in sorted(needed, key=lambda node: node.op != "placeholder")))
    graph.eliminate_dead_code()
    for node in by_step:
        if not node.users:
            graph.erase_node(node)
    return first


def _stacked(node: Node, varies: set[Node]) -> tuple[Any, ...] | None:
    """The arguments of an operation for all steps at once; None if it must stay in the step."""
    moving = [source for source in node.all_input_nodes if source in varies]
    if node.kwargs or not node.all_input_nodes:
        return None
    if node.target in _SHAPED:
        source, shape = node.args
        if not isinstance(shape, list | tuple) or not all(isinstance(n, int) and n >= 0 for n in shape):
            return None
        return (source, [-1, *shape]) if moving else (source, list(shape))
    if node.target in _ALONE:
        return node.args
    value = node.meta.get("val")
    if node.target not in _PAIRS or not moving or not isinstance(value, Tensor):
        return None
    inputs = [one for source in moving if isinstance(one := source.meta.get("val"), Tensor)]
    if len(inputs) < len(moving) or any(one.ndim != value.ndim for one in inputs):
        return None  # another dimension in front would not meet its like
    return node.args if value.numel() <= max(one.numel() for one in inputs) else None
