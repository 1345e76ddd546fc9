"""What depends on data alone is computed once for all steps, and gives every step what it gave before."""

from __future__ import annotations

import copy

import torch
from torch import Tensor
from torch.fx import GraphModule

from fedsub.round.engines.ahead import moved_ahead
from fedsub.torch_private import flat_arguments, record

STEPS, CLIENTS, BATCH = 4, 3, 2
aten = torch.ops.aten


def step(table: Tensor, bias: Tensor, offset: Tensor, ids: Tensor, label: Tensor, weight: Tensor, key: Tensor):
    """One parameter table, one dense, the clients' first rows, and three tensors of a step; ``key`` is not read."""
    rows = ids + offset.view(CLIENTS, 1, 1)
    values = table[rows].squeeze(-1) * (ids != 0)
    scores = values.sum(2) + bias
    return scores, -weight * label, torch.exp(label) * scores, offset.view(CLIENTS, 1) + bias


def example() -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    torch.manual_seed(0)
    parameters, offset = [torch.randn(12, 1), torch.randn(CLIENTS, 1)], torch.tensor([0, 4, 8])
    ids = torch.randint(0, 4, (STEPS, CLIENTS, BATCH, 5))
    label, weight = torch.rand(STEPS, CLIENTS, BATCH), torch.rand(STEPS, CLIENTS, BATCH)
    return parameters, [offset], [ids, label, weight, torch.zeros(STEPS, CLIENTS, dtype=torch.int64)]


def test_steps_get_what_they_computed_themselves() -> None:
    parameters, offsets, data = example()
    graph = record(step, [], [*parameters, *offsets, *[t[0] for t in data]])
    flat_arguments(graph)
    first = moved_ahead(graph.graph, 3, 1)
    flat_arguments(graph)
    graph.recompile()
    ready = GraphModule(graph, first)(*offsets, *data)
    for now in range(STEPS):
        found = graph(*parameters, *offsets, *[t[now] for t in ready])
        for a, b in zip(found, step(*parameters, *offsets, *[t[now] for t in data]), strict=True):
            assert torch.equal(a, b)


def test_only_exact_operations_leave_the_step() -> None:
    parameters, offsets, data = example()
    graph = record(step, [], [*parameters, *offsets, *[t[0] for t in data]])
    before = [n.target for n in copy.deepcopy(graph.graph).nodes if n.op == "call_function"]
    first = moved_ahead(graph.graph, 3, 1)
    moved = {n.target for n in first.nodes if n.op == "call_function"}
    stayed = {n.target for n in graph.graph.nodes if n.op == "call_function"}
    assert {aten.neg.default, aten.add.Tensor} <= moved
    assert aten.neg.default in before
    assert aten.neg.default not in stayed
    assert aten.exp.default in stayed
    assert aten.exp.default not in moved
    assert not any(n.op == "placeholder" and not n.users for n in list(graph.graph.nodes)[3:])  # the key is not asked
