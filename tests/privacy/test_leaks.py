"""What a curious server makes of updates, against closed forms: nothing here trusts a second engine of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner
from worlds import bag, click_data, item_data

import fedsub as fs
from fedsub.cli import app
from fedsub.errors import ConfigError, MethodError
from fedsub.objective.problem import Problem
from fedsub.study.leaks import COLUMNS, attack, moved, rebuild, residuals, watch
from fedsub.study.leaks.words import settings_of

LR = 0.2
STEP = {"lr": LR, "local_steps": 1, "clients_per_round": None}


class Net(nn.Module):
    def __init__(self, width: int, hidden: int = 8, outputs: int = 1):
        super().__init__()
        self.a, self.b = nn.Linear(width, hidden), nn.Linear(hidden, outputs)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        out = self.b(torch.tanh(self.a(batch["x"].to(self.a.weight.dtype))))
        return out.squeeze(-1) if out.shape[1] == 1 else out


class Linear(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        torch.manual_seed(1)
        self.out = nn.Linear(width, 1)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.out(batch["x"]).squeeze(-1)


def numbers(samples: int = 60, width: int = 6, each: int = 10, classes: int = 2) -> fs.Clients:
    draw = np.random.default_rng(3)
    x = (draw.normal(size=(samples, width)) * 2 + 1).astype(np.float32)
    label = draw.integers(0, classes, samples)
    offsets = np.arange(0, samples + 1, each)
    return fs.Clients.from_arrays({"x": x, "label": label}, offsets=offsets, ids=[], label="label", values=["x"],
                                 binary_label=classes == 2)  # fmt: skip


def dense(module: nn.Module, clients: fs.Clients, loss: Any = None) -> Problem:
    return Problem.bind(fs.Objective(module, loss or fs.losses.binary("label")), clients)


def net(width: int = 6, outputs: int = 1) -> Net:
    torch.manual_seed(1)
    return Net(width, outputs=outputs)


def test_one_step_of_logistic_regression_tells_its_rows_and_its_label_by_sign() -> None:
    clients = fs.movielens_like(scale=0.01)
    problem = Problem.bind(fs.models.make_objective(clients, "lr", bias=False), clients)
    labels = clients.columns["label"].values
    seen = watch(fs.methods.fedavg(batch_size=1, **STEP), problem, seed=4)
    assert len(seen) == len(clients)
    for one in seen[:10]:
        (sample,) = one.samples
        global_ids = clients.gather(one.samples, local=False)
        sign = 2.0 * float(labels[sample]) - 1
        for space in problem.spaces.values():
            ids = np.unique(np.concatenate([global_ids[c].reshape(-1) for c in space.columns]))
            assert one.changed[space.name].tolist() == ids.tolist() == one.used[space.name].tolist()
            assert one.named[space.name].tolist() == one.held[space.name].tolist()
        for name, value in one.update.items():
            if name in problem.tables:
                moves = value[value != 0]
                assert len(moves)
                assert torch.allclose(moves, torch.full_like(moves, LR * 0.5 * sign))
        guess = residuals(problem, one)
        assert guess is not None
        assert guess.right.all()
        assert guess.scores[0, 0] == pytest.approx(LR * 0.5 * sign, rel=1e-5)
        assert guess.before[0, 0] == 0


@pytest.mark.parametrize("batch", [3, None])
def test_residuals_of_a_batch_are_those_of_its_loss(batch: int | None) -> None:
    clients = item_data(sizes=(6, 5, 4), items=200, width=2)
    objective = bag(clients, dtype=torch.float64)
    problem = Problem.bind(objective, clients)
    module = objective.module
    for one in watch(fs.methods.fedavg(batch_size=batch, **STEP), problem):
        data = clients.gather(one.samples, local=False)
        with torch.no_grad():
            p = torch.sigmoid(module({"ids": torch.from_numpy(data["ids"])})).numpy()
        guess = residuals(problem, one)
        assert guess is not None
        expected = LR / len(one.samples) * (data["label"] - p)  # η/n (y − p)
        np.testing.assert_allclose(guess.scores[:, 0], expected, rtol=1e-4)
        np.testing.assert_allclose(torch.sigmoid(torch.from_numpy(guess.before[:, 0])), p, rtol=1e-12)
        assert guess.right.all()
        assert guess.labels.tolist() == data["label"].tolist()


def test_classes_are_the_largest_residual() -> None:
    clients, classes = numbers(classes=4), 4
    module = net(outputs=classes)
    problem = dense(module, clients, fs.losses.cross_entropy("label"))
    for one in watch(fs.methods.fedavg(batch_size=2, **STEP), problem):
        x = torch.from_numpy(clients.gather(one.samples, ["x"], local=False)["x"])
        y = clients.columns["label"].values[one.samples].astype(int)
        with torch.no_grad():
            p = module({"x": x}).softmax(1).numpy()
        guess = residuals(problem, one)
        assert guess is not None
        np.testing.assert_allclose(guess.scores, LR / 2 * (np.eye(classes)[y] - p), atol=2e-4)
        assert guess.right.all()


def test_squared_losses_have_no_labels_to_guess() -> None:
    clients = numbers()
    problem = dense(net(), clients, fs.losses.squared("label"))
    (one, *_) = watch(fs.methods.fedavg(batch_size=2, **STEP), problem)
    assert residuals(problem, one) is None
    found = attack({"plain": fs.methods.fedavg(batch_size=1, **STEP)}, problem.objective, clients, after=0, seeds=[0],
                   rebuilds=1)  # fmt: skip
    assert set(found.rows[0]) == {"protection", "seed", "clients", "rebuilt.error"}


def test_looking_changes_nothing() -> None:
    """After two rounds the clients are sent what a run of two rounds ends with."""
    clients = fs.movielens_like(scale=0.01)
    objective = fs.models.make_objective(clients, "lr")
    method = fs.methods.fedsubavg(lr=LR, clients_per_round=8)
    params = fs.run(method, objective, clients, rounds=2).params
    problem = Problem.bind(objective, clients)
    for one in watch(method, problem, after=2, most=3):
        for name, space in problem.tables.items():
            rows = torch.from_numpy(space.rows_of(one.client).astype(np.int64))
            assert torch.equal(one.sent[name], params[name][rows])


def test_a_secure_sum_leaves_the_mean_of_rows_with_two_contributors() -> None:
    clients = fs.movielens_like(scale=0.01)
    problem = Problem.bind(fs.models.make_objective(clients, "lr"), clients)
    settings = {"lr": LR, "clients_per_round": 10}
    plain = watch(fs.methods.fedavg(**settings), problem)
    for rows in ("union", "clear"):
        summed = watch(fs.methods.fedavg(secure=f"{rows}:1", **settings), problem)
        assert [one.client for one in plain] == [one.client for one in summed]
        weights = clients.sizes[[one.client for one in plain]].astype(float)
        for name, space in problem.tables.items():
            total, held = np.zeros(space.size), np.zeros(space.size)
            for weight, one in zip(weights, plain, strict=True):
                mine = space.rows_of(one.client)
                total[mine] += weight / weights.sum() * one.update[name].numpy().reshape(len(mine), -1)[:, 0]
                held[mine] += 1
            total[held < 2] = 0
            union = np.flatnonzero(held)
            for one in summed:
                found = one.update[name].numpy().reshape(-1)
                np.testing.assert_allclose(found, total[space.rows_of(one.client)], atol=2e-3)
                expected = union if rows == "union" else space.rows_of(one.client)
                assert one.named[space.name].tolist() == expected.tolist()
                assert (held[one.changed[space.name]] >= 2).all()


def test_counts_of_rows_are_sums_by_hand() -> None:
    """Three clients with known rows; under signs every row of S(i) moves."""
    ids = np.array([[0], [1], [1], [2], [3], [3]])
    clients = fs.Clients.from_arrays(
        {"ids": ids, "label": [1, 0, 1, 0, 1, 0]}, offsets=[0, 2, 4, 6], ids=["ids"], label="label", sizes={"ids": 9}
    )
    methods = {
        "plain": fs.methods.fedavg(batch_size=1, **STEP),
        "sign": fs.methods.fedavg(batch_size=1, codec="sign", **STEP),
    }
    found = attack(methods, bag(clients), clients, after=0, seeds=[0], space="ids")
    plain, sign = found.rows
    assert plain["named.precision"] == plain["named.recall"] == plain["used.precision"] == plain["used.recall"] == 1
    assert plain["used.auc"] == 1  # of the two clients with two rows
    assert sign["used.precision"] == pytest.approx((0.5 + 0.5 + 1) / 3)
    assert sign["used.recall"] == 1
    assert sign["used.auc"] == 0.5


@pytest.mark.parametrize("module", [Linear(6), net()], ids=["linear", "net"])
def test_a_single_sample_is_rebuilt(module: nn.Module) -> None:
    clients = numbers()
    problem = dense(module, clients)
    one = watch(fs.methods.fedavg(batch_size=1, **STEP), problem, most=1)[0]
    names = ("out.weight", "out.bias") if isinstance(module, Linear) else ("a.weight", "a.bias")
    slopes, bias = one.update[names[0]].numpy(), one.update[names[1]].numpy()
    unit = int(np.abs(bias).argmax())
    closed = slopes[unit] / bias[unit]  # x = ∂ℓ/∂w / ∂ℓ/∂b of any unit (Phong et al., 2018)
    truth = clients.gather(one.samples, ["x"], local=False)["x"][0]
    np.testing.assert_allclose(closed, truth, rtol=1e-3)
    made = rebuild(problem, one)
    assert made is not None
    np.testing.assert_allclose(made.truth[0], truth, rtol=1e-6)
    np.testing.assert_allclose(made.values[0], truth, atol=1e-2)
    assert made.error < 1e-2
    assert made.mismatch < 1e-8
    if not isinstance(module, Linear):  # of which one number tells both the residual and the label
        assert made.labels[0] == pytest.approx(float(clients.columns["label"].values[one.samples[0]]), abs=1e-2)
    again = rebuild(problem, one)
    assert again is not None
    assert np.array_equal(made.values, again.values)


def test_several_small_steps_are_their_mean_gradient() -> None:
    """A client of one sample: three steps of 0.001 are three times the gradient of one, but for a thousandth."""
    clients = numbers(samples=6, each=1)
    problem = dense(net().double(), clients)
    (one, *_) = watch(fs.methods.fedavg(lr=1e-3, local_steps=3, batch_size=1, clients_per_round=None), problem)
    made = rebuild(problem, one)
    assert made is not None
    assert made.error < 1e-2
    assert made.mismatch < 1e-4  # a residual three times as long is no residual


def test_a_sign_tells_less_of_numbers_and_an_angle_is_enough() -> None:
    clients = numbers()
    module, step = net(), {**STEP, "batch_size": 1}
    problem = dense(module, clients)
    one = watch(fs.methods.fedavg(**step), problem, most=1)[0]
    by_angle = rebuild(problem, one, angle=True)
    assert by_angle is not None
    assert by_angle.error < 1e-2
    methods = {
        "plain": fs.methods.fedavg(**step), "sign": fs.methods.fedavg(codec="sign", **step),
        "noise": fs.methods.fedavg(dp="local:clip=1,noise=1", **step),
    }  # fmt: skip
    found = attack(methods, problem.objective, clients, after=0, seeds=[0], rebuilds=1)
    errors = {row["protection"]: row["rebuilt.error"] for row in found.rows}
    assert errors["plain"] < 1e-2
    assert min(errors["sign"], errors["noise"]) > 0.2


def test_too_many_samples_are_not_rebuilt_and_l2_is_known() -> None:
    clients = numbers(samples=150, each=75)
    many = watch(fs.methods.fedavg(batch_size=None, **STEP), problem := dense(net(), clients), most=1)[0]
    assert rebuild(problem, many) is None
    decayed = Problem.bind(fs.Objective(net(), fs.losses.binary("label"), l2=0.5), clients)
    one = watch(fs.methods.fedavg(batch_size=1, **STEP), decayed, most=1)[0]
    made = rebuild(decayed, one)
    assert made is not None
    assert made.error < 1e-2


def test_padding_histories_and_parameters_of_clients_own() -> None:
    clients = click_data()
    objective = fs.models.make_objective(clients, "embedding", dim=3)
    methods = {"plain": fs.methods.fedavg(**STEP, batch_size=2)}
    found = attack(methods, objective, clients, after=1, seeds=[0], rebuilds=0)
    row = found.rows[0]
    assert row["named.precision"] == row["named.recall"] == row["used.precision"] == 1
    problem = Problem.bind(objective, clients)
    one = watch(fs.methods.fedavg(**STEP, batch_size=2), problem)[0]
    assert len(moved(one.update, problem, "item")) == len(one.held["item"])  # padding, where there is one, left out
    with pytest.raises(MethodError, match="Nothing that is sent has rows of 'nowhere'"):
        moved(one.update, problem, "nowhere")
    own = {"own": fs.methods.fedavg(personal=["*bias*"], **STEP)}
    assert attack(own, objective, clients, after=1, seeds=[0], rebuilds=0).rows[0]["clients"] == len(clients)


def test_the_same_seed_gives_the_same_numbers_and_another_one_others() -> None:
    clients = fs.movielens_like(scale=0.01)
    objective = fs.models.make_objective(clients, "lr")
    methods = {"noise": fs.methods.fedavg(clients_per_round=8, dp="local:clip=1,noise=0.1")}
    found = attack(methods, objective, clients, after=1, seeds=[0, 1])
    assert found.rows == attack(methods, objective, lambda seed: clients, after=1, seeds=[0, 1]).rows
    first, second = found.rows
    assert first["labels.auc"] != second["labels.auc"]
    assert set(found.rows[0]) - {"protection", "seed"} <= set(COLUMNS)


def test_what_cannot_be_attacked_is_refused() -> None:
    clients = item_data()
    plain = {"plain": fs.methods.fedavg(**STEP)}
    for options, said in (
        ({"after": -1}, "after must be"), ({"most": 0}, "most must be"), ({"rebuilds": -1}, "rebuilds must be"),
        ({"space": "idz"}, "no rows of 'idz'.*ids"), ({"seeds": []}, "seeds is empty"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=said):
            attack(plain, bag(clients), clients, **{"after": 0, **options})
    with pytest.raises(ConfigError, match="No methods were given"):
        attack({}, bag(clients), clients)
    with pytest.raises(ConfigError, match="centralsgd has no rounds of clients"):
        attack({"pooled": fs.methods.centralsgd()}, bag(clients), clients)  # type: ignore[dict-item]


def test_words_are_settings() -> None:
    assert settings_of("none") == {}
    assert settings_of("steps:10+batch:all") == {"local_steps": 10, "batch_size": "all"}
    assert settings_of("topk:0.01") == {"codec": "topk:0.01"}
    assert settings_of("local:clip=1,noise=2+sign") == {"dp": "local:clip=1,noise=2", "codec": "sign"}
    assert settings_of("secure:0.5") == {"secure": "union:0.5"}
    assert settings_of("secure:clear:0.5") == {"secure": "clear:0.5"}
    assert settings_of("mu=0.1") == {"mu": 0.1}
    for words, said in (
        ("", "There is no protection"), ("noize", "There is no protection 'noize'"), ("steps:0", "whole number"),
        ("steps:all", "whole number"), ("sign+int8", "says codec twice"), ("batch:x", "batch:10"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=said):
            settings_of(words)


def test_the_command_shows_saves_and_prints_json(tmp_path: Path) -> None:
    call = ["privacy", "leaks", "movielens-like", "--scale", "0.01", "--after", "1", "-k", "8", "--seeds", "2"]
    done = CliRunner().invoke(app, [*call, "--protect", "none", "--protect", "secure:1", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "secure:1" in done.output
    assert "round 2 is attacked" in done.output
    kept = json.loads((tmp_path / "leaks.json").read_text())
    assert [(row["protection"], row["seed"]) for row in kept["rows"]] == [
        (word, seed) for seed in (0, 1) for word in ("none", "secure:1")
    ]
    assert (tmp_path / "leaks.png").stat().st_size > 10_000
    assert len((tmp_path / "leaks.csv").read_text().splitlines()) == 5
    told = CliRunner().invoke(app, [*call, "--protect", "none", "--json"])
    assert json.loads(told.stdout)["rows"][0]["labels.right"] == 1


def test_the_command_says_what_does_not_go_together(tmp_path: Path) -> None:
    call = ["privacy", "leaks", "movielens-like", "--scale", "0.01", "--after", "0", "-k", "5", "--attacked", "2"]
    usual = CliRunner().invoke(app, [*call, "-m", "fedsubavg", "--seed", "0"])
    assert usual.exit_code == 0, usual.output
    assert "Left out sign: " in usual.output
    assert "batch:50" in usual.output
    for more, said in (
        (["-m", "fedsubavg", "--protect", "sign"], "Sign moves by"), (["--protect", "nome"], "no protection 'nome'"),
        (["--protect", "none", "--protect", "none"], "stands there twice"), (["--space", "film"], "no rows of 'film'"),
        (["-m", "centralsgd", "--protect", "none"], "has no rounds of clients"),
    ):  # fmt: skip
        done = CliRunner().invoke(app, [*call, *more])
        assert done.exit_code != 0
        assert said in " ".join(done.output.replace("│", " ").split()), done.output


def test_an_own_model_may_stand_in_a_task_that_brings_settings_for_its_own() -> None:
    """The task's kind, bias and l2 are not the own objective's; the configuration of the page about leaks."""
    from fedsub.cli.options import Flags
    from fedsub.cli.what import experiment

    study = Path(__file__).parents[2] / "experiments/leaks_net.toml"
    made = experiment(str(study), Flags(), ["fedavg"])
    assert made.config.model.l2 is None
    objective = made.objective(made.parts()[0])(0)
    assert [tuple(p.shape) for p in objective.module.parameters()] == [(16, 30), (16,), (1, 16), (1,)]


def test_others_are_judged_by_the_rounds_mean() -> None:
    clients = fs.movielens_like(scale=0.01)
    problem = Problem.bind(fs.models.make_objective(clients, "lr"), clients)
    method = fs.methods.fedavg(lr=LR, clients_per_round=6)
    seen = watch(method, problem, others=4)
    there, others = ([one for one in seen if one.there is took] for took in (True, False))
    assert len(there) == 6
    assert len(others) == 4
    assert not {one.client for one in there} & {one.client for one in others}
    weights = clients.sizes[[one.client for one in there]] / clients.sizes[[one.client for one in there]].sum()
    for name, space in problem.tables.items():
        mean = torch.zeros(space.size, 1, dtype=torch.float64)
        for weight, one in zip(weights, there, strict=True):
            mean[torch.from_numpy(space.rows_of(one.client)).long()] += weight * one.update[name].reshape(-1, 1)
        for one in others:
            rows = torch.from_numpy(space.rows_of(one.client)).long()
            torch.testing.assert_close(one.update[name].reshape(-1, 1), mean[rows], rtol=0, atol=1e-7)
    row = attack({"plain": method}, problem.objective, clients, after=0, seeds=[0], most=6).rows[0]
    assert row["labels.right"] == 1 > row["others.right"]
    everyone = fs.methods.fedavg(lr=LR, clients_per_round=None)
    assert (
        "others.right" not in attack({"all": everyone}, problem.objective, clients, after=0, seeds=[0], most=2).rows[0]
    )


@pytest.mark.parametrize("after", [0, 1])
def test_a_round_that_takes_gradients_is_read_as_such(after: int) -> None:
    """FSVRG's odd rounds send ∇f_i in place of an update: the signs are the other way round."""
    clients = fs.movielens_like(scale=0.01)
    objective = fs.models.make_objective(clients, "lr")
    methods = {"fsvrg": fs.methods.fsvrg(lr=0.5, local_epochs=1, clients_per_round=6)}
    assert attack(methods, objective, clients, after=after, seeds=[0], most=6).rows[0]["labels.auc"] > 0.9
