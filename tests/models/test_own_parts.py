"""A bias and tastes of a client's own in built-in models, and L2 by parameter pattern."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from worlds import bag, click_data, equal, item_data

import fedsub as fs
from fedsub.errors import ConfigError, MethodError, ObjectiveError
from fedsub.objective.models import make_objective
from fedsub.study.experiment.config import parse
from fedsub.study.experiment.experiment import Experiment

MODELS: dict[str, Any] = {
    "lr": {"kind": "lr", "own_bias": True, "taste": 3},
    "embedding": {"kind": "embedding", "own_bias": True, "taste": 3, "dim": 2, "hidden": 2},
    "user-item": {"kind": "user-item", "own_bias": True, "taste": 3},
}


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_the_logit_has_the_clients_own_parts(options) -> None:
    clients = click_data()
    own = make_objective(clients, **options)
    plain = make_objective(clients, **{k: v for k, v in options.items() if k not in ("own_bias", "taste")})
    assert own.own == ("own.*",)
    assert own.tables["vectors.weight"] == "item"
    given = dict(plain.module.named_parameters())
    with torch.no_grad():
        for name, value in own.module.named_parameters():
            if name in given:
                given[name].copy_(value)
        own.module.get_parameter("own.bias").fill_(0.25)
        own.module.get_parameter("own.taste").copy_(torch.tensor([1.0, -2.0, 0.5]))
    batch = {
        "item": torch.tensor([3, 4]), "history": torch.tensor([[1, 2], [3, 0]]),
        "place": torch.tensor([[0, 1], [2, 3]]), "slot": torch.tensor([1, 2]), "value": torch.tensor([0.5, -1.0]),
    }  # fmt: skip
    vectors = own.module.get_parameter("vectors.weight")[batch["item"]]
    expected = plain.module(batch) + 0.25 + vectors @ torch.tensor([1.0, -2.0, 0.5])
    torch.testing.assert_close(own.module(batch), expected)


def test_clients_train_their_own_and_send_them_to_nobody(tmp_path) -> None:
    clients = click_data()
    objective = make_objective(clients, "lr", own_bias=True, taste=2)
    trained = []
    for engine in ("serial", "batched"):
        method = fs.methods.fedsubavg(personal="own.*", local_steps=3, clients_per_round=4, iterates="tail:0.5")
        result = fs.run(method, objective, clients, rounds=4, engine=engine, out=tmp_path / engine)
        assert not result.params["own.bias"].any()  # the shared one never moved
        assert result.params["vectors.weight"].ne(dict(objective.module.named_parameters())["vectors.weight"]).any()
        loaded = fs.load(tmp_path / engine)
        assert loaded.personal is not None
        trained.append([loaded.personal.params(c)["own.bias"] for c in clients.client_ids])
    assert any(bool(b) for b in trained[0])
    torch.testing.assert_close(torch.stack(trained[0]), torch.stack(trained[1]))


def test_a_method_that_would_share_them_is_refused_unless_told_to() -> None:
    clients = click_data()
    objective = make_objective(clients, "lr", own_bias=True)
    with pytest.raises(MethodError, match=r"every client's own \(own\.\*\).*personal=\['own\.\*'\]"):
        fs.run(fs.methods.fedavg(clients_per_round=4), objective, clients, rounds=1)
    method = fs.methods.fedavg(personal=[], local_steps=1, clients_per_round=4)
    shared = fs.run(method, objective, clients, rounds=1, engine="serial")
    assert shared.params["own.bias"] != 0


def test_settings_that_mean_nothing_are_refused() -> None:
    clients = click_data()
    refused: list[tuple[Any, str]] = [
        ({"taste": -1}, "taste must be a whole number of at least 0"),
        ({"own_bias": 1}, "own_bias must be True or False"),
        ({"columns": {"item": "item"}}, "give taste"),
        ({"taste": 2, "columns": {"item": "history"}}, "expects one id"),
    ]
    for options, says in refused:
        with pytest.raises(ConfigError, match=says):
            make_objective(clients, "lr", **options)


def test_a_configuration_gives_own_parameters_to_every_method() -> None:
    raw = {
        "task": "movielens-like", "model": {"taste": 2, "l2": {"weights.*": 0.01}},
        "methods": {"fedavg": {}, "shared": {"method": "fedavg", "personal": []}},
    }  # fmt: skip
    settings = Experiment(parse(raw), Path()).settings(100)
    assert settings["FedAvg"]["personal"] == ["own.*"]
    assert settings["shared"]["personal"] == []


# ---------------------------------------------------------------------- L2 by pattern


@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_l2_by_pattern_is_added_to_every_steps_gradient(engine: str) -> None:
    """As the same decay in the local solver: −lr · l2 · x in every step and row held, named by the batch or not."""
    clients = item_data()
    objective = bag(clients)
    common: Any = {"local_steps": 3, "clients_per_round": 4, "batch_size": 1}
    by_pattern = fs.run(
        fs.methods.fedsubavg(**common),
        replace(objective, l2={"emb.*": 0.3, "*": 0.1}),
        clients,
        rounds=3,
        engine=engine,
    )
    decayed = fs.run(
        fs.methods.fedsubavg(**common, groups={"emb.*": {"weight_decay": 0.3}, "out.*": {"weight_decay": 0.1}}),
        objective, clients, rounds=3, engine=engine,
    )  # fmt: skip
    for name, value in by_pattern.params.items():
        torch.testing.assert_close(value, decayed.params[name], rtol=1e-5, atol=1e-7)
    none = fs.run(fs.methods.fedsubavg(**common), objective, clients, rounds=3, engine=engine)
    zero = fs.run(fs.methods.fedsubavg(**common), replace(objective, l2={"*": 0.0}), clients, rounds=3, engine=engine)
    assert equal(none.params, zero.params)
    assert not equal(none.params, by_pattern.params)


def test_one_number_is_the_pattern_of_all() -> None:
    objective = bag(item_data())
    assert [replace(objective, l2=0.5).l2_of(n) for n in ("emb.weight", "out.bias")] == [0.5, 0.5]
    by = replace(objective, l2={"out.*": 0.2})
    assert [by.l2_of(n) for n in ("emb.weight", "out.bias")] == [0.0, 0.2]


def test_l2_that_fits_nothing_is_refused() -> None:
    objective = bag(item_data())
    with pytest.raises(ObjectiveError, match=r"'items\.\*', which fits no parameter; they are emb\.weight"):
        replace(objective, l2={"items.*": 0.1})
    with pytest.raises(ObjectiveError, match="at least 0"):
        replace(objective, l2={"emb.*": -0.1})
    with pytest.raises(MethodError, match="one l2 for all"):
        fs.run(fs.methods.l2gd(lam=0.1), replace(objective, l2={"emb.*": 0.1}), item_data(), rounds=1)
