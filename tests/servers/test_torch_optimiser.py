"""Servers that are optimisers of torch.optim, and those that do not fit."""

from __future__ import annotations

import warnings

import pytest
import torch
from every_server import OPTIMISERS, World

from fedsub.errors import MethodError
from fedsub.method.servers import TorchOptimiser


@pytest.mark.parametrize("make", OPTIMISERS.values(), ids=OPTIMISERS.keys())
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_torch_optimiser_is_torch_optim(make, sparse: bool) -> None:
    """With rows that come and go (dense), or the same rows each round (sparse)."""
    world = World(torch.float32, (20, 3))
    server, params = TorchOptimiser(make, sparse_server=sparse), world.params
    fixed = torch.tensor([7, 2, 11])
    plain = [params["table"][fixed].clone() if sparse else params["table"].clone(), params["head"].clone()]
    optimiser = make(plain)
    state = server.init(params, ["table"])
    for r in range(1, 40):
        rows = fixed if sparse else world.rows(r)
        mean = world.mean(rows, r)
        server.step(params, mean, {"table": rows}, state, r)
        gradient = mean["table"] if sparse else torch.zeros(20, 3).index_copy_(0, rows.long(), mean["table"])
        plain[0].grad, plain[1].grad = -gradient, -mean["head"]
        optimiser.step()
    torch.testing.assert_close(params["table"][fixed] if sparse else params["table"], plain[0], rtol=0, atol=0)
    torch.testing.assert_close(params["head"], plain[1], rtol=0, atol=0)
    assert all(p.grad is None for p in params.values())


def test_the_first_state_of_a_torch_optimiser_is_that_of_a_fresh_one() -> None:
    params = {"table": torch.ones(5, 2), "bias": torch.ones(1), "scale": torch.tensor(1.0)}
    state = TorchOptimiser(OPTIMISERS["adam"]).init(params, ["table"])
    assert all(not v.any() for v in state.values())
    assert state["exp_avg/table"].shape == (5, 2)
    state = TorchOptimiser(OPTIMISERS["adagrad"]).init(params, ["table"])
    assert state["sum/table"].eq(0.1).all()
    assert state["step/table"] == 0
    assert params["table"].eq(1).all()


def test_a_large_table_under_a_torch_optimiser_warns() -> None:
    params = {"table": torch.zeros(1_000_001, 1)}
    with pytest.warns(UserWarning, match="lazy catch-up is not possible.*sparse_server=True"):
        TorchOptimiser(OPTIMISERS["sgd"]).init(params, ["table"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TorchOptimiser(OPTIMISERS["sgd"], sparse_server=True).init(params, ["table"])


class Lists(torch.optim.SGD):
    """An optimiser that counts in plain Python."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["seen"] = [1]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda t: torch.optim.LBFGS(t), "LBFGS.*closure"),
        (lambda t: torch.optim.Adafactor(t), "Adafactor.*has shape"),
        (lambda t: torch.optim.SparseAdam(t), "SparseAdam"),
        (lambda t: Lists(t), "Lists.*is a list"),
        (lambda t: None, "not a torch.optim.Optimizer"),
        (lambda t: torch.optim.SGD([torch.ones(2)]), "exactly the tensors"),
    ],
)
def test_a_torch_optimiser_that_does_not_fit_is_refused(make, says: str) -> None:
    params = {"table": torch.ones(5, 2), "bias": torch.ones(3)}
    with pytest.raises(MethodError, match=says):
        TorchOptimiser(make).init(params, ["table"])
