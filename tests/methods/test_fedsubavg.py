"""FedSubAvg by hand: Example 1, equal heat, one step of everyone, rows nobody touches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from example_one import client_gradients, example_one
from known_answers import DOUBLE, ENGINES, EVERYONE, final, start_of
from worlds import bag, click_data, equal, item_data, trainer_for

import fedsub as fs
from fedsub.data.heat import row_heat

# ---------------------------------------------------------------------- Example 1


@ENGINES
@pytest.mark.parametrize(("n", "lr", "steps"), [(2, 0.1, 1), (10, 0.5, 1), (7, 0.2, 3), (5, 0.05, 10)])
def test_example_one(engine: str, n: int, lr: float, steps: int) -> None:
    goal, clients = example_one(n)
    local = {"lr": lr, "local_steps": steps, "batch_size": 1, **EVERYONE}
    rounds, q = 4, (1 - 2 * lr) ** steps
    slow = final(fs.methods.fedavg(**local), goal, clients, rounds, engine=engine)["w"].squeeze(-1)
    expected = [0.0, (1 - (1 - q) / n) ** rounds * 3.0, q**rounds * -2.0]
    np.testing.assert_allclose(slow, expected, rtol=1e-12, atol=1e-15)
    fast = final(fs.methods.fedsubavg(**local), goal, clients, rounds, engine=engine)["w"].squeeze(-1)
    np.testing.assert_allclose(fast, [0.0, q**rounds * 3.0, q**rounds * -2.0], rtol=1e-12, atol=1e-15)


def test_example_one_heat() -> None:
    _, clients = example_one(6)
    assert row_heat(clients.spaces["ids"]).tolist() == [6, 1, 6]


# ---------------------------------------------------------------------- FedSubAvg by hand


@ENGINES
@pytest.mark.parametrize("weighting", ["clients", "samples"])
def test_equal_heat_is_fedavg_bit_for_bit(engine: str, weighting: str) -> None:
    draws = np.random.default_rng(0)
    sizes = np.array([6, 6, 9, 12, 7])
    ids = np.concatenate([np.resize(draws.permutation(6), n) for n in sizes])  # everyone holds all six rows
    clients = fs.Clients.from_arrays(
        {"ids": ids[:, None], "label": draws.integers(0, 2, len(ids))},
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        ids=["ids"],
        label="label",
        sizes={"ids": 6},
    )
    goal = bag(clients, dim=3)
    local = {"lr": 0.3, "local_steps": 4, "batch_size": 4, "clients_per_round": 3, "weighting": weighting}
    plain = final(fs.methods.fedavg(**local), goal, clients, 3, engine=engine)
    sub = final(fs.methods.fedsubavg(**local), goal, clients, 3, engine=engine)
    assert equal(plain, sub)
    assert not equal(plain, start_of(goal))


@ENGINES
def test_everyone_and_one_step_is_preconditioned_gradient_descent(engine: str) -> None:
    """K = N, I = 1: X − γ D ∇f with D = diag(N / n_m)."""
    clients = item_data((4, 8, 2, 1, 16))
    goal = bag(clients, dim=2, dtype=DOUBLE)
    method = fs.methods.fedsubavg(lr=0.7, local_steps=1, batch_size=None, **EVERYONE)
    found = final(method, goal, clients, engine=engine)
    gradients, heat = client_gradients(goal, clients), row_heat(clients.spaces["ids"])
    for name, x in start_of(goal).items():
        d = torch.ones(len(x)) if name != "emb.weight" else torch.from_numpy(5 / np.maximum(heat, 1))
        d = d.double().reshape(-1, *[1] * (x.ndim - 1))
        step = d * sum(g[name] for g in gradients) / 5
        torch.testing.assert_close(found[name], x - 0.7 * step, rtol=1e-12, atol=1e-14)


def test_untouched_rows_keep_their_bits() -> None:
    clients = click_data()
    torch.manual_seed(0)
    goal = fs.models.make_objective(clients, "embedding")
    for method in (
        fs.methods.fedavg(clients_per_round=2),
        fs.methods.fedsubavg(clients_per_round=2),
        fs.methods.fedprox(clients_per_round=2),
        fs.methods.sampled_heat(clients_per_round=2),
    ):
        trainer = trainer_for(method, goal, clients, "batched")
        before = {n: p.clone() for n, p in trainer.params.items()}
        report = trainer.round(1)
        moved = trainer.state.take_moved()
        assert moved is not None
        for table, space in trainer.problem.tables.items():
            held = np.unique(np.concatenate([space.rows_of(c) for c in report.clients]))
            assert moved[table].tolist() == held.tolist()
            rest = np.setdiff1d(np.arange(space.size), held)
            assert len(rest) or space.name != "item"
            assert torch.equal(trainer.params[table][rest], before[table][rest])
            assert not torch.equal(trainer.params[table][held], before[table][held])
