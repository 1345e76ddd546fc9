"""FedDyn, FedADMM and FedSplit: each is its formula, and all of them reach the optimum where FedAvg stays beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from known_answers import DRIFT, ENGINES, EVERYONE, OPTIMUM, quadratics, x_of
from reference import EXACT, TABLE, TOLERANCE, Settings, Tree, World, assert_close, mean_of, play, share_of, start_of
from reference import gradient as gradient_of
from worlds import composed, trainer_for

import fedsub as fs
from fedsub.errors import MethodError
from fedsub.testing import check_part

RHO, LR = 0.5, 0.3
MAKE: dict[str, Any] = {
    "feddyn": lambda **s: fs.methods.feddyn(alpha=s.pop("rho"), **s),
    "fedadmm": fs.methods.fedadmm,
    "fedsplit": fs.methods.fedsplit,
}

# ---------------------------------------------------------------------- in numpy, whole tables


def moved(world: World, i: int, x: Tree, price: Tree) -> Tree:
    """x_i − X after one pass of steps x ← x − η (g_i(x) + y_i + ρ (x − X)), zero outside S(i)."""
    y = {k: v.copy() for k, v in x.items()}
    own = np.arange(world.offsets[i], world.offsets[i + 1])
    mask = {k: world.held[i][:, None] if k == TABLE else 1.0 for k in x}
    for at in range(0, len(own), 4):
        batch = own[at : at + 4]
        g = gradient_of(y, world.ids[batch], world.label[batch])
        y = {k: y[k] - LR * mask[k] * (g[k] + price[k] + RHO * (y[k] - x[k])) for k in y}
    return {k: y[k] - x[k] for k in x}


def simulate(name: str, world: World, start: Tree, average: str, cohorts: list[list[int]], relax: float) -> Tree:
    s = Settings(average=average)
    x, n = {k: v.copy() for k, v in start.items()}, len(world.sizes)
    masks = [{k: world.held[i][:, None] if k == TABLE else np.ones(1) for k in x} for i in range(n)]
    price = [{k: np.zeros_like(v) for k, v in x.items()} for _ in range(n)]
    vector = [{k: mask[k] * start[k] for k in x} for mask in masks]  # u_i or z_i, at the first model
    mean_price = {k: np.zeros_like(v) for k, v in x.items()}
    for cohort in cohorts:
        sent = []
        for i in cohort:
            if name == "fedsplit":
                price[i] = {k: RHO * masks[i][k] * (vector[i][k] - x[k]) for k in x}
            delta = moved(world, i, x, price[i])
            if name == "fedsplit":
                new = {k: vector[i][k] + 2 * relax * delta[k] for k in x}
            else:
                price[i] = {k: price[i][k] + RHO * delta[k] for k in x}
                new = {k: masks[i][k] * (x[k] + delta[k] + price[i][k] / RHO) for k in x}
            sent.append(delta if name == "feddyn" else {k: new[k] - vector[i][k] for k in x})
            vector[i] = new
        mean, share = mean_of(world, s, cohort, sent), share_of(world, s, cohort)
        if name == "feddyn":
            touched = {k: world.held[cohort].max(0)[:, None] if k == TABLE else np.ones(1) for k in x}
            mean_price = {k: mean_price[k] + share * RHO * mean[k] for k in x}
            x = {k: x[k] + mean[k] + touched[k] * mean_price[k] / RHO for k in x}
        else:
            x = {k: x[k] + share * mean[k] for k in x}
    return x


CASES = [
    ("feddyn", "clients", {"weighting": "clients"}), ("feddyn", "samples", {}),
    ("fedadmm", "holders", {"weighting": "clients"}), ("fedadmm", "holders by samples", {}),
    ("fedsplit", "holders", {"weighting": "clients"}), ("fedsplit", "holders by samples", {"relax": 0.5}),
]  # fmt: skip


@ENGINES
@pytest.mark.parametrize(("name", "average", "settings"), CASES)
def test_each_is_its_formula(engine: str, name: str, average: str, settings: dict, tmp_path: Path) -> None:
    """By a sample of the clients, some of whom come late, others twice, and most rows with them."""
    local = {"lr": LR, "local_epochs": 1, "batch_size": 4, "batches": "ordered", "clients_per_round": 4}
    method = composed(MAKE[name](rho=RHO, **local, **settings))
    found, cohorts = play(EXACT, method, tmp_path / "run", 6, engine=engine)
    assert len({i for cohort in cohorts for i in cohort}) == 8
    start = start_of(EXACT.objective())
    assert_close(found, simulate(name, EXACT, start, average, cohorts, settings.get("relax", 1.0)), TOLERANCE)


def test_feddyn_with_the_heat_correction(tmp_path: Path) -> None:
    local = {"lr": LR, "local_epochs": 1, "batch_size": 4, "batches": "ordered", "clients_per_round": 4}
    method = composed(fs.methods.fedsubavg(weighting="clients", variates=f"dynamic:{RHO}", **local))
    found, cohorts = play(EXACT, method, tmp_path / "run", 6)
    assert_close(found, simulate("feddyn", EXACT, start_of(EXACT.objective()), "holders", cohorts, 1.0), TOLERANCE)


# ---------------------------------------------------------------------- fixed points

LOCAL = {"lr": 0.02, "local_steps": 10, "batch_size": 1, **EVERYONE}
SECOND = ((1, 2, 5), (0, 3, -1), 0.125)  # the quadratics of the mixture, whose one model for all is at 1/8


@pytest.mark.parametrize(("engine", "problem"), [("serial", (*DRIFT, OPTIMUM)), ("batched", SECOND)])
def test_they_reach_the_optimum_where_fedavg_stays_at_its_drift(engine: str, problem: tuple) -> None:
    a, e, optimum = problem
    goal, clients = quadratics(a, e)
    c = 1 - (1 - 0.02 * np.array(a)) ** 10
    drift = float(c @ np.array(e) / c.sum())  # where FedAvg ends
    assert abs(drift - optimum) > 0.05
    assert x_of(fs.methods.fedavg(**LOCAL), goal, clients, 80, engine=engine) == pytest.approx(drift, abs=1e-8)
    for make in MAKE.values():
        assert x_of(make(rho=5.0, **LOCAL), goal, clients, 50, engine=engine) == pytest.approx(optimum, abs=1e-10)


@pytest.mark.parametrize("name", MAKE)
def test_a_sample_of_the_clients_reaches_the_optimum_too(name: str) -> None:
    """Two of three clients a round: what the others keep is in the mean, so that nothing moves at the end."""
    goal, clients = quadratics(*DRIFT)
    method = MAKE[name](rho=5.0, **{**LOCAL, "clients_per_round": 2})
    assert x_of(method, goal, clients, 250) == pytest.approx(OPTIMUM, abs=1e-10)


def test_with_everyone_feddyn_is_fedadmm() -> None:
    goal, clients = quadratics(*DRIFT)
    dynamic, admm = (x_of(MAKE[name](rho=2.0, **LOCAL), goal, clients, 7) for name in ("feddyn", "fedadmm"))
    assert dynamic == pytest.approx(admm, rel=1e-12)


@pytest.mark.parametrize("name", ["fedadmm", "fedsplit"])
def test_the_model_is_the_mean_of_what_clients_keep(name: str) -> None:
    """X − X⁰ = (1/n_m) Σ of their vectors − X⁰, row by row, after rounds with some of the clients."""
    clients = EXACT.clients()
    method = MAKE[name](rho=RHO, lr=LR, local_steps=3, clients_per_round=3, weighting="clients")
    trainer = trainer_for(method, EXACT.objective(), clients, "batched")
    start = {k: v.clone() for k, v in trainer.params.items()}
    for number in range(1, 6):
        trainer.round(number)
    held = torch.from_numpy(EXACT.held.astype(float))
    for parameter, value in trainer.params.items():
        kept = trainer.memory.tensors[f"{name}.vector/{parameter}"]
        if parameter == TABLE:
            total = torch.zeros_like(value).index_add_(0, torch.from_numpy(clients.spaces["ids"].rows).long(), kept)
            mean = total / held.sum(0).clamp(min=1)[:, None]
        else:
            mean = kept.mean(0)
        torch.testing.assert_close(value - start[parameter], mean, rtol=0, atol=1e-14)


# ---------------------------------------------------------------------- everywhere the same, and refusals


@pytest.mark.parametrize(
    "part",
    [
        fs.Multipliers(0.5), pytest.param(fs.Dynamic(0.5), marks=pytest.mark.slow),
        pytest.param(fs.Splitting(0.5), marks=pytest.mark.slow),
    ],
    ids=["FedADMM", "FedDyn", "FedSplit"],
)  # fmt: skip
def test_the_same_in_every_engine_and_process(part: fs.Part) -> None:
    """One at a time; of the others the contracts say nearly all of it."""
    check_part(part)


REFUSED: list[tuple[Any, str]] = [
    (lambda: fs.methods.feddyn(alpha=0.0), "positive"),
    (lambda: fs.methods.feddyn(alpha=20.0, lr=0.1), "overshoots"),
    (lambda: fs.methods.feddyn(replacement=True), "drawn twice"),
    (lambda: fs.methods.feddyn(codec="sign"), "behind its back"),
    (lambda: fs.methods.feddyn(codec="int8"), "behind its back"),
    (lambda: fs.methods.feddyn(secure="union:0.5"), "behind its back"),
    (lambda: fs.methods.feddyn(normalise=True), "behind its back"),
    (lambda: fs.methods.feddyn(dp="local:clip=1,noise=1"), "behind its back"),
    (lambda: fs.methods.feddyn(variates="II"), "is what it is"),
    (lambda: fs.methods.feddyn(personal="last"), "own parameters do not"),
    (lambda: fs.methods.sampled_heat(variates="dynamic:0.1"), "sampled holders"),
    (lambda: fs.methods.fedavg(variates="admm:0.1"), "heat correction"),
    (lambda: fs.methods.fedsubavg(variates="admm:0.1", temper=0.5), "heat correction"),
    (lambda: fs.methods.fedadmm(server_lr=0.5), "server_lr=1"),
    (lambda: fs.methods.fedadmm(server="adam"), "server_lr=1"),
    (lambda: fs.methods.fedadmm(clip_rows=1.0), "ClipRows"),
    (lambda: fs.methods.fedsplit(relax=1.5), "at most 1"),
    (lambda: fs.methods.fedsplit(relax=0.0), "positive"),
    (lambda: fs.methods.scaffold(option="dynamic:0.1"), "I:1"),
]


@pytest.mark.parametrize(("make", "said"), REFUSED)
def test_what_makes_no_sense_is_refused(make: Any, said: str) -> None:
    with pytest.raises(MethodError, match=said):
        make()


def test_two_parts_that_bend_steps_are_refused() -> None:
    parts = (fs.ControlVariates(), fs.Dynamic())
    with pytest.raises(MethodError, match="ControlVariates and Dynamic"):
        fs.Method(local=fs.SGD(), parts=parts, average=fs.OverClients(), server=fs.Add(), sampler=fs.Everyone())
