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


def test_clipping_and_two_lookups_in_one_table_compile() -> None:
    """Plain steps add rows lookup by lookup; clipped ones need the whole gradient and whose each row is."""
    train = fs.movielens_like(scale=0.01)

    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.items = torch.nn.Embedding(train.size("movie"), 3)
            self.out = torch.nn.Linear(3, 1)

        def forward(self, batch):
            pair = self.items(batch["movie"]) * self.items(batch["movie"]).tanh()
            return self.out(pair).squeeze(-1)

    unused = ["gender", "age", "gender_movie", "age_movie"]
    goal = fs.Objective(Twice(), fs.losses.binary("label"), {"items.weight": "movie"}, unused=unused)
    for clip in (None, 0.05):
        method = fs.methods.fedsubavg(lr=0.3, clients_per_round=6, local_steps=4, clip_norm=clip)
        plain, compiled = (
            fs.run(method, goal, train, rounds=2, engine="batched", compile=c, evaluate=None) for c in (False, True)
        )
        for name, value in plain.params.items():
            torch.testing.assert_close(compiled.params[name], value, rtol=1e-5, atol=1e-6)
