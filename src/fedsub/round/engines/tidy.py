"""Say the same with fewer passes over memory: rewrites of a traced graph that hold for every module.

The tracer writes down what autograd and vmap do, step by step: multiplications by one, views that change
nothing, a zero tensor for every slice whose gradient is added to another. Each rewrite below gives the same
numbers from less work.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import Graph, Node

aten = torch.ops.aten

_VIEWS = {aten.view.default, aten.expand.default, aten._unsafe_view.default, aten.reshape.default}
# A gradient that is zero outside one slice of its tensor: the view that picks the slice again.
_SLICES = {aten.slice_backward.default: aten.slice.Tensor, aten.select_backward.default: aten.select.int}


def tidy(graph: Graph) -> None:
    """Rewrite the graph in place."""
    for node in list(graph.nodes):
        if node.op == "call_function":
            changed = _drop_if_idle(node) or _subtract(node)
            if not changed:
                _turn_column(graph, node)
    graph.eliminate_dead_code()


def scatter(graph: Graph) -> None:
    """The gradient of a lookup as a sum over rows, which torch has a faster kernel for (a compiler does not)."""
    for node in list(graph.nodes):
        if node.op == "call_function":
            _scatter(graph, node)
    graph.eliminate_dead_code()


def loosen(graph: Graph, tables: int) -> None:
    """Hand out the gradient of each table not added up: a list of (ids [n], rows [n, …]), one pair a lookup.

    For updates that add a multiple of the gradient: adding row by row spares a gradient as large as the table.
    A table whose gradient does not come from lookups alone keeps it whole.
    """
    out = graph.output_node()
    (results,) = out.args
    assert isinstance(results, tuple | list)
    losses, *grads = results
    for position, node in enumerate(grads[:tables]):
        if isinstance(node, Node) and (lookups := _lookups(node)):
            with graph.inserting_before(out):
                grads[position] = [_flat_lookup(graph, lookup) for lookup in lookups]
    out.args = ((losses, *grads),)
    graph.eliminate_dead_code()


def _lookups(node: Node) -> list[Node]:
    """The lookups whose gradients sum up to ``node``; [] if it is anything else."""
    if node.target is aten.embedding_dense_backward.default and node.args[3] == -1 and not node.args[4]:
        return [node]
    if node.target is not aten.add.Tensor or node.kwargs or len(node.args) != 2:
        return []
    parts = [_lookups(part) if isinstance(part, Node) else [] for part in node.args]
    return [*parts[0], *parts[1]] if all(parts) else []


def _flat_lookup(graph: Graph, node: Node) -> tuple[Node, Node]:
    grad, ids = node.args[:2]
    assert isinstance(grad, Node)
    assert isinstance(ids, Node)
    count, width = ids.meta["val"].numel(), node.meta["val"].shape[1:]
    where = graph.call_function(aten.reshape.default, (ids, [count]))
    return where, graph.call_function(aten.reshape.default, (grad, [count, *width]))


def _drop_if_idle(node: Node) -> bool:
    """x·1, and views of the shape that is there already."""
    source = node.args[0] if node.args else None
    if not isinstance(source, Node) or not _same_layout(source, node):
        return False
    if node.target in _VIEWS or (node.target is aten.mul.Scalar and node.args[1] == 1):
        node.replace_all_uses_with(source)
        return True
    return False


def _subtract(node: Node) -> bool:
    """a + (−b) = a − b, exactly."""
    if node.target is not aten.add.Tensor or node.kwargs or len(node.args) != 2:
        return False
    for kept, other in (node.args, node.args[::-1]):
        if isinstance(other, Node) and other.target is aten.neg.default and isinstance(kept, Node):
            if not _same_layout(kept, node):
                continue
            node.target, node.args = aten.sub.Tensor, (kept, other.args[0])
            return True
    return False


def _turn_column(graph: Graph, node: Node) -> None:
    """Aᵀb of a column b, as (bᵀA)ᵀ: the matrix is then read along its rows, ten times as fast."""
    if node.target is not aten.bmm.default:
        return
    left, right = node.args
    value = node.meta.get("val")
    if not isinstance(left, Node) or left.target is not aten.transpose.int or left.args[1:] != (1, 2):
        return
    if not isinstance(right, Node) or not isinstance(value, Tensor) or value.shape[2] != 1:
        return
    with graph.inserting_before(node):
        row = graph.call_function(aten.transpose.int, (right, 1, 2))
        product = graph.call_function(aten.bmm.default, (row, left.args[0]))
        back = graph.call_function(aten.transpose.int, (product, 1, 2))
    product.meta["val"] = value.transpose(1, 2).contiguous()
    back.meta["val"] = value
    row.meta["val"] = right.meta["val"].transpose(1, 2)
    node.replace_all_uses_with(back)


def _scatter(graph: Graph, node: Node) -> None:
    if node.target is not aten.embedding_dense_backward.default:
        return
    grad, ids, rows, padding, by_frequency = node.args
    assert isinstance(grad, Node)
    assert isinstance(ids, Node)
    summed, seen = node.meta.get("val"), ids.meta.get("val")
    if padding != -1 or by_frequency or not isinstance(summed, Tensor) or not isinstance(seen, Tensor):
        return
    if seen.dtype != torch.int64:
        return
    width = list(summed.shape[1:])
    alone = width == [1]  # torch adds to a vector in a tight loop, to rows one call each
    if alone:
        width, summed = [], summed.reshape(-1)
    with graph.inserting_before(node):
        zeros = graph.call_function(aten.new_zeros.default, (grad, [rows, *width]))
        flat = graph.call_function(aten.reshape.default, (grad, [seen.numel(), *width]))
        where = graph.call_function(aten.reshape.default, (ids, [seen.numel()]))
        total = graph.call_function(aten.index_add.default, (zeros, 0, where, flat))
        zeros.meta["val"] = total.meta["val"] = summed
        if alone:
            total = graph.call_function(aten.view.default, (total, [-1, 1]))
            total.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(total)


def _same_layout(a: Node, b: Node) -> bool:
    x, y = a.meta.get("val"), b.meta.get("val")
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        return False
    return x.shape == y.shape and x.dtype == y.dtype and x.stride() == y.stride()
