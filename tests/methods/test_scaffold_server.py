"""Scaffold at the server alone: the history of updates, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from known_answers import (
    ENGINES,
    final,
    slopes,
    x_of,
)
from worlds import bag, equal, item_data

import fedsub as fs


@ENGINES
def test_scaffold_at_the_server(engine: str) -> None:
    """β = 0 is FedAvg; otherwise X + (1−β) Δ + β h and h ← (1−ρ) h + ρ Δ, for a constant update by hand."""
    clients = item_data()
    goal = bag(clients, dim=2)
    local = {"lr": 0.3, "local_steps": 2, "batch_size": 4, "clients_per_round": 4}
    server = fs.servers.ScaffoldHistory(beta=0.0)
    plain = fs.methods.fedavg(**local)
    assert equal(
        final(replace(plain, server=server), goal, clients, 3, engine=engine),
        final(plain, goal, clients, 3, engine=engine),
    )
    goal, clients = slopes([[1.5]] * 4)
    local = {"lr": 0.1, "local_steps": 1, "batch_size": 1, "clients_per_round": 2}
    x, h, d = 0.25, 0.0, -0.15
    for number in range(1, 5):
        x, h = x + 0.5 * d + 0.5 * h, 0.5 * h + 0.5 * d
        assert h == pytest.approx(d * (1 - 0.5**number))
        found = x_of(fs.methods.scaffold_server(**local), goal, clients, number, engine=engine)
        assert found == pytest.approx(x, rel=1e-12)
