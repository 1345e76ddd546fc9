"""The linear model and the objective's L2 term: closed forms, both engines, settings."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner
from worlds import bag, item_data, shared_model, there, trainer_for

import fedsub as fs
from fedsub import data
from fedsub.cli import app
from fedsub.cli.options import Flags
from fedsub.cli.what import experiment
from fedsub.errors import ConfigError, ObjectiveError
from fedsub.methods import fedavg, scaffold
from fedsub.objective.models import make_objective
from fedsub.study.experiment import tasks
from fedsub.study.experiment.config import parse

L2 = 0.3


def problem(kind: str = "logistic", **options):
    shape = {"clients": 4, "samples": 8, "dim": 3} | options  # the weight of a sample, 1/8, is exact in float32
    make = data.generate_logistic if kind == "logistic" else data.generate_least_squares
    clients = make(**shape)
    return clients, clients.columns["features"].values.astype(float), clients.columns["label"].values.astype(float)


def in_double(objective: fs.Objective) -> fs.Objective:
    objective.module.double()
    return objective


def started(objective: fs.Objective, seed: int = 0) -> fs.Objective:
    """The same at a point that is not zero, where the L2 term pulls."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for p in objective.module.parameters():
            p.copy_(torch.randn_like(p))
    return objective


def after_a_round(method, objective, clients, engine):
    trainer = trainer_for(method, objective, clients, engine)
    trainer.round(1)
    return shared_model(trainer, 1)


# One step against the formula ----------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["serial", "batched"])
@pytest.mark.parametrize("loss", ["binary", "squared"])
def test_a_step_is_the_regularised_gradient(engine, loss):
    clients, a, y = problem("logistic" if loss == "binary" else "least squares")
    objective = started(in_double(make_objective(clients, "linear", loss=loss, l2=L2)))
    start = objective.module.get_parameter("weight").detach().numpy()
    method = fedavg(clients_per_round=None, local_steps=1, batch_size=None, lr=0.5)
    found = after_a_round(method, objective, clients, engine)["weight"].numpy()
    z = a @ start
    slope = 1 / (1 + np.exp(-z)) - y if loss == "binary" else z - y
    np.testing.assert_allclose(found, start - 0.5 * (a.T @ slope / len(y) + L2 * start), rtol=1e-10)


def test_gradient_descent_reaches_ridge_regression():
    clients, a, y = problem("least squares", heterogeneity=2.0)
    objective = in_double(make_objective(clients, "linear", loss="squared", l2=L2))
    ridge = np.linalg.solve(a.T @ a / len(y) + L2 * np.eye(3), a.T @ y / len(y))
    method = fedavg(clients_per_round=None, local_steps=1, batch_size=None, lr=0.4)
    result = fs.run(method, objective, clients, rounds=150, engine="batched")
    np.testing.assert_allclose(result.params["weight"].numpy(), ridge, atol=1e-10)
    # What is reported is the plain loss.
    assert result.history[-1]["train.loss"] == pytest.approx(0.5 * ((a @ ridge - y) ** 2).mean(), rel=1e-12)


def test_bias_and_classes_have_their_shapes():
    clients = data.bundled("iris", clients=3)
    objective = make_objective(clients, "linear", loss="cross_entropy", bias=True)
    assert {n: tuple(p.shape) for n, p in objective.module.named_parameters()} == {"weight": (4, 3), "bias": (3,)}
    assert not any(p.any() for p in objective.module.parameters())
    assert objective.l2 == 0


# The L2 term in both engines -----------------------------------------------------------------------


@pytest.mark.parametrize("make", [fedavg, scaffold])
@pytest.mark.parametrize("options", [{}, {"bias": True, "loss": "cross_entropy"}])
def test_engines_agree_on_dense_features(make, options):
    clients, _, _ = problem(samples=7)
    method = make(clients_per_round=3, local_steps=4, batch_size=4, lr=0.2)
    serial, batched = (
        after_a_round(method, started(in_double(make_objective(clients, "linear", l2=L2, **options))), clients, e)
        for e in ("serial", "batched")
    )
    for name, value in serial.items():
        torch.testing.assert_close(batched[name], value, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_l2_is_weight_decay_of_the_rows_a_client_holds(engine):
    """SGD with weight_decay takes the same steps; rows of S(i) that a batch does not name shrink as well."""
    clients = item_data()
    local: dict[str, Any] = {"clients_per_round": 9, "local_steps": 3, "batch_size": 2, "lr": 0.2}
    method, decayed = fedavg(**local), fedavg(weight_decay=L2, **local)
    plain = started(bag(clients, dtype=torch.float64))
    expected = after_a_round(decayed, plain, clients, "serial")
    found = after_a_round(method, replace(plain, l2=L2), clients, engine)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-12)


def test_scaffolds_full_gradient_has_the_l2_term():
    clients, a, y = problem("least squares")
    objective = in_double(make_objective(clients, "linear", loss="squared", l2=L2))
    ridge = np.linalg.solve(a.T @ a / len(y) + L2 * np.eye(3), a.T @ y / len(y))
    for variates in ("I", "II"):
        method = scaffold(clients_per_round=None, local_steps=5, batch_size=None, lr=0.1, option=variates)
        result = fs.run(method, objective, clients, rounds=200)
        np.testing.assert_allclose(result.params["weight"].numpy(), ridge, atol=1e-12)


# Settings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("l2", [-1.0, float("nan"), float("inf"), "1", True])
def test_l2_is_checked(l2):
    clients, _, _ = problem()
    with pytest.raises(ObjectiveError, match="l2 must be a finite number"):
        replace(make_objective(clients, "linear"), l2=l2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "hinge"}, "no loss 'hinge'"),
        ({}, 'holds .*, so the model "linear" must be told its loss'),
    ],
)
def test_losses_are_checked(options, message):
    clients, _, _ = problem("least squares")
    with pytest.raises(ConfigError, match=message):
        make_objective(clients, "linear", **options)


def test_features_are_needed():
    with pytest.raises(ConfigError, match="needs plain columns as features"):
        make_objective(item_data(), "linear")


def test_l2_of_an_objective_of_your_own_is_its_own():
    with pytest.raises(ConfigError, match=r"give your own objective Objective\(…, l2=…\)"):
        parse({"model": {"objective": "file:make", "l2": 0.1}})
    with pytest.raises(ConfigError, match=r"model\.l2 is -1"):
        parse({"model": {"l2": -1.0}})


# Command line --------------------------------------------------------------------------------------


def call(*words: str):
    return CliRunner().invoke(app, list(words))


def test_run_a_libsvm_file(tmp_path):
    file, out = tmp_path / "tiny.libsvm", tmp_path / "out"
    draw = np.random.default_rng(0)
    file.write_text("".join(f"{2 * (x > 0) - 1} 1:{x:.3f} 2:{y:.3f}\n" for x, y in draw.normal(size=(60, 2))))
    options = ("--set", "data.options.clients=4", "--set", "data.options.split=uniform")
    done = call("run", str(file), "--method", "fedavg", "--rounds", "3", "--out", str(out), *options, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["runs"][0]["rounds"] == 3
    made = json.loads((out / "compare.json").read_text())["config"]
    assert (made["task"], made["data"]["options"]) == ("libsvm", {"clients": 4, "split": "uniform"})
    assert made["model"] == {"kind": "linear", "bias": True, "l2": 0.001}
    assert made["data"]["path"] == str(file)


@pytest.mark.parametrize("name", [name for name in tasks.CONVEX if name != "libsvm"])
def test_tasks_train(name):
    made = experiment(name, Flags(set=["data.options.clients=5"]), ["fedavg"])
    train, test = made.parts()
    assert (len(train), len(there(test))) == (5, 5)
    objective = made.objective(train)(0)
    assert objective.l2 == made.config.model.l2
    (method,) = made.methods(len(train)).values()
    result = fs.run(method, objective, train, test=test, rounds=5, engine="serial")
    first, last = result.history[0], result.history[-1]
    metric = "train.loss" if "train.loss" in first else "train.ce"
    assert last[metric] < first[metric]


def test_a_saved_directory_is_opened(tmp_path):
    clients = data.bundled("wine", clients=3)
    clients.save(tmp_path / "wine")
    found = experiment("wine", Flags(data=str(tmp_path / "wine")), ["fedavg"]).clients()
    assert found.fingerprint == clients.fingerprint


def test_a_libsvm_file_in_a_configuration_needs_its_task(tmp_path):
    (tmp_path / "a.libsvm").write_text("1 1:1\n-1 1:2\n")
    (tmp_path / "study.toml").write_text('[data]\npath = "a.libsvm"\n')
    with pytest.raises(ConfigError, match='add task = "libsvm"'):
        experiment(str(tmp_path / "study.toml"), Flags(), ["fedavg"]).clients()
    (tmp_path / "study.toml").write_text('task = "libsvm"\n[data]\npath = "a.libsvm"\noptions = { clients = 2 }\n')
    made = experiment(str(tmp_path / "study.toml"), Flags(), ["fedavg"])
    assert len(made.clients()) == 2
    assert made.name == "a"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("none.libsvm",), "There is no file none.libsvm"),
        (("libsvm",), "needs a file; name it with --data FILE"),
        (("iris", "--scale", "2"), "sized by its options"),
        (("iris", "--data", "."), "needs no data from disk"),
        (("iris", "--set", "data.options.client=3"), "did you mean 'clients'"),
        (("iris", "--set", "data.options.clients=0"), "clients=0: expected a whole number, 1 or more"),
        (("iris", "--set", "data.options.split=srted"), "did you mean 'sorted'"),
        (("diabetes", "--set", "model.loss=binary"), "needs labels 0 and 1"),
        (("diabetes", "--target", "test.auc>=0.9"), "is about 'test.auc'"),
    ],
)
def test_mistakes_on_the_command_line(words, message, tmp_path):
    done = call("run", *words, "--method", "fedavg", "--out", str(tmp_path / "out"))
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())
    assert not (tmp_path / "out" / "compare.json").exists() or "labels" in message
