"""Clients that come when a run is under way: they are drawn from then on, and means are taken over them too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from node.processes import SEED, data, objective
from node.test_node import SIZES
from node.test_node_run import Inside, outline

import fedsub as fs
from fedsub.errors import DataError, MethodError, NoUsableClient
from fedsub.node import Node, Patience, hand_out, run
from fedsub.objective.population import Population
from fedsub.privacy.heat import RandomizedResponse, SecureCount
from fedsub.round import wire

LATE = {2, 5}
WAITS = Patience(start=0.1, tries=2, pause=0.01, back=0.1, fewest=6)
COMMON: dict[str, Any] = {"lr": 0.3, "local_steps": 2, "batch_size": 4, "clients_per_round": 4}
POISSON: dict[str, Any] = COMMON | {"sampler": "poisson"}


class Coming(Inside):
    """Two clients come before round 3. All uplinks are kept, by round."""

    def __init__(self, nodes: Any):
        super().__init__(nodes)
        self.up: dict[int, dict[int, wire.Envelope]] = {}
        self.fresh -= LATE

    def answer(self, client: int, letter: bytes) -> bytes | None:
        found = super().answer(client, letter)
        if found is not None and (up := wire.read(found)).kind == wire.UP:
            self.up.setdefault(up.round, {})[client] = up
        return found


class Door(fs.Callback):
    def __init__(self, post: Coming, dies: int = -1):
        self.post, self.dies = post, dies

    def on_round(self, record: dict[str, Any]) -> None:
        if record["round"] == 2:
            self.post.fresh |= LATE
        if record["round"] == self.dies:
            raise KeyboardInterrupt


def played(folder: Path, weighting: str, dies: int = -1, **more: Any) -> tuple[fs.Result, Coming]:
    method = fs.methods.fedsubavg(weighting=weighting, **COMMON)
    places = hand_out(data(), folder / "data") if not (folder / "data").exists() else None
    at = places or {n: folder / "data" / f"client-{n:06d}" for n in range(8)}
    post = Coming({n: Node(path, objective, method, n, folder / f"m{n}") for n, path in at.items()})
    if more.get("resume"):
        post.fresh |= LATE
    options = {"rounds": 6, "seed": SEED, "patience": WAITS, "callbacks": [Door(post, dies)]} | more
    return run(method, objective(SIZES), outline(data()), post, **options), post


@pytest.mark.parametrize("weighting", ["clients", "samples"])
def test_the_estimate_is_over_those_who_are_there(weighting: str, tmp_path: Path) -> None:
    """Δ[m] = (W/W_m) Σ a_i Δ_i[m] / Σ a_i, where W and W_m are of six clients, and of eight from round 3."""
    found, post = played(tmp_path, weighting)
    clients = data()
    weights = np.diff(clients.offsets).astype(np.float64) if weighting == "samples" else np.ones(8)
    tables = {"items.weight": "item", "slots.weight": "slot"}
    model = {n: p.detach().double().numpy().copy() for n, p in objective(SIZES).module.named_parameters()}
    for round, ups in sorted(post.up.items()):
        there = [c for c in range(8) if round > 2 or c not in LATE]
        assert ups.keys() <= set(there)
        assert len(ups) == 4
        for name, value in model.items():
            total, held = np.zeros_like(value), np.zeros(len(value))
            for client in there:
                rows = clients.spaces[tables[name]].rows_of(client) if name in tables else slice(None)
                held[rows] += weights[client]
                if client in ups:
                    sent = ups[client].tensors[f"update/{name}"].double().numpy()
                    total[rows] += sent.reshape(total[rows].shape)
            change = total / weights[list(ups)].sum()
            if name in tables:
                change *= (weights[there].sum() / np.where(held > 0, held, weights[there].sum()))[:, None]
            value += change
    assert sorted(post.up) == [1, 2, 3, 4, 5, 6]
    assert any(LATE & ups.keys() for round, ups in post.up.items() if round > 2)
    assert found.params is not None
    for name, value in model.items():
        np.testing.assert_allclose(found.params[name].numpy(), value, rtol=1e-4, atol=1e-5)
    assert any("came late take part: 2, 5; there are 8 now" in said for said in found.events)


def test_a_server_that_died_still_knows_who_came(tmp_path: Path) -> None:
    whole, _ = played(tmp_path / "a", "samples")
    with pytest.raises(KeyboardInterrupt):
        played(tmp_path / "b", "samples", dies=4, out=tmp_path / "b" / "out")
    assert not Population.open(tmp_path / "b" / "out" / "population.safetensors").absent
    found, _ = played(tmp_path / "b", "samples", out=tmp_path / "b" / "out", resume=True)
    assert whole.params is not None
    assert found.params is not None
    assert all(torch.equal(found.params[n], value) for n, value in whole.params.items())


def test_a_server_that_died_before_they_came_counts_them_when_they_come(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        played(tmp_path, "clients", dies=2, out=tmp_path / "out")
    assert Population.open(tmp_path / "out" / "population.safetensors").absent == LATE
    played(tmp_path, "clients", out=tmp_path / "out", resume=True)
    known = Population.open(tmp_path / "out" / "population.safetensors")
    space = data().spaces["item"]
    counted = np.bincount(np.concatenate([space.rows_of(c) for c in range(8)]), minlength=space.size)
    assert known.present == 8
    assert np.array_equal(known.heat("item")[1:], counted[1:])
    with pytest.raises(DataError, match="counted already"):
        known.joined(3, 1, {})


@pytest.mark.parametrize("method", [
    fs.methods.fedsubavg(secure=fs.SecureSum(0.5), heat=SecureCount(), **COMMON),
    fs.methods.fedsubavg(heat=RandomizedResponse(epsilon=8.0), **COMMON),
    fs.methods.fedavg(weighting="clients", dp=fs.CentralDP(noise=1.0), **POISSON),
], ids=["secure", "private heat", "private"])  # fmt: skip
def test_where_a_late_client_cannot_be_counted_all_have_to_be_there(method: Any, tmp_path: Path) -> None:
    with pytest.raises(MethodError, match="with how many clients a run"):
        run(method, objective(SIZES), outline(data()), Inside({}), rounds=1, patience=WAITS)


def test_fewer_than_the_fewest_are_too_few(tmp_path: Path) -> None:
    method, places = fs.methods.fedsubavg(**COMMON), hand_out(data(), tmp_path / "data")
    post = Inside({n: Node(at, objective, method, n, tmp_path / f"m{n}") for n, at in places.items() if n < 5})
    with pytest.raises(NoUsableClient, match="3 of 8 clients: 5, 6, 7"):
        run(method, objective(SIZES), outline(data()), post, rounds=1, patience=WAITS)


def test_samplers_meet_those_who_come() -> None:
    before, after = np.array([3, 0, 5, 2]), np.array([3, 4, 5, 2])
    samplers = {
        "uniform": fs.Uniform(2), "poisson": fs.sampling.Poisson(2), "ucb": fs.sampling.UCB(2),
        "turns": fs.sampling.InTurns(fs.Uniform(2), 2),
    }  # fmt: skip
    for sampler in samplers.values():
        met, fresh = sampler.bind(before), sampler.bind(after)
        met.meet(after)
        cohorts = [[one.select(r, 0, lambda c, b: np.zeros(len(c))).clients.tolist() for r in range(1, 9)]
                   for one in (met, fresh)]  # fmt: skip
        assert cohorts[0] == cohorts[1]
