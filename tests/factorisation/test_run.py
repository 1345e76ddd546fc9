"""FedMAvg and SFMF as methods of `fedsub.run`: personal vectors, bytes, checkpoints, lost clients, the command line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner
from worlds import envelope, equal

import fedsub as fs
from fedsub.cli import app
from fedsub.disk.files import JsonLines
from fedsub.families.factorisation import FedMAvg, factorise_ratings
from fedsub.method.codecs.wire import encode_rows

USERS, ITEMS, RANK = 14, 20, 3


def data(seed: int = 0) -> tuple[fs.Clients, fs.Clients]:
    rng = np.random.default_rng(seed)
    w, h = rng.normal(size=(ITEMS, 2)), rng.normal(size=(USERS, 2))
    user, item = np.nonzero(rng.random((USERS, ITEMS)) < 0.6)
    rating = 3 + (w[item] * h[user]).sum(1) + 0.1 * rng.normal(size=len(user))
    columns = {"user": np.char.add("u", user.astype(str)), "item": item, "rating": rating.astype(np.float32)}
    clients = fs.Clients.from_arrays(
        columns, client="user", ids=["item"], label="rating", binary_label=False, sizes={"item": ITEMS}
    )
    return clients.split(0.8, seed=1)


TRAIN, TEST = data()
WAYS = {
    "full": {"clients_per_round": 5},
    "submodel": {"clients_per_round": 5, "submodel": True},
    "everyone": {"clients_per_round": None, "submodel": True, "projection": "ball:1"},
    "nonnegative": {"clients_per_round": 3, "projection": "nonnegative"},
}


def goal(**options) -> fs.Objective:
    return fs.models.make_objective(TRAIN, "factorisation", rank=RANK, **options)


def make(way: str) -> fs.factorisation.FedMAvg | fs.factorisation.SFMF:
    if way == "sfmf":
        return fs.methods.sfmf(step=0.04, l2=0.1)
    return fs.methods.fedmavg(**WAYS[way])


class Halt(fs.Callback):
    def on_round(self, record) -> None:
        if record["round"] == 5:
            raise InterruptedError


@pytest.mark.parametrize("way", [*WAYS, "sfmf"])
def test_resume_is_bit_for_bit(way: str, tmp_path: Path) -> None:
    options = {
        "method": make(way), "objective": goal(), "clients": TRAIN, "test": TEST, "rounds": 8, "seed": 6,
        "evaluate": fs.Evaluate(every=2), "checkpoint_every": 2, "lost": 0.2,
    }  # fmt: skip
    result = fs.run(out=tmp_path / "whole", **options)
    with pytest.raises(InterruptedError):
        fs.run(out=tmp_path / "again", callbacks=[Halt()], **options)
    again = fs.run(out=tmp_path / "again", resume=True, **options)
    assert equal(again.params, result.params)
    assert again.final == result.final
    for file in ("metrics.jsonl", "traffic.jsonl"):
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    assert result.history[-1]["test.rmse"] < result.history[0]["test.rmse"]
    assert sum(r["lost"] for r in result.history[1:]) > 0


def test_a_run_is_the_numerics_and_every_client_is_predicted_by_its_own_vector() -> None:
    method = make("submodel")
    objective = goal()
    plan = fs.Evaluate(every=3, samples=None, ranking=fs.Ranking("item", liked=4))
    result = fs.run(method, objective, TRAIN, test=TEST, rounds=6, seed=3, evaluate=plan)
    samples = np.arange(TRAIN.samples)
    rows = TRAIN.gather(samples, ("item", "rating"), local=False)
    user = TRAIN.clients_of(samples)
    means = np.bincount(user, rows["rating"]) / np.bincount(user)
    start = objective.module.get_parameter("items.weight").detach().numpy()
    plain = factorise_ratings(
        user,
        rows["item"],
        rows["rating"] - means[user],
        RANK,
        items=ITEMS,
        rounds=6,
        seed=3,
        start=start,
        method=method,
    )
    np.testing.assert_allclose(result.params["items.weight"], plain.w, atol=1e-4)
    places = {client: p for p, client in enumerate(TRAIN.client_ids.tolist())}
    held = TEST.gather(np.arange(TEST.samples), ("item", "rating"), local=False)
    owner = np.array([places[c] for c in TEST.client_ids.tolist()])[TEST.clients_of(np.arange(TEST.samples))]
    said = (plain.w[held["item"]] * np.array(plain.h)[owner, :, 0]).sum(1) + means[owner]
    error = said - held["rating"]
    assert result.final["test"]["rmse"] == pytest.approx(np.sqrt((error**2).mean()), abs=1e-3)
    assert result.final["test"]["mae"] == pytest.approx(np.abs(error).mean(), abs=1e-3)
    for name, found in plain.history[-1].items():
        if name != "round":
            assert result.history[-1][f"train.{name}"] == pytest.approx(found, rel=0.02)
    assert 0 < result.final["test"]["ndcg@10"] <= 1
    assert "ranking" not in result.final["train"]
    assert result.final["test"]["shared"]["rmse"] > result.final["test"]["rmse"]


def test_bytes_are_those_of_the_specification(tmp_path: Path) -> None:
    row, rounds = RANK * 4, 3
    held = TRAIN.spaces["item"].counts
    for way in ("full", "submodel", "everyone", "sfmf"):
        method = make(way)
        result = fs.run(method, goal(), TRAIN, rounds=rounds, out=tmp_path / way, seed=2)
        number = 0 if way == "sfmf" else 4 + len("step") + 8  # the common step: its name and a number
        down, up = (envelope({f"{tree}/items.weight": 2}) for tree in ("model", "update"))
        ids = [len(encode_rows(TRAIN.spaces["item"].rows_of(p), ITEMS)) for p in range(USERS)]
        asked = np.array(ids) + envelope({"rows/item": 1})  # from everybody
        alone = 0 if way == "sfmf" else envelope({}) + number  # the step goes up in a message of its own
        full = not method.submodel
        sends = {"full": 5, "submodel": 5, "everyone": USERS, "sfmf": USERS}[way]
        for record, traffic in zip(result.history[1:], JsonLines.read(tmp_path / way / "traffic.jsonl"), strict=True):
            assert (sum(traffic["down"]), sum(traffic["up"])) == (record["down"], record["up"])
            values = USERS * ITEMS * row if full else int(held.sum()) * row
            assert record["down"] == values + USERS * (number + down)
            if full:
                assert record["up"] == sends * (ITEMS * row + up) + USERS * alone
            else:
                sent = np.array(traffic["up"]) - asked - alone
                assert (sent % (held * row + up) == 0).all()
                assert int((sent // (held * row + up)).sum()) == sends


@pytest.mark.parametrize("offset", ["user", "mean", "none"])
def test_offsets(offset: str) -> None:
    objective = goal(offset=offset)
    result = fs.run(make("everyone"), objective, TRAIN, test=TEST, rounds=5)
    mean = TRAIN.column("rating").values.mean()
    assert objective.module.state_dict()["offset"].item() == pytest.approx(0.0 if offset == "none" else mean, rel=1e-5)
    assert ("offset" in result.params) == (offset == "user")
    assert result.history[-1]["train.rmse"] < result.history[0]["train.rmse"]


def test_what_does_not_fit_is_refused() -> None:
    class Mean(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.items = torch.nn.Embedding(ITEMS, 1)

        def forward(self, batch):
            return self.items(batch["item"]).squeeze(-1)

    other = fs.Objective(Mean(), fs.losses.squared("rating"), {"items.weight": "item"})
    with pytest.raises(fs.errors.MethodError, match="needs the model 'factorisation'"):
        fs.run(make("full"), other, TRAIN, rounds=1)
    with pytest.raises(fs.errors.ConfigError, match="rank must be"):
        goal_of_rank(0)
    with pytest.raises(fs.errors.ConfigError, match="did you mean 'user'"):
        goal(offset="users")
    with pytest.raises(fs.errors.ConfigError, match="no setting 'lr'"):
        fs.methods.make("fedmavg", lr=0.1)


def goal_of_rank(rank: int) -> fs.Objective:
    return fs.models.make_objective(TRAIN, "factorisation", rank=rank)


def test_a_vector_with_infinity_is_left_out(tmp_path: Path) -> None:
    columns = {"user": np.repeat([0, 1, 2], 4), "item": np.tile(np.arange(4), 3)}
    columns["rating"] = np.where(columns["user"] == 1, 3e38, 1.0).astype(np.float32) * np.tile([1, -1, 1, -1], 3)
    clients = fs.Clients.from_arrays(
        columns, client="user", ids=["item"], label="rating", binary_label=False, sizes={"item": 4}
    )
    objective = fs.models.make_objective(clients, "factorisation", rank=2, offset="none")
    result = fs.run(FedMAvg(submodel=True), objective, clients, rounds=3, out=tmp_path / "run")
    assert [r["rejected"] for r in result.history[1:]] == [1, 1, 1]
    for row in JsonLines.read(tmp_path / "run" / "traffic.jsonl"):  # each holds all items and sends once
        assert row["up"][0] - row["up"][1] == envelope({"update/items.weight": 2}) + 4 * 2 * 4 - envelope({})
    assert torch.isfinite(result.params["items.weight"]).all()
    with pytest.raises(fs.errors.RunError, match="client 1"):
        fs.run(FedMAvg(submodel=True), objective, clients, rounds=3, on_bad_update="raise")


def test_command_line(tmp_path: Path) -> None:
    samples = np.arange(TRAIN.samples)
    rows = TRAIN.gather(samples, ("item", "rating"), local=False)
    table = tmp_path / "ratings.csv"
    lines = zip(TRAIN.clients_of(samples), rows["item"], rows["rating"], strict=True)
    table.write_text("user,item,rating\n" + "".join(f"{u},{i},{r:.3f}\n" for u, i, r in lines))
    told = ["--client", "user", "--label", "rating", "--table", "item", "--rounds", "3", "--json", "-q"]
    out = str(tmp_path / "out")
    done = CliRunner().invoke(app, ["run", str(table), "--method", "fedmavg", *told, "--out", out])
    assert done.exit_code == 0, done.output
    run = json.loads(done.stdout)["runs"][0]
    assert run["engine"] == "factorisation"
    assert np.isfinite(run["final"]["test"]["rmse"])
    listed = CliRunner().invoke(app, ["methods"])
    assert "FedMAvg" in listed.output
    assert "SFMF" in listed.output
    wrong = CliRunner().invoke(app, ["run", str(table), "--method", "sfmf", "--model", "embedding", *told])
    assert wrong.exit_code != 0
    assert "SFMF is for the model 'factorisation'" in wrong.output


@pytest.mark.skipif("FEDSUB_DATA" not in os.environ, reason="FEDSUB_DATA names no folder with data sets")
def test_submodels_reach_the_error_of_the_full_method_with_a_tenth_of_the_bytes() -> None:
    """MovieLens latest-small: a short version of docs/factorisation.md."""
    clients = fs.datasets.load("movielens-latest-small", Path(os.environ["FEDSUB_DATA"], "movielens-latest-small"))
    train, test = clients.drop("timestamp").split(0.8, seed=0)
    objective = fs.models.make_objective(train, "factorisation", rank=4)
    common = {"clients_per_round": 100, "l2": 0.1, "projection": "ball:1"}
    plan = fs.Evaluate(every=10, samples=None)

    def trained(rounds: int, **more):
        run = fs.run(fs.methods.fedmavg(**common, **more), objective, train, test=test, rounds=rounds, evaluate=plan)
        return run, sum(r["down"] + r["up"] for r in run.history)

    full, spent = trained(40)
    same, part = trained(40, submodel=True, temper=0.0)
    assert same.final["test"]["rmse"] == pytest.approx(full.final["test"]["rmse"], abs=1e-4)
    assert part < 0.02 * spent
    better, part = trained(20, submodel=True, temper=0.5)
    assert better.final["test"]["rmse"] < full.final["test"]["rmse"]
    assert part < 0.01 * spent
