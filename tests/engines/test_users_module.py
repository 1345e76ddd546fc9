"""The user's module: left alone unless asked, frozen parameters, positional inputs."""

from __future__ import annotations

import pytest
import torch
from engine_checks import assert_rounds_agree, methods
from engine_modules import DATA, LOSS, objective
from torch import nn
from worlds import equal, item_data

import fedsub as fs
from fedsub.objective.problem import Problem


@pytest.mark.parametrize("engine", ["serial", "batched", "auto"])
def test_the_users_module_is_left_alone(engine: str) -> None:
    goal = objective("dropout_layernorm")
    before = {k: v.clone() for k, v in goal.module.state_dict().items()}
    goal.module.eval()
    result = fs.run(methods()["short batches"], goal, DATA, rounds=2, engine=engine)
    assert equal(dict(goal.module.state_dict()), before)
    assert not goal.module.training
    assert all(p.grad is None for p in goal.module.parameters())
    assert not equal(dict(result.module().state_dict()), before)
    assert not any(
        p.data_ptr() == q.data_ptr()
        for p, q in zip(goal.module.parameters(), result.module().parameters(), strict=True)
    )


def test_copy_false_trains_the_module_itself() -> None:
    expected = fs.run(methods()["short batches"], objective("base"), DATA, rounds=2, engine="batched").params
    goal = objective("base")
    fs.run(methods()["short batches"], goal, DATA, rounds=2, engine="batched", copy=False)
    assert equal({n: p.detach() for n, p in goal.module.named_parameters()}, expected)


def test_frozen_parameters_are_constants() -> None:
    goal = objective("base")
    goal.module.get_parameter("out.weight").requires_grad_(False)
    problem = Problem.bind(goal, DATA)
    assert "out.weight" not in problem.names
    assert_rounds_agree(methods()["short batches"], goal, DATA, rounds=1, update=2e-4, whole=1e-5)
    result = fs.run(methods()["short batches"], goal, DATA, rounds=1)
    assert torch.equal(*(module.get_parameter("out.weight") for module in (result.module(), goal.module)))


def test_inputs_as_positional_arguments() -> None:
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(20, 1)

        def forward(self, ids):
            return self.emb(ids).sum((1, 2))

    goal = fs.Objective(Plain(), LOSS, {"emb.weight": "ids"}, inputs=("ids",))
    method = fs.methods.fedavg(lr=0.3, local_steps=3, batch_size=4, clients_per_round=5)
    assert_rounds_agree(method, goal, item_data(), rounds=2, update=2e-4, whole=1e-5)
