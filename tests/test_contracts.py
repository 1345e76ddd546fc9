"""One contract for every named method: whatever is added to the catalogue is tested here.

Engines are compared with each other, and methods at their own defaults with formulas in numpy (`reference`).
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference import EXACT, TOLERANCE, Settings, assert_close, play, simulate, start_of
from worlds import click_data, composed, equal

import fedsub as fs
from fedsub.disk.files import JsonLines

DATA = click_data()
ROUNDS = 4
WAYS = {
    "steps": {"local_steps": 3, "batch_size": 4},
    "epochs": {"local_epochs": 1, "batch_size": 3, "batches": "ordered"},
    "all data": {"local_steps": 2, "batch_size": None},
    "replacement": {"local_steps": 3, "batch_size": 4, "batches": "replacement", "replacement": True},
    "everyone": {"local_steps": 2, "batch_size": 4, "clients_per_round": None},
}


def arguments(name: str, way: str) -> dict:
    """The settings of ``way`` that the method takes."""
    entry = fs.methods.CATALOGUE[name]
    known = entry.defaults
    asked = {"lr": 0.3, "clients_per_round": 4, "candidates": 6, **WAYS[way]}
    if name in MIXTURES:  # constants given: an estimate of them is not the same to the last digit in both engines
        asked |= {"lam": 10.0, "L": 5.0, "L_terms": 5.0, "mu": 0.1}
        asked |= {"p": 0.5}
    if name in ("power_of_choice", "ucb_cs"):
        asked |= {"clients_per_round": 4, "replacement": False}
    if name == "centralsgd":  # its batch is a product of two numbers, so both must be given
        asked |= {"batch_size": asked["batch_size"] or 5, "clients_per_round": asked["clients_per_round"] or 4}
    return {k: v for k, v in asked.items() if k in known}


# Every client takes part in every iteration; it may average only (no loss) or train only (no bytes).
MIXTURES = tuple(n for n, e in fs.methods.CATALOGUE.items() if isinstance(e.make(), fs.mixture.Mixture))
STEADY = ("local_sgd", "lgd", "apgd1", "apgd2", "iapgd")  # nothing is drawn


class Halt(fs.Callback):
    def on_round(self, record) -> None:
        if record["round"] == 3:
            raise InterruptedError


# The way of working is the business of the local solver: all ways for the first methods, two for those that
# differ elsewhere.
FIRST = ("fedavg", "fedsubavg", "fedprox", "fedsgd", "local_sgd", "centralsgd", "sampled_heat")
ANY_MODEL = [name for name, entry in fs.methods.CATALOGUE.items() if entry.model is None]
CASES = [(n, w) for n in ANY_MODEL for w in WAYS if n in FIRST or w == "steps" or (w == "epochs" and n not in MIXTURES)]


@pytest.mark.parametrize(("name", "way"), CASES)
def test_contract(name: str, way: str, tmp_path: Path) -> None:
    method = fs.methods.make(name, **arguments(name, way))
    goal = fs.models.make_objective(DATA, "embedding", dim=3, hidden=4, seed=1)
    start = {n: p.detach().clone() for n, p in goal.module.named_parameters()}
    engines = ["serial"] if method.pooled else ["serial", "batched"]
    done = {}
    common: dict[str, Any] = {
        "method": method, "objective": goal, "clients": DATA, "rounds": ROUNDS,
        "evaluate": fs.Evaluate(every=2), "checkpoint_every": 2,
    }  # fmt: skip
    for engine in engines:
        out, options = tmp_path / engine, {**common, "engine": engine, "seed": 6}
        result = done[engine] = fs.run(out=out, **options)
        assert result.engine == engine, result.events
        # It learns something finite, and every parameter takes part, but those that stay with the clients.
        private = method.private(list(start)) if isinstance(method, fs.Method) else ()
        for parameter, value in result.params.items():
            assert torch.isfinite(value).all(), parameter
            assert torch.equal(value, start[parameter]) == (parameter in private), parameter
        assert all(np.isfinite(r["loss"]) or (name in MIXTURES and r["down"]) for r in result.history[1:])
        assert len(result.history) == ROUNDS + 1
        # Killed after the third round and resumed from the second, it is the same run.
        with pytest.raises(InterruptedError):
            fs.run(out=tmp_path / "again", callbacks=[Halt()], **options)
        again = fs.run(out=tmp_path / "again", resume=True, **options)
        assert equal(again.params, result.params)
        for file in ("metrics.jsonl", "traffic.jsonl"):
            assert (tmp_path / "again" / file).read_bytes() == (out / file).read_bytes()
        (tmp_path / "again").rename(tmp_path / f"again-{engine}")
        # The bytes of the history are those of the clients, one by one.
        traffic = JsonLines.read(out / "traffic.jsonl")
        for record, row in zip(result.history[1:], traffic, strict=True):
            assert row["round"] == record["round"]
            assert sum(row["down"]) + sum(row.get("probe_down", [])) == record["down"]
            assert sum(row["up"]) + sum(row.get("probe_up", [])) == record["up"]
            assert len(row["clients"]) == record["clients"]
            assert (record["down"] == 0) == method.pooled or name in MIXTURES
    # Another seed is another run (where anything is random), the same seed the same.
    other = fs.run(**common, seed=7, engine="serial").params
    random = way not in ("epochs", "all data", "everyone") and name not in STEADY
    if random:
        assert not equal(other, done["serial"].params)
    if len(engines) == 2:
        for parameter, value in done["serial"].params.items():
            gap = float((value - done["batched"].params[parameter]).abs().max())
            assert gap <= 1e-5 * ROUNDS * float(value.abs().max()), parameter
        ours = [r["loss"] for r in done["serial"].history[1:]]
        theirs = [r["loss"] for r in done["batched"].history[1:]]
        assert ours == pytest.approx(theirs, rel=1e-4, nan_ok=True)


# What a method is by its own defaults: over whom its mean is, and what its server does.
PLAIN = Settings(average="samples", server_lr=1.0)
HOLDERS = replace(PLAIN, average="holders by samples")
ADAM = {"server": "adam", "server_lr": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3}
ADAGRAD = {"server": "adagrad", "server_lr": 0.1, "beta1": 0.0, "tau": 1e-3}
FORMULAS = {
    "fedavg": PLAIN,
    "fedsubavg": HOLDERS,  # (W/W_m) Σ w_i Δ_i / Σ w_i
    "fedprox": replace(PLAIN, mu=0.01),
    "fedsgd": replace(PLAIN, steps=1, batch_size=None),
    "local_sgd": replace(PLAIN, average="clients", steps=3),
    "sampled_heat": replace(PLAIN, average="sampled holders"),
    "scaffold": replace(PLAIN, scaffold=True),
    "fednova": replace(PLAIN, nova=True),
    "fedavgm": replace(PLAIN, server="momentum", server_momentum=0.9),
    "fedadam": replace(PLAIN, **ADAM),
    "fedyogi": replace(PLAIN, **{**ADAM, "server": "yogi"}),
    "fedadagrad": replace(PLAIN, **ADAGRAD),
    "fedsubadam": replace(HOLDERS, **ADAM),
    "fedsubadagrad": replace(HOLDERS, **ADAGRAD),
    "power_of_choice": replace(PLAIN, average="clients"),  # the plain mean over the chosen
    "ucb_cs": replace(PLAIN, average="clients"),
    "centralsgd": replace(PLAIN, steps=3, batch_size=16),
}
# Beyond the simulator; their own tests have closed forms.
ELSEWHERE = {
    "scaffold_server", "frequency_aware", "signsgd", "ef_signsgd", "fedper", "feddyn", "fedadmm", "fedsplit", "fsvrg",
}  # fmt: skip


def ordered(name: str) -> dict:
    """Settings with which nothing is random but who takes part."""
    asked = {
        "lr": 0.3, "batch_size": 4, "batches": "ordered", "clients_per_round": 4, "candidates": 6,
        "local_steps" if name in ("local_sgd", "centralsgd") else "local_epochs": 3 if "sgd" in name else 1,
    }  # fmt: skip
    if name == "fedsgd":
        asked |= {"batch_size": None}
    known = fs.methods.CATALOGUE[name].defaults
    return {k: v for k, v in asked.items() if k in known}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_method_is_its_formula(name: str, tmp_path: Path) -> None:
    world, method = EXACT, composed(fs.methods.make(name, **ordered(name)))
    # By engines taking turns: that they agree is said above.
    engine = "batched" if len(name) % 2 and not method.pooled else "serial"
    found, cohorts = play(world, method, tmp_path / "run", ROUNDS, engine=engine)
    if method.pooled:
        world, cohorts = replace(world, offsets=world.offsets[[0, -1]]), [[0]] * ROUNDS
    elif name == "local_sgd":
        assert all(cohort == list(range(len(world.sizes))) for cohort in cohorts)
    else:
        assert all(len(cohort) == 4 for cohort in cohorts)
        assert any(len(set(world.sizes[cohort])) > 1 for cohort in cohorts)
    assert_close(found, simulate(world, start_of(world.objective()), FORMULAS[name], cohorts), TOLERANCE)


def test_every_composition_has_a_formula() -> None:
    composed = {n for n, e in fs.methods.CATALOGUE.items() if isinstance(e.make(), fs.Method)}
    assert composed == set(FORMULAS) | ELSEWHERE


@pytest.mark.parametrize("name", fs.methods.CATALOGUE)
def test_the_catalogue_is_complete(name: str) -> None:
    entry = fs.methods.CATALOGUE[name]
    method = entry.make()
    assert method.name == name
    assert entry.title
    assert entry.summary
    assert entry.formula
    assert entry.paper
    assert method.describe()["name"] == name
    assert entry.make.__doc__
    assert all(v is not inspect.Parameter.empty for v in entry.defaults.values())


def test_names_and_arguments_are_checked() -> None:
    named: Any = fs.methods.make("FedSubAvg", lr=0.2)
    assert named.local.lr == 0.2
    assert fs.methods.make("local-sgd").name == "local_sgd"
    with pytest.raises(fs.errors.ConfigError, match="did you mean 'fedavg'"):
        fs.methods.make("fedavgg")
    with pytest.raises(fs.errors.ConfigError, match="did you mean 'local_steps'"):
        fs.methods.make("fedavg", local_step=3)
