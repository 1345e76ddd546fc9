"""FSVRG: its formula with the paper's S, A and h_k, the rounds in turns, and the optimum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from known_answers import DRIFT, ENGINES, EVERYONE, FEDAVG, OPTIMUM, quadratics, x_of
from reference import TABLE, TOLERANCE, UNEVEN, Settings, Tree, World, assert_close, mean_of, play, start_of
from reference import gradient as gradient_of
from worlds import composed, trainer_for

import fedsub as fs
from fedsub.data.frequency import frequency
from fedsub.errors import MethodError
from fedsub.testing import check_part

LR = 0.8

# ---------------------------------------------------------------------- in numpy, whole tables


def named(world: World, rows: np.ndarray) -> np.ndarray:
    """In which share of some samples each row is named, [items]."""
    return np.mean([np.isin(np.arange(world.items), ids) for ids in world.ids[rows]], axis=0)


def simulate(world: World, start: Tree, cohorts: list[list[int]], *, scale: bool, even: bool, holders: bool) -> Tree:
    """Algorithm 4 of the paper, with batches of three in file order; every cohort is there for two rounds."""
    x, w = {k: v.copy() for k, v in start.items()}, world.sizes.astype(float)
    heat = Settings(average="holders by samples")
    for cohort in cohorts[::2]:
        own = {i: np.arange(world.offsets[i], world.offsets[i + 1]) for i in cohort}
        gradients = [gradient_of(x, world.ids[own[i]], world.label[own[i]]) for i in cohort]
        full = mean_of(world, heat if holders else Settings(average="samples"), cohort, gradients)
        phi = np.average([named(world, own[i]) for i in cohort], axis=0, weights=w[cohort])
        updates = []
        for i in cohort:
            y, batches = {k: v.copy() for k, v in x.items()}, [own[i][a : a + 3] for a in range(0, len(own[i]), 3)]
            mask, mine = world.held[i], named(world, own[i])
            s = np.where(mask, phi / np.where(mine > 0, mine, 1.0), 1.0) if scale else np.ones(world.items)
            h = LR / len(batches) if even else LR
            for batch in batches:
                now, then = (gradient_of(at, world.ids[batch], world.label[batch]) for at in (y, x))
                for k in y:
                    step = (s[:, None] if k == TABLE else 1.0) * (now[k] - then[k]) + full[k]
                    y[k] = y[k] - h * (step * mask[:, None] if k == TABLE else step)
            updates.append({k: y[k] - x[k] for k in x})
        mean = mean_of(world, heat, cohort, updates)  # A: the heat correction
        x = {k: x[k] + mean[k] for k in x}
    return x


@ENGINES
@pytest.mark.parametrize(
    "settings",
    [{}, {"scale": False, "even": False}, {"holders": True}],
    ids=lambda s: ", ".join(s) or "as in the paper",
)  # fmt: skip
def test_it_is_its_formula(engine: str, settings: dict[str, Any], tmp_path: Path) -> None:
    local = {"lr": LR, "local_epochs": 1, "batch_size": 3, "batches": "ordered", "clients_per_round": 4}
    method = composed(fs.methods.fsvrg(**local, **settings))
    found, cohorts = play(UNEVEN, method, tmp_path / "run", 6, engine=engine)
    assert cohorts[::2] == cohorts[1::2]
    assert len({tuple(cohort) for cohort in cohorts}) == 3
    options = {"scale": True, "even": True, "holders": False, **settings}
    assert_close(found, simulate(UNEVEN, start_of(UNEVEN.objective()), cohorts, **options), TOLERANCE)


# ---------------------------------------------------------------------- what it is made of


@pytest.mark.parametrize(("engine", "rounds"), [("serial", 80), ("batched", 80)])
def test_it_reaches_the_optimum_where_fedavg_stays_at_its_drift(engine: str, rounds: int) -> None:
    goal, clients = quadratics(*DRIFT)
    local = {"lr": 0.02, "local_steps": 10, "batch_size": 1, **EVERYONE}
    assert x_of(fs.methods.fedavg(**local), goal, clients, rounds, engine=engine) == pytest.approx(FEDAVG, abs=1e-8)
    x = x_of(fs.methods.fsvrg(even=False, **local), goal, clients, rounds, engine=engine)
    assert x == pytest.approx(OPTIMUM, abs=1e-10)


def test_stochastic_steps_reach_the_optimum_too() -> None:
    """Clients of several unlike samples, one a step: at the optimum every variance-reduced step is 0."""
    rng = np.random.default_rng(0)
    a, e = rng.integers(1, 6, 12).astype(float), rng.integers(-4, 5, 12).astype(float)
    data = {"a": a.astype(np.float32), "e": e.astype(np.float32)}
    clients = fs.Clients.from_arrays(data, offsets=np.array([0, 3, 8, 12]), ids=[], values=["a", "e"])
    goal, _ = quadratics(*DRIFT)
    method = fs.methods.fsvrg(lr=0.3, local_epochs=1, batch_size=1, clients_per_round=None)
    assert x_of(method, goal, clients, 120, engine="batched") == pytest.approx(a @ e / a.sum(), abs=1e-10)


def test_odd_rounds_take_gradients_and_move_nothing() -> None:
    goal, clients = quadratics(*DRIFT, start=3.0)
    method = fs.methods.fsvrg(local_steps=5, lr=0.02, **EVERYONE)
    for rounds, moved in ((1, False), (2, True)):
        assert (x_of(method, goal, clients, rounds) != 3.0) == moved
    twice, thrice = (x_of(method, goal, clients, rounds) for rounds in (2, 3))
    assert twice == thrice


def test_frequency_counts_samples_that_name_a_row() -> None:
    clients = fs.Clients.from_arrays(
        {"item": [3, 1, 3, 2], "history": [[3, 1], [1, 1], [], [2]], "client": [0, 0, 0, 1]}, "client",
        ids={"item": ["item", "history"]}, sizes={"item": 5},
    )  # fmt: skip
    space = clients.spaces["item"]
    assert space.padding
    assert space.rows.tolist() == [0, 1, 3, 0, 2]
    np.testing.assert_array_equal(frequency(clients, space, np.array([0, 1])), [0, 2 / 3, 2 / 3, 0, 1])
    np.testing.assert_array_equal(frequency(clients, space, np.array([1])), [0, 1])


def test_the_same_clients_for_two_rounds() -> None:
    sampler = fs.sampling.InTurns(fs.Uniform(3), 2).bind(np.full(50, 2))
    plain = fs.Uniform(3).bind(np.full(50, 2))

    def drawn(bound: Any, round: int) -> list[int]:
        return bound.select(round, 7, lambda who, one: np.zeros(len(who))).clients.tolist()

    for turn in range(1, 5):
        assert drawn(sampler, 2 * turn - 1) == drawn(sampler, 2 * turn) == drawn(plain, turn)
    learning = fs.sampling.InTurns(fs.sampling.UCB(2), 2).bind(np.full(6, 2))
    learning.observe(1, np.array([0, 1]), np.ones(2), np.ones(2))
    before = {name: value.copy() for name, value in learning.state.items()}
    learning.observe(2, np.array([0, 1]), np.ones(2), np.ones(2))
    assert any((before[name] != value).any() for name, value in learning.state.items())


def test_the_same_in_every_engine_and_process() -> None:
    method = fs.Method(
        local=fs.SGD(0.2, None, 1, 3), average=fs.OverHolders("samples"), server=fs.Add(),
        sampler=fs.sampling.InTurns(fs.Uniform(4)),
    )  # fmt: skip
    check_part(fs.AnchoredSteps(), method=method)


REFUSED: list[tuple[Any, str]] = [
    (lambda: fs.methods.fsvrg(server="adam"), "stands still"),
    (lambda: fs.methods.fsvrg(server_momentum=0.9), "stands still"),
    (lambda: fs.methods.fsvrg(codec="topk:0.1"), "sends a gradient"),
    (lambda: fs.methods.fsvrg(dp="local:clip=1,noise=1"), "sends a gradient"),
    (lambda: fs.methods.fsvrg(scale="yes"), "True or False"),  # type: ignore[arg-type]
    (lambda: fs.sampling.InTurns("uniform"), "Uniform"),  # type: ignore[arg-type]
    (lambda: fs.sampling.InTurns(fs.Uniform(3), 0), "at least 1"),
    (
        lambda: fs.Method(
            local=fs.SGD(), parts=(fs.AnchoredSteps(),), average=fs.OverHolders(), server=fs.Add(),
            sampler=fs.Uniform(3),
        ),
        r"InTurns\(Uniform",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("make", "said"), REFUSED)
def test_what_makes_no_sense_is_refused(make: Any, said: str) -> None:
    with pytest.raises(MethodError, match=said):
        make()


def test_a_gradient_is_forgotten_with_the_model_that_it_was_taken_at() -> None:
    """A row whose holders are lost in the next gradient round must not be moved along an old one."""
    clients = UNEVEN.clients()
    method = fs.methods.fsvrg(lr=LR, local_steps=2, clients_per_round=3)
    trainer = trainer_for(method, UNEVEN.objective(), clients, "batched")
    for number in range(1, 5):
        trainer.round(number)
        kept = trainer.server.keeper.slots["fsvrg"]["gradient"]
        assert any(bool(v.any()) for v in kept.values()) == (number % 2 == 1)
