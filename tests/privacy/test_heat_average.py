"""FedSubAvg with private heat: the coefficients, what a run says, what is kept, and secure counts by the protocol."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from secure.runs import Silent
from test_heat import make_space
from worlds import bag, item_data

import fedsub as fs
from fedsub.errors import MethodError
from fedsub.method.average import BoundMean
from fedsub.method.slots import BoundAverage
from fedsub.objective.population import Population
from fedsub.objective.problem import Problem
from fedsub.privacy.heat import (
    CentralHistogram,
    Holdings,
    PermanentResponse,
    PrivateHeat,
    RandomizedResponse,
    SecureCount,
)
from fedsub.secure import SecureClient, SecureServer, Segment, Setting, run_protocol, secure_counts

SIZES = (*range(3, 30), 9, 9, 9)
CPU = torch.device("cpu")


def world() -> tuple[fs.Objective, fs.Clients]:
    clients = item_data(SIZES, items=400)
    return bag(clients, dim=2), clients


def of_rows(bound: BoundAverage) -> torch.Tensor:
    """The coefficients of the table's rows."""
    assert isinstance(bound, BoundMean)
    found = bound.coefficients["emb.weight"]
    assert isinstance(found, torch.Tensor)
    return found


def method(heat: PrivateHeat | str | None, **more) -> fs.Method:
    return fs.methods.fedsubavg(lr=0.05, local_steps=3, batch_size=4, clients_per_round=8, heat=heat, **more)


@pytest.mark.parametrize("weighting", ["clients", "samples", "unbiased"])
def test_coefficients_are_those_of_the_clipped_estimate(weighting: str) -> None:
    """N/n̂ or W/Ŵ of the mechanism's own estimate with the population's seed, clipped to [1, N] or [1, W]."""
    objective, clients = world()
    problem = Problem.bind(objective, clients)
    mechanism = RandomizedResponse(1.0)
    weighted = weighting != "clients"
    bound = fs.OverHolders(weighting, heat=mechanism).bind(Population.of(problem, seed=11), CPU)
    (space,) = problem.spaces.values()
    estimate = mechanism.estimate(Holdings.of(space, clients.sizes if weighted else None), 11)
    whole = clients.sizes.sum() if weighted else len(clients)
    expected = whole / np.clip(estimate.heat, 1, whole)
    assert of_rows(bound).numpy() == pytest.approx(expected, rel=1e-6)
    low, high = estimate.clipped
    assert low > 20
    assert f"{low:,} are clipped to {whole:,.4g}" in bound.notes[-1]
    assert f"and {high:,} to 1" in bound.notes[-1]
    assert "ε 1 a row" in bound.notes[0]
    assert "without bound" in bound.notes[0]


def test_a_cap_at_what_can_be_told_from_noise() -> None:
    objective, clients = world()
    population = Population.of(Problem.bind(objective, clients), seed=3)
    mechanism = RandomizedResponse(1.0, rows=40)
    capped = fs.OverHolders("samples", heat=mechanism, max_coef="resolvable").bind(population, CPU)
    squares = float((clients.sizes.astype(float) ** 2).sum())
    deviation = np.sqrt(squares * np.e) / (np.e - 1)
    assert float(of_rows(capped).max()) == pytest.approx(clients.samples / deviation, rel=1e-5)
    assert capped.spends[0].epsilon == 40
    assert "it costs ε = 40" in capped.notes[0]
    with pytest.raises(MethodError, match="private heat"):
        fs.OverHolders(max_coef="resolvable")


def test_secure_counts_are_exact_heat_and_the_protocol_gives_them() -> None:
    """The same run bit for bit; and the protocol over bytes opens the plain sum, of counts without a client
    that drops out too, and of samples."""
    objective, clients = world()
    exact, secure = (
        fs.run(method(heat), objective, clients, rounds=3, seed=1, engine="serial") for heat in (None, SecureCount())
    )
    assert all(torch.equal(exact.params[name], secure.params[name]) for name in exact.params)
    assert any("added in the clear" in event for event in secure.events)

    sets = [{1, 4}, {4}, set(), {0, 1, 4, 6}, {6}]
    space = make_space("item", 9, sets)
    counts, summed = secure_counts({i: space.rows_of(i) for i in range(5)}, 9, run=1, round=1)
    assert summed.clients == (0, 1, 2, 3, 4)
    assert np.array_equal(counts, SecureCount().estimate(Holdings.of(space), 0).heat)

    counts, summed = secure_counts({i: space.rows_of(i) for i in range(5)}, 9, run=1, round=2, network=Silent({3: 3}))
    assert summed.clients == (0, 1, 2, 4)
    left = make_space("item", 9, [rows for i, rows in enumerate(sets) if i != 3])
    assert np.array_equal(counts, SecureCount().estimate(Holdings.of(left), 0).heat)

    weights = np.array([3, 70_000, 1, 2, 9])
    setting = Setting.plan(1, 3, range(5), [Segment("samples", 9, 32, most=100_000)])
    own = {i: (Holdings.of(space).take(i, i + 1).mask()[0] * weights[i]).astype(np.uint32) for i in range(5)}
    clients_of = {i: SecureClient(setting, i, {"samples": own[i]}) for i in range(5)}
    added = run_protocol(clients_of, SecureServer(setting)).sums["samples"]
    assert np.array_equal(added, SecureCount().estimate(Holdings.of(space, weights), 0).heat)


def test_a_run_keeps_its_estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resumed, it goes on with the coefficients of its checkpoint and ends with the same bits; clients are not asked
    again even if they would answer otherwise."""
    objective, clients = world()
    how = method(PermanentResponse(preset=2), max_coef="resolvable")
    whole = fs.run(how, objective, clients, rounds=6, seed=4, engine="serial")
    fs.run(how, world()[0], clients, rounds=3, seed=4, engine="serial", out=tmp_path / "a", checkpoint_every=3)
    monkeypatch.setattr(
        PermanentResponse, "estimate", lambda *_: RandomizedResponse(1.0).estimate(_[1], 99)
    )  # fmt: skip
    resumed = fs.run(
        how, world()[0], clients, rounds=6, seed=4, engine="serial", out=tmp_path / "a", checkpoint_every=3, resume=True
    )
    assert all(torch.equal(whole.params[name], resumed.params[name]) for name in whole.params)
    config = json.loads((tmp_path / "a/config.json").read_text())
    assert config["method"]["average"]["heat"]["type"] == "PermanentResponse"
    assert config["method"]["average"]["heat"]["preset"] == 2
    events = (tmp_path / "a/events.jsonl").read_text()
    assert "permanent response, preset 2" in events
    assert "are clipped to" in events


def test_the_seed_decides(tmp_path: Path) -> None:
    objective, clients = world()
    problem = Problem.bind(objective, clients)
    average = fs.OverHolders(heat=RandomizedResponse(0.5))
    a, b, c = (of_rows(average.bind(Population.of(problem, seed), CPU)) for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_heat_that_is_given_is_counted_too() -> None:
    objective, clients = world()
    (name,) = Problem.bind(objective, clients).spaces
    heat = np.linspace(-2, 40, 400)
    bound = fs.OverHolders(heat={name: heat}).bind(Population.of(Problem.bind(objective, clients)), CPU)
    assert f"{np.count_nonzero(heat < 1)} are clipped to 30" in bound.notes[0]
    assert f"and {np.count_nonzero(heat > 30)} to 1" in bound.notes[0]
    assert bound.spends == ()
    same, other = {name: heat.copy()}, {name: heat + 1}
    assert fs.OverHolders(heat={name: heat}) == fs.OverHolders(heat=same)
    assert fs.OverHolders(heat={name: heat}) != fs.OverHolders(heat=other)


def test_other_methods_and_words() -> None:
    for name in ("fedsubavg", "fedsubadam", "fedsubadagrad"):
        described = fs.methods.make(name, heat="rr:1").describe()["average"]["heat"]
        assert (described["type"], described["epsilon"]) == ("RandomizedResponse", 1.0)
    histogram = method("histogram:2,rows=10,most_samples=20").average
    assert isinstance(histogram, fs.OverHolders)
    assert histogram.heat == CentralHistogram(2.0, rows=10, most_samples=20)
