"""compile=True changes the speed, not the result."""

from __future__ import annotations

import shutil

import pytest
import torch

import fedsub as fs

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")


@pytest.fixture(scope="module")
def world():
    train = fs.movielens_like(scale=0.01)
    return train, fs.models.make_objective(train)


@pytest.mark.parametrize("steps", [{"local_steps": 4}, {"local_epochs": 1}])
def test_compiled_equals_eager(world, steps) -> None:
    train, objective = world
    method = fs.methods.fedprox(lr=0.3, clients_per_round=6, mu=0.1, weighting="clients", **steps)
    runs = [
        fs.run(method, objective, train, rounds=3, engine="batched", compile=compiled, evaluate=fs.Evaluate(every=3))
        for compiled in (False, True)
    ]
    for name, value in runs[0].params.items():
        torch.testing.assert_close(runs[1].params[name], value, rtol=1e-5, atol=1e-7)
    assert runs[0].series("train.ce")[1][-1] == pytest.approx(runs[1].series("train.ce")[1][-1], rel=1e-6)


def test_a_part_that_depends_on_the_round_is_not_compiled(world) -> None:
    class Late(fs.Part):
        def grad(self, grads, params, work):
            return grads if work.round > 1 else {k: 0 * g for k, g in grads.items()}

    train, objective = world
    method = fs.Method(
        local=fs.SGD(0.1), parts=(Late(),), average=fs.OverClients(), server=fs.Add(), sampler=fs.Uniform(4)
    )
    with pytest.raises(fs.errors.ConfigError, match="compile=True cannot be used with Late"):
        fs.run(method, objective, train, rounds=1, compile=True)
