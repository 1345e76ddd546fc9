"""Callbacks see the model: shared, personal, and evaluated when they ask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from worlds import bag, equal, item_data

import fedsub as fs
from fedsub.errors import DataError, RunError
from fedsub.round.predict import PersonalModel

TRAIN, TEST = item_data((9, 8, 12, 7), seed=1).split(0.7)


class Watch(fs.Callback):
    def __init__(self) -> None:
        self.rounds: list[int] = []
        self.params: list[dict[str, torch.Tensor]] = []
        self.measured: list[dict[str, Any]] = []

    def on_round(self, record: dict[str, Any]) -> None:
        self.rounds.append(self.now.round)
        self.params.append(self.now.params())
        self.measured.append(self.now.evaluate({"test": TEST}))
        with torch.no_grad():  # a copy: nobody notices
            for p in self.now.module().parameters():
                p.fill_(7.0)

    def on_end(self, summary: dict[str, Any]) -> None:
        self.module = self.now.module()
        self.final = self.now.evaluate(final=True)


@pytest.mark.parametrize("name", ["fedavg", "fedadam"])
def test_a_callback_reads_the_model_of_each_round(name: str) -> None:
    """Also where rows owe steps, as with server momentum; and reading changes nothing."""
    method = fs.methods.make(name, lr=0.3, clients_per_round=2)
    options: dict[str, Any] = {"test": TEST, "rounds": 3, "engine": "serial", "evaluate": fs.Evaluate(every=1)}
    watch = Watch()
    result = fs.run(method, bag(TRAIN), TRAIN, callbacks=[watch], **options)
    assert equal(result.params, fs.run(method, bag(TRAIN), TRAIN, **options).params)
    assert watch.rounds == [0, 1, 2, 3]
    assert equal(watch.params[0], dict(bag(TRAIN).module.named_parameters()))
    assert not equal(watch.params[1], watch.params[0])
    assert equal(watch.params[3], result.params)
    assert equal(dict(watch.module.named_parameters()), result.params)
    for record, found in zip(result.history, watch.measured, strict=True):
        assert found == {k: v for k, v in record.items() if k.startswith("test.")}
    assert repr(watch.final) == repr(result.final)  # NaN is no equal of itself


class Own(fs.Callback):
    def on_end(self, summary: dict[str, Any]) -> None:
        model = self.now.model()
        assert isinstance(model, PersonalModel)
        self.modules = [self.now.module(c) for c in TRAIN.client_ids.tolist()]
        with pytest.raises(DataError, match="no client 'nobody'"):
            self.now.module("nobody")


def test_every_clients_own_module() -> None:
    method = fs.methods.fedper(personal=["out.*", "emb.weight"], lr=0.3, clients_per_round=2)
    own = Own()
    plan = fs.Evaluate(samples=None, final_samples=None)
    result = fs.run(method, bag(TRAIN), TRAIN, rounds=2, engine="serial", callbacks=[own], evaluate=plan)
    rows = TRAIN.gather(np.arange(TRAIN.samples), local=False)
    owner = TRAIN.clients_of(np.arange(TRAIN.samples))
    right = 0
    for client, module in enumerate(own.modules):
        mine = owner == client
        with torch.no_grad():
            z = module({"ids": torch.from_numpy(rows["ids"][mine])}).numpy()
        right += int(((z > 0) == (rows["label"][mine] > 0.5)).sum())
    assert result.final["train"]["accuracy"] == pytest.approx(right / TRAIN.samples)
    assert not equal(*(dict(m.named_parameters()) for m in own.modules[:2]))


def test_shared_models_have_no_clients_own() -> None:
    class Asks(fs.Callback):
        def on_start(self, info: dict[str, Any]) -> None:
            with pytest.raises(RunError, match="no parameters of their own"):
                self.now.params(0)

    fs.run(fs.methods.fedavg(clients_per_round=2), bag(TRAIN), TRAIN, rounds=1, engine="serial", callbacks=[Asks()])
