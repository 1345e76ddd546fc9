"""A share of the clients, FedProx as its paper draws clients, and rates that fall within a round."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from known_answers import ENGINES, EVERYONE, quadratics, x_of
from worlds import equal, item_data

import fedsub as fs
from fedsub.errors import MethodError
from fedsub.method.sampling import Fraction

LOCAL = {"lr": 0.3, "local_epochs": 1, "batch_size": 4}

# ---------------------------------------------------------------------- a share of the clients


@pytest.mark.parametrize(
    ("share", "clients", "count"), [(0.1, 30, 3), (0.1, 31, 4), (0.001, 30, 1), (1.0, 7, 7), (0.7, 10, 7), (0.3, 10, 3)]
)
def test_a_share_of_the_clients_is_rounded_up(share: float, clients: int, count: int) -> None:
    """K = max(⌈C N⌉, 1), and 0.1 · 30 = 3.0000000000000004 is three; a client without data does not count."""
    sampler = Fraction(share, fs.Uniform())
    sizes = np.append(np.full(clients, 2), 0)
    assert sampler.share(clients) == count / clients
    cohort = sampler.bind(sizes).select(1, 0, lambda who, one: np.zeros(len(who)))
    assert len(cohort) == count
    assert clients not in cohort.clients  # the one without data


def test_a_share_is_the_number_that_it_comes_to() -> None:
    clients = item_data((1, 7, 4, 9, 2, 5))
    asked: list[dict[str, Any]] = [{"clients_fraction": 0.4}, {"clients_per_round": 3}]
    for sampler in ("uniform", "by-size", "poisson", "ucb"):
        runs = [
            fs.run(
                fs.methods.fedsubavg(sampler=sampler, **LOCAL, **who),
                goal_of(clients),
                clients,
                rounds=2,
                seed=2,
                engine="serial",
            )
            for who in asked
        ]
        assert equal(runs[0].params, runs[1].params), sampler


def goal_of(clients: fs.Clients) -> fs.Objective:
    return fs.models.make_objective(clients, "embedding", dim=2, hidden=3, seed=1)


# ---------------------------------------------------------------------- FedProx as its paper has it


def test_the_original_fedprox_draws_by_size_and_averages_plainly() -> None:
    """With replacement the mean over draws of (1/K) Σ x_k is Σ p_k x_k, whoever is drawn."""
    original = fs.methods.fedprox(original=True, mu=0.5, clients_per_round=2, replacement=True, **LOCAL)
    assert original.sampler == fs.sampling.BySize(2, replacement=True)
    assert original.average == fs.OverClients("clients")
    a, e, copies = (1, 4, 10), (0, 5, -1), [1, 2, 5]
    goal, clients = quadratics(a, e, start=3.0, copies=copies)
    method = fs.methods.fedprox(
        original=True, mu=0.5, lr=0.02, local_steps=3, batch_size=1, clients_per_round=1, replacement=True
    )
    found = np.array([x_of(method, goal, clients, 1, seed=seed, engine="serial") for seed in range(100)])
    ends = []
    for ai, ei in zip(a, e, strict=True):
        x = 3.0
        for _ in range(3):
            x -= 0.02 * (ai * (x - ei) + 0.5 * (x - 3.0))
        ends.append(x)
    counts = [int(np.isclose(found, end, rtol=1e-12).sum()) for end in ends]
    assert sum(counts) == len(found)  # a plain mean of one client is where it went
    expected = 100 * np.array(copies) / 8
    assert (((counts - expected) ** 2) / expected).sum() < 13.8  # χ² with 2 degrees of freedom, 0.1 %


# ---------------------------------------------------------------------- rates that fall within a round


def norm(steps: int, decay: float, rho: float = 0.0, mu: float = 0.0, lr: float = 0.1) -> float:
    """‖a‖₁: where gradients of −1 lead, by the rate of the first step."""
    x = buffer = 0.0
    for k in range(steps):
        buffer = rho * buffer - 1 + mu * x
        x -= lr * decay**k * buffer
    return x / lr


@pytest.mark.parametrize("decay", [1.0, 0.9, 0.3])
def test_the_length_of_a_path_with_falling_rates(decay: float) -> None:
    import torch

    taus = torch.tensor([1.0, 2.0, 7.0, 30.0], dtype=torch.float64)
    for rho, mu in ((0.0, 0.0), (0.6, 0.0), (0.0, 2.0)):
        found = fs.SGD(0.1, momentum=rho, step_decay=decay).path_norm(taus, 0.1 * mu)
        expected = [norm(int(tau), decay, rho, mu) for tau in taus]
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


@ENGINES
@pytest.mark.parametrize("settings", [{}, {"momentum": 0.5}, {"mu": 2.0}], ids=str)
def test_fednova_with_falling_rates_goes_where_its_formula_says(engine: str, settings: dict[str, float]) -> None:
    """½ (x − e_i)², τ_i steps at η c^k: x → Σ (m_i/‖a_i‖) e_i / Σ (m_i/‖a_i‖), m_i the share of the way to e_i."""
    lr, decay, e, taus = 0.1, 0.8, (0, 10, 4), (1, 5, 20)
    goal, clients = quadratics((1, 1, 1), e, copies=list(taus))
    method = fs.methods.fednova(lr=lr, step_decay=decay, local_epochs=1, batch_size=1, **settings, **EVERYONE)
    ways = []
    for tau in taus:
        x = buffer = 0.0
        for k in range(tau):  # from 0, towards 1
            buffer = settings.get("momentum", 0.0) * buffer + (x - 1) + settings.get("mu", 0.0) * x
            x -= lr * decay**k * buffer
        ways.append(x / norm(tau, decay, settings.get("momentum", 0.0), settings.get("mu", 0.0), lr))
    expected = float(np.dot(ways, e) / np.sum(ways))
    assert x_of(method, goal, clients, 150, engine=engine) == pytest.approx(expected, rel=1e-9)


REFUSED: list[tuple[Any, str]] = [
    (lambda: fs.methods.fedavg(clients_fraction=0.0), "above 0"),
    (lambda: fs.methods.fedavg(clients_fraction=1.5), "at most 1"),
    (lambda: fs.methods.fedavg(clients_fraction=0.1, clients_per_round=20), "give one of them"),
    (lambda: fs.methods.fedavg(clients_fraction=0.1, sampler="pow-d:20"), "needs a number"),
    (lambda: fs.methods.power_of_choice(clients_fraction=0.1), "needs a number"),
    (lambda: fs.methods.fedavg(clients_fraction=0.1, sampler=fs.Uniform(3)), "has its own settings"),
    (lambda: Fraction(0.1, fs.Everyone()), "one of a number"),  # type: ignore[arg-type]
    (lambda: fs.methods.fedprox(original=True, sampler="poisson"), "means nothing"),
    (lambda: fs.methods.fedprox(original="yes"), "True or False"),  # type: ignore[arg-type]
    (lambda: fs.SGD(step_decay=0.0), "above 0"),
    (lambda: fs.methods.fedavg(step_decay=0.9, solver="adam"), "schedule"),
    (lambda: fs.methods.scaffold(step_decay=0.9), "option"),
    (lambda: fs.methods.fednova(step_decay=0.9, momentum=0.5, mu=0.1), "not for both"),
]


@pytest.mark.parametrize(("make", "said"), REFUSED)
def test_what_makes_no_sense_is_refused(make: Any, said: str) -> None:
    with pytest.raises(MethodError, match=said):
        make()
