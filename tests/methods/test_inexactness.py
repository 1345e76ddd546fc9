"""How inexactly clients solve their local problem."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from known_answers import (
    DOUBLE,
    quadratics,
    start_of,
)
from worlds import bag, equal, item_data

import fedsub as fs
from fedsub.errors import MethodError


def test_inexactness_on_quadratics() -> None:
    """∇h = a(x−e) + μ(x−X), and I steps shrink x − x* by (1 − η(a+μ))^I, x* the exact prox: so does the gradient."""
    a, e, start, lr = np.array([1.0, 4.0, 10.0]), np.array([0.0, 5.0, -1.0]), 2.0, 0.02
    goal, clients = quadratics(a, e, start, copies=[1, 2, 4])
    for mu in (0.0, 3.0):
        method = fs.methods.fedprox(mu=mu, lr=lr, local_steps=5, batch_size=1)
        expected = (1 - lr * (a + mu)) ** 5
        np.testing.assert_allclose(fs.diagnostics.inexactness(method, goal, clients), expected, rtol=1e-9)
        found = fs.diagnostics.inexactness(method, goal, clients, who=[2, 0])
        np.testing.assert_allclose(found, expected[[2, 0]], rtol=1e-9)
    # What is sent makes no difference to the local work: codecs, FedNova and the server.
    method = fs.methods.fedavg(lr=lr, local_steps=5, batch_size=1, codec="sign", server="adam")
    np.testing.assert_allclose(fs.diagnostics.inexactness(method, goal, clients), (1 - lr * a) ** 5, rtol=1e-9)
    # From elsewhere: at its own minimum a client has nothing to do.
    at = {"x": torch.tensor(5.0, dtype=DOUBLE)}
    found = fs.diagnostics.inexactness(method, goal, clients, at)
    np.testing.assert_allclose(found, [(1 - lr) ** 5, 0.0, (1 - lr * 10) ** 5], rtol=1e-9)
    assert goal.module.get_parameter("x").item() == start


def test_inexactness_over_submodels() -> None:
    """Gradients of tables count on S(i); a module's own parameters are left alone."""
    clients = item_data((4, 8, 2, 1, 16))
    goal = bag(clients, dim=2, dtype=DOUBLE)
    before = start_of(goal)
    method = fs.methods.fedprox(mu=0.5, lr=0.3, local_steps=1, batch_size=None)
    found = fs.diagnostics.inexactness(method, goal, clients)

    def slope(module, i: int) -> tuple[torch.Tensor, ...]:
        own = np.arange(clients.offsets[i], clients.offsets[i + 1])
        batch = {k: torch.from_numpy(v) for k, v in clients.gather(own, local=False).items()}
        return torch.autograd.grad(goal.loss(goal.output(module, batch), batch).mean(), tuple(module.parameters()))

    for i in range(len(clients)):
        module = bag(clients, dim=2, dtype=DOUBLE).module
        first = slope(module, i)
        with torch.no_grad():
            for p, g in zip(module.parameters(), first, strict=True):
                p -= 0.3 * g
        second = [g - 0.5 * 0.3 * f for g, f in zip(slope(module, i), first, strict=True)]
        norms = [math.sqrt(sum(float(g.square().sum()) for g in gs)) for gs in (first, second)]
        assert found[i] == pytest.approx(norms[1] / norms[0], rel=1e-12)
    assert equal(before, start_of(goal))
    more = fs.diagnostics.inexactness(replace(method, local=fs.SGD(0.3, 50, None, None)), goal, clients)
    assert (more < found).all()
    with pytest.raises(MethodError, match="cannot be asked"):
        fs.diagnostics.inexactness(method, goal, clients, who=[5])
    with pytest.raises(MethodError, match="pools"):
        fs.diagnostics.inexactness(fs.methods.centralsgd(), goal, clients)
    with pytest.raises(MethodError, match="params must hold"):
        fs.diagnostics.inexactness(method, goal, clients, {"emb.weight": before["emb.weight"]})
