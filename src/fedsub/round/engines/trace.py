"""The gradient of many clients as one flat list of tensor operations.

The user's module is mapped over clients with ``vmap`` and differentiated once, while ``make_fx`` records
the operations. What is replayed each step has neither Python of the module nor autograd nor vmap in it,
which for a small model is most of the cost. Shapes are fixed except the arenas' number of rows, which
changes with every cohort: the arena is traced with a marker size no real tensor has, and the marker is
then replaced by the size at run time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.fx import Graph, GraphModule, Node

from fedsub import torch_private
from fedsub.objective.problem import Problem
from fedsub.round.engines.ahead import moved_ahead
from fedsub.round.engines.inplace import overwrite
from fedsub.round.engines.recurrent import NotBatchable
from fedsub.round.engines.rewrite import Rewrite
from fedsub.round.engines.steady import steady
from fedsub.round.engines.tidy import loosen, scatter, tidy

# Primes far above any batch, width or chunk; one per table so that sizes cannot be confused.
_MARKERS = (15_485_863, 15_487_469, 15_488_969, 15_490_883, 15_493_241, 15_495_419, 15_497_831, 15_499_153)


@dataclass(frozen=True)
class Step:
    """A step, and what comes before all steps.

    ``ahead`` takes offsets, columns, weights, keys (flat; of all steps, stacked) and returns tensors of all steps;
    ``run`` takes tables, dense, offsets and one step's share of those, and returns losses [c, B], then gradients.
    """

    ahead: Callable[..., tuple[Tensor, ...]]
    run: Callable[..., tuple[Any, ...]]

    def shares(self, data: list[Tensor], steps: int) -> list[tuple[Tensor, ...]]:
        """What ``run`` takes of the data (that of ``ahead``), for every step."""
        ready = [tensor.unbind(0) for tensor in self.ahead(*data)]
        return list(zip(*ready, strict=True)) if ready else [()] * steps


@dataclass(frozen=True)
class Traced:
    """A step of a chunk of clients. Recorded it takes tables, dense, offsets, columns, weights, keys (flat)."""

    step: Step
    operations: int
    width: int  # the longest row (last dimension) that an operation writes
    bytes_per_client: int  # what the operations of one step write, a measure of the cache they need
    recorded: Graph  # before it was fitted to eager execution
    constants: nn.Module  # what the graph reads besides its arguments

    def plain(self) -> Callable[..., tuple[Tensor, ...]]:
        """The same as it was recorded, for a compiler."""
        return GraphModule(self.constants, copy.deepcopy(self.recorded)).forward

    def loose(self, tables: int) -> Callable[..., tuple[Any, ...]]:
        """`plain` with the tables' gradients as lists of (ids, rows), see `loosen`."""
        graph = copy.deepcopy(self.recorded)
        loosen(graph, tables)
        return GraphModule(self.constants, graph).forward


def trace(
    problem: Problem,
    module: nn.Module,
    tables: Sequence[Tensor],
    dense: Sequence[Tensor],
    columns: dict[str, Tensor],
    weights: Tensor,
    *,
    dropout: bool,
) -> Traced:
    """Trace one gradient step of c clients.

    Example inputs: ``tables`` (arenas, any number of rows), ``dense`` [c, …], ``columns`` [c, B, …]
    and ``weights`` [c, B]. Raises NotBatchable with the reason if the module cannot be mapped.
    """
    names, table_names = list(columns), list(problem.tables)
    c, device = len(weights), weights.device
    n_tables, n_dense = len(table_names), len(problem.dense)
    if n_tables > len(_MARKERS):
        raise NotBatchable(f"the module has more than {len(_MARKERS)} tables")

    def step(*flat: Tensor) -> tuple[Tensor, ...]:
        leaves = [t.detach().requires_grad_() for t in flat[: n_tables + n_dense]]
        arenas, stacked = leaves[:n_tables], leaves[n_tables:]
        rest = list(flat[n_tables + n_dense :])
        offsets, batch = rest[:n_tables], rest[n_tables : n_tables + len(names)]
        weights, key = rest[n_tables + len(names)], rest[-1]

        def one(own, offset, values, word):
            mode = Rewrite(list(zip(arenas, offset, strict=True)), word if dropout else None, batched=True)
            params = dict(zip(table_names, arenas, strict=True)) | dict(zip(problem.dense, own, strict=True))
            data = dict(zip(names, values, strict=True))
            with mode:
                return problem.objective.loss(functional_call(module, params, _inputs(problem, data)), data)

        losses = vmap(one)(stacked, offsets, batch, key)
        grads = torch.autograd.grad(losses, leaves, grad_outputs=weights.to(losses.dtype), allow_unused=True)
        grads = [torch.zeros_like(x) if g is None else g for g, x in zip(grads, leaves, strict=True)]
        if problem.objective.l2:  # of all rows of a submodel, also those that no sample of this batch names
            l2 = [problem.objective.l2_of(name) for name in problem.names]
            grads = [g + a * x.detach() if a else g for g, x, a in zip(grads, leaves, l2, strict=True)]
        return losses.detach(), *grads

    others = [
        *dense,
        *[torch.zeros(c, dtype=torch.int64, device=device) for _ in table_names],
        *columns.values(),
        weights,
        torch.zeros(c, dtype=torch.int64, device=device),
    ]
    try:
        graph = torch_private.record(step, list(zip(_MARKERS, tables, strict=False)), others)
        return _fitted(graph, n_tables, n_dense, c)
    except NotBatchable:
        raise
    except Exception as err:  # whatever vmap or the tracer refuses, in its own words
        raise NotBatchable(torch_private.reason(err)) from err


def _fitted(graph: GraphModule, n_tables: int, n_dense: int, clients: int) -> Traced:
    """What was recorded of a chunk of clients, fitted to eager execution."""
    tidy(graph.graph)
    _free_rows(graph, n_tables)
    recorded = copy.deepcopy(graph.graph)
    scatter(graph.graph)
    steady(graph.graph, clients)
    first = moved_ahead(graph.graph, 2 * n_tables + n_dense, n_tables)
    overwrite(graph.graph)
    calls = [n for one in (first, graph.graph) for n in one.nodes if n.op == "call_function"]
    footprint = sum(_nbytes(n.meta.get("val")) for n in calls if not _is_view(n))
    step = Step(torch_private.called_directly(GraphModule(graph, first)), torch_private.called_directly(graph))
    return Traced(step, len(calls), _width(calls), max(1, footprint // clients), recorded, graph)


def _inputs(problem: Problem, data: dict[str, Tensor]):
    inputs = problem.objective.inputs
    return (data,) if inputs is None else tuple(data[name] for name in inputs)


def _free_rows(graph: GraphModule, n_tables: int) -> None:
    """Replace the marker sizes by the arenas' real numbers of rows, and drop what does nothing."""
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
    sizes: dict[int, Node] = {}
    with graph.graph.inserting_after(placeholders[-1]):
        for mark, arena in zip(_MARKERS, placeholders[:n_tables], strict=False):
            sizes[mark] = graph.graph.call_function(torch.ops.aten.sym_size.int, (arena, 0))

    def free(value):
        if isinstance(value, int) and not isinstance(value, bool):
            if value in sizes:
                return sizes[value]
            if value >= _MARKERS[0] and any(value % mark == 0 for mark in sizes):
                raise NotBatchable("the module makes an operation on a whole table")
        return value

    for node in graph.graph.nodes:
        if node.op != "call_function" or node in sizes.values():
            continue
        node.args = torch_private.map_arguments(node.args, free)
        node.kwargs = torch_private.map_arguments(node.kwargs, free)
        if node.target is torch.ops.aten.detach.default:
            node.replace_all_uses_with(node.args[0])
    graph.graph.eliminate_dead_code()
    torch_private.flat_arguments(graph)


def _is_view(node: Node) -> bool:
    """Whether the operation hands out its input's memory instead of writing."""
    return any(result != "fresh" for result in torch_private.results(node.target) or ())


def _width(calls: Sequence[Node]) -> int:
    values = [n.meta.get("val") for n in calls]
    return max((v.shape[-1] for v in values if isinstance(v, Tensor) and v.ndim > 1), default=1)


def _nbytes(value) -> int:
    if isinstance(value, Tensor):  # a whole arena is as long as its clients make it; not counted
        return 0 if value.ndim and value.shape[0] in _MARKERS else value.numel() * value.element_size()
    return sum(_nbytes(v) for v in value) if isinstance(value, list | tuple) else 0
