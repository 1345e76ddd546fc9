"""New clients: parameters of their own, fitted to what was trained without them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn
from worlds import bag, equal, item_data, there

import fedsub as fs
from fedsub.data.align import align
from fedsub.data.split import select
from fedsub.errors import ConfigError, DataError, MethodError
from fedsub.running.adapt import adapt

DOUBLE = torch.float64
DATA = item_data((6, 7, 4, 9, 8, 5, 8, 7), items=12, width=3)
SETTINGS = {"lr": 0.3, "local_epochs": 1, "batch_size": 4, "clients_per_round": 4}
OLD, NEW = select(DATA, range(5)), select(DATA, [5, 6, 7])


def goal_of() -> fs.Objective:
    return bag(DATA, seed=3, dim=2, dtype=DOUBLE)


def test_shared_parameters_stay_and_own_ones_are_sgd_on_the_client_alone() -> None:
    goal = goal_of()
    result = fs.run(fs.methods.fedper(personal="out.*", **SETTINGS), goal, OLD, rounds=3)
    before = {n: v.clone() for n, v in result.params.items()}
    made = adapt(result, goal, NEW, "out.*", steps=7, lr=0.3, batch_size=None, init="shared", engine="serial")
    assert equal(result.params, before)
    assert made.model.names == ("out.weight", "out.bias")
    for client in range(3):
        samples = np.arange(NEW.offsets[client], NEW.offsets[client + 1])
        read = NEW.gather(samples, ("ids", "label"), local=False)
        base = before["emb.weight"][torch.from_numpy(read["ids"]).long()].sum(1)
        weight, bias = (before[n].clone().requires_grad_() for n in ("out.weight", "out.bias"))
        for _ in range(7):
            z = base @ weight.T + bias
            loss = nn.functional.binary_cross_entropy_with_logits(z[:, 0], torch.from_numpy(read["label"]).double())
            found = torch.autograd.grad(loss, (weight, bias))
            with torch.no_grad():
                weight -= 0.3 * found[0]
                bias -= 0.3 * found[1]
        own = made.model.dense("out.weight", np.array([client]))[0]
        torch.testing.assert_close(own, weight.detach(), rtol=1e-12, atol=1e-14)
    # It helps on the data that it saw, and what is reported is measured against the shared model.
    found = made.metrics["train"]
    assert found["gain"]["mean"] > 0
    assert found["by_client"]["loss"] < found["shared"]["by_client"]["loss"]


def test_engines_agree_and_seeds_matter() -> None:
    goal = goal_of()
    trained = {n: p.detach().clone() for n, p in goal.module.named_parameters()}
    made = {
        engine: adapt(trained, goal, NEW, ["emb.weight", "out.bias"], steps=4, batch_size=3, seed=1, engine=engine)
        for engine in ("serial", "batched")
    }
    one, other = (m.model.kept.tensors for m in made.values())
    for key, value in one.items():
        torch.testing.assert_close(other[key], value, rtol=1e-9, atol=1e-12)
    again = adapt(trained, goal, NEW, ["emb.weight", "out.bias"], steps=4, batch_size=3, seed=1, engine="serial")
    assert equal(again.model.kept.tensors, one)
    differs = adapt(trained, goal, NEW, ["emb.weight", "out.bias"], steps=4, batch_size=3, seed=2, engine="serial")
    assert not equal(differs.model.kept.tensors, one)


def test_held_out_samples_of_new_clients() -> None:
    train, test = NEW.split(0.6, seed=0)
    goal = goal_of()
    result = fs.run(fs.methods.fedper(personal="out.*", **SETTINGS), goal, OLD, rounds=2)
    made = adapt(result, goal, train, "last", test=test, steps=5, lr=0.1)
    assert set(made.metrics) == {"train", "test"}
    assert made.metrics["test"]["by_client"]["clients"] == len(test)
    assert {"shared", "gain"} <= set(made.metrics["test"])
    # The shared model is the one that was trained.
    still = fs.methods.fedavg(clients_per_round=1, lr=1e-30)
    plain = fs.run(still, replace(goal, module=result.module()), train, rounds=1, test=test)
    assert made.metrics["test"]["shared"]["ce"] == pytest.approx(plain.final["test"]["ce"], rel=1e-12)


def test_nonsense_is_refused() -> None:
    goal = goal_of()
    params = {n: p.detach().clone() for n, p in goal.module.named_parameters()}
    with pytest.raises(MethodError, match="fits no trained parameter"):
        adapt(params, goal, NEW, "head.*")
    with pytest.raises(MethodError, match="names is empty"):
        adapt(params, goal, NEW, [])
    with pytest.raises(ConfigError, match=r"out\.bias is missing"):
        adapt({n: v for n, v in params.items() if n != "out.bias"}, goal, NEW, "out.weight")
    with pytest.raises(ConfigError, match=r"emb\.weight has the shape \(3, 2\)"):
        adapt(params | {"emb.weight": params["emb.weight"][:3]}, goal, NEW, "out.*")
    with pytest.raises(ConfigError, match="got str"):
        adapt("result.json", goal, NEW, "out.*")  # type: ignore[arg-type]


# ---------------------------------------------------------------------- row numbers of other data


def frame(users, items, histories) -> fs.Clients:
    table = pl.DataFrame({"user": users, "item": items, "history": histories, "label": [0, 1] * (len(users) // 2)})
    return fs.Clients.from_frame(table, "user", ids={"item": ["item", "history"]}, label="label")


def test_new_data_take_the_row_numbers_of_training() -> None:
    old = frame(["a", "a", "b", "b"], ["x", "z", "y", "w"], [["w"], [], ["x", "y"], ["z"]])
    new = frame(["d", "d", "c", "c", "e", "e"], ["z", "q", "w", "x", "z", "y"], [["x"], [], [], ["z", "w"], ["a"], []])
    made, lost = align(new, old)
    assert lost == 2  # q, and a history with a
    assert sorted(made.client_ids.tolist()) == ["c", "d", "e"]
    names, size = there(old.spaces["item"].vocabulary), old.spaces["item"].size
    assert made.spaces["item"].size == size
    read = made.gather(np.arange(made.samples), ("item", "history", "label"), local=False)
    owners = made.client_ids[made.clients_of(np.arange(made.samples))]
    found = {
        (owner, str(names[item]), tuple(str(names[h]) for h in history if h), int(label))
        for owner, item, history, label in zip(
            owners, read["item"], read["history"], read["label"], strict=True
        )
    }  # fmt: skip
    assert found == {("d", "z", ("x",), 0), ("c", "w", (), 0), ("c", "x", ("z", "w"), 1), ("e", "y", (), 1)}
    same, none = align(old, old)
    assert none == 0
    assert same.fingerprint == old.fingerprint


def test_data_of_another_kind_are_refused() -> None:
    old = frame(["a", "a"], ["x", "z"], [["x"], []])
    with pytest.raises(DataError, match="No sample has only ids"):
        align(frame(["a", "a"], ["p", "q"], [["p"], []]), old)
    other = fs.Clients.from_frame(pl.DataFrame({"user": ["a"], "item": [3], "label": [1]}), "user", ids=["item"])
    with pytest.raises(DataError, match="of the columns item here"):
        align(other, old)
    with pytest.raises(DataError, match="row numbers in one"):
        align(item_data((3,)), named())


def named() -> fs.Clients:
    table = pl.DataFrame({"user": ["a", "a"], "ids": [["x", "y"], ["y", "z"]], "label": [0, 1]})
    made = fs.Clients.from_frame(table, "user", ids=["ids"], label="label")
    spaces = {"ids": replace(made.spaces["ids"], padding=False)}
    return replace(made, spaces=spaces)
