"""λ chosen on held-out data: the path of a module, what is kept of it, and what is refused."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from worlds import bag, item_data

import fedsub as fs
from fedsub.data.convex import generate_logistic
from fedsub.errors import CheckpointError, ConfigError, MethodError, NoUsableClient
from fedsub.study.lambdas.choose import Watcher, choose_lambda

DATA = generate_logistic(clients=6, samples=20, dim=3, seed=3)
TRAIN, HELD_OUT = DATA.split(0.6, seed=0)
LAMS = [0.02, 0.3, 4.0]


def linear(l2: float = 0.05) -> fs.Objective:
    return fs.models.make_objective(TRAIN, "linear", l2=l2, bias=True)


def choose(**options: Any):
    settings: dict[str, Any] = {"lams": LAMS} | options
    return choose_lambda(linear(), TRAIN, HELD_OUT, **settings)


class Stop(Watcher):
    def __init__(self, points: int):
        self.left = points

    def on_point(self, point: dict[str, Any]) -> None:
        self.left -= 1
        if not self.left:
            raise InterruptedError


def newton(l2: float, lam: float) -> np.ndarray:
    """x(λ) of logistic regression with a bias, [n, d + 1], by Newton's method on all clients at once."""
    n, d = len(TRAIN), 4
    parts = []
    for i in range(n):
        rows = slice(int(TRAIN.offsets[i]), int(TRAIN.offsets[i + 1]))
        a = TRAIN.column("features").values[rows].astype(np.float64)
        parts.append((np.c_[a, np.ones(len(a))], TRAIN.column("label").values[rows].astype(np.float64)))
    centre = np.kron(np.eye(n) - np.ones((n, n)) / n, np.eye(d))
    x = np.zeros(n * d)
    for _ in range(50):
        gradient, hessian = lam * centre @ x, lam * centre
        for i, (a, y) in enumerate(parts):
            at = slice(i * d, (i + 1) * d)
            s = 1 / (1 + np.exp(-a @ x[at]))
            gradient[at] += a.T @ (s - y) / len(y) + l2 * x[at]
            hessian[at, at] += a.T @ (a * (s * (1 - s))[:, None]) / len(y) + l2 * np.eye(d)
        x = x - np.linalg.solve(hessian, gradient)
    return x.reshape(n, d)


def test_points_are_those_of_newtons_method(tmp_path: Path):
    found = choose(tolerance=1e-5, out=tmp_path / "path", test=HELD_OUT)
    assert [p["lam"] for p in found.points] == [0.0, *LAMS, math.inf]
    assert not found.unfinished
    local, far = newton(0.05, 0.0), newton(0.05, 1e6)
    for point in found.points:
        x = newton(0.05, min(point["lam"], 1e6))
        assert point["to_local"] == pytest.approx(np.sqrt(((x - local) ** 2).sum(1).mean()), abs=2e-4)
        assert point["to_global"] == pytest.approx(np.sqrt(((x - far) ** 2).sum(1).mean()), abs=2e-4)
        assert point["psi"] == pytest.approx(((x - x.mean(0)) ** 2).sum(1).mean() / 2, abs=1e-4)
    f, psi = ([p[key] for p in found.points] for key in ("f", "psi"))
    assert (np.diff(f) > -1e-6).all()
    assert (np.diff(psi) < 1e-6).all()
    # Chosen by the smallest validation loss; here the test part is the validation part.
    losses = [p["validation.ce"] for p in found.points]
    assert found.best["validation.ce"] == min(losses)
    assert found.test["chosen"]["ce"] == pytest.approx(min(losses))
    assert found.test["local"]["ce"] == pytest.approx(losses[0])
    assert found.test["global"]["ce"] == pytest.approx(losses[-1])
    # Table, JSON and picture.
    rows = list(csv.DictReader((tmp_path / "path" / "path.csv").open()))
    assert [float(r["lam"]) for r in rows] == [p["lam"] for p in found.points]
    assert json.loads((tmp_path / "path" / "path.json").read_text())["chosen"] == found.chosen
    assert (tmp_path / "path" / "path.png").read_bytes().startswith(b"\x89PNG")
    # No more models are kept than are needed to go on.
    assert len(list((tmp_path / "path" / "checkpoints").iterdir())) <= 4


def test_validation_loss_is_that_of_the_personal_models():
    found = choose(tolerance=1e-5)
    x = newton(0.05, LAMS[0])
    losses = []
    for i, name in enumerate(TRAIN.client_ids):
        own = np.flatnonzero(HELD_OUT.clients_of(np.arange(HELD_OUT.samples)) == list(HELD_OUT.client_ids).index(name))
        a, y = HELD_OUT.column("features").values[own], HELD_OUT.column("label").values[own]
        z = a @ x[i, :3] + x[i, 3]
        losses += (np.logaddexp(0, z) - y * z).tolist()
    assert found.points[1]["validation.ce"] == pytest.approx(np.mean(losses), abs=1e-4)


def test_an_interrupted_path_goes_on_with_the_same_numbers(tmp_path: Path):
    whole = choose(out=tmp_path / "whole")
    for after in (1, 1, 2):
        with pytest.raises(InterruptedError):
            choose(out=tmp_path / "broken", watch=Stop(after), resume=True)
    with pytest.raises(CheckpointError, match="--resume"):
        choose(out=tmp_path / "broken")
    again = choose(out=tmp_path / "broken", resume=True)
    assert again.points == whole.points
    assert (tmp_path / "broken/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()


def test_a_damaged_checkpoint_costs_the_points_after_the_one_before(tmp_path: Path):
    whole = choose(out=tmp_path / "o")
    newest = max((tmp_path / "o/checkpoints").glob("*.safetensors"))
    for damaged in ([newest], list((tmp_path / "o/checkpoints").iterdir())):
        for file in damaged:
            file.write_bytes(b"gone")
        seen = Stop(100)
        again = choose(out=tmp_path / "o", resume=True, watch=seen)
        assert again.points == whole.points
        assert 100 - seen.left == (1 if len(damaged) == 1 else len(whole.points))
    assert "from its beginning" in (tmp_path / "o/events.jsonl").read_text()


def test_a_path_may_grow_and_models_that_are_not_kept_are_made_again(tmp_path: Path):
    first = choose(out=tmp_path / "o", lams=[0.3])
    wider = choose(out=tmp_path / "o", lams=LAMS, resume=True, metric="accuracy", test=HELD_OUT)
    assert [p["lam"] for p in wider.points] == [0.0, *LAMS, math.inf]
    assert wider.points[2] == first.points[1]
    assert wider.test["chosen"]["accuracy"] == max(p["validation.accuracy"] for p in wider.points)
    with pytest.raises(CheckpointError, match="tolerance"):
        choose(out=tmp_path / "o", resume=True, tolerance=1e-3)


def test_iterations_of_a_method_are_those_of_a_run():
    """Every λ starts from the beginning, so a point is what `run` trains."""
    method = fs.methods.l2sgd_plus(batch_size=4)
    found = choose_lambda(linear(0.0), TRAIN, HELD_OUT, lams=LAMS, method=method, rounds=30, seed=2)
    assert found.tolerance is None
    assert {p["iterations"] for p in found.points} == {30}
    for lam, point in zip((0.0, *LAMS), found.points, strict=False):
        trained = fs.run(
            fs.methods.l2sgd_plus(batch_size=4, lam=lam), linear(0.0), TRAIN, rounds=30, seed=2,
            splits={"validation": HELD_OUT},
        ).history[-1]  # fmt: skip
        assert point["validation.ce"] == trained["validation.ce"]
        assert point["communications"] == trained["mixture.communications"]
        assert point["psi"] == pytest.approx(trained["mixture.psi"])


def test_one_model_for_all_by_stochastic_steps_is_near_the_exact_one():
    exact = choose(lams=[1.0])
    method = fs.methods.l2sgd_plus(batch_size=4)
    found = choose_lambda(linear(), TRAIN, HELD_OUT, lams=[1.0], method=method, rounds=400)
    assert found.points[-1]["psi"] < 1e-10
    assert found.points[-1]["f"] == pytest.approx(exact.points[-1]["f"], rel=0.02)
    assert found.points[-1]["method"] == "together"


def test_submodels_have_a_path_too():
    clients = item_data((7, 4, 9, 5, 8), items=9)
    train, held_out = clients.split(0.7, seed=1)
    objective = fs.Objective(
        fs.models.make_objective(train, "lr", seed=0).module, fs.losses.binary("label"),
        fs.models.make_objective(train, "lr", seed=0).tables, l2=0.05,
    )  # fmt: skip
    found = choose_lambda(objective, train, held_out, lams=[0.01, 0.1, 1.0], tolerance=1e-5)
    assert (np.diff([p["f"] for p in found.points]) > -1e-6).all()
    assert (np.diff([p["psi"] for p in found.points]) < 1e-6).all()
    assert found.points[-1]["psi"] < 1e-10


def test_what_cannot_be_traced_says_what_to_do():
    clients = item_data((6, 5, 7), items=8)
    with pytest.raises(MethodError, match=r"mu is 0.*--l2.*--mu.*--method l2sgd\+ --rounds"):
        choose_lambda(linear(0.0), TRAIN, HELD_OUT)
    with pytest.raises(MethodError, match=r"not convex.*--method l2sgd\+ --rounds"):
        choose_lambda(replace(bag(clients, dim=4, dtype=torch.float64), l2=0.01), clients, clients)
    with pytest.raises(ConfigError, match="belong together"):
        choose(rounds=3)
    with pytest.raises(ConfigError, match="with a lam"):
        choose(method=fs.methods.lgd(), rounds=3)
    with pytest.raises(ConfigError, match="did you mean 'accuracy'"):
        choose(metric="acuracy")
    with pytest.raises(ConfigError, match="1 to 1000"):
        choose(lams=0)
    with pytest.raises(MethodError, match="got -1"):
        choose(lams=[-1.0])
    with pytest.raises(NoUsableClient, match="larger L, or a smaller alpha"):
        choose(method=fs.methods.l2gd(alpha=1e6, p=0.5), rounds=200, lams=[1e-9])
