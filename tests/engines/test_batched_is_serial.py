"""The batched engine agrees with the serial one: every module, every way of local work."""

from __future__ import annotations

import copy

import pytest
import torch
from engine_checks import assert_rounds_agree, methods
from engine_modules import DATA, LOSS, MODULES, objective
from torch import nn
from worlds import bag, item_data, there, trainer_for

import fedsub as fs


@pytest.mark.parametrize("kind", ["base", "lstm", "transformer", "several_tables"])
def test_batched_equals_serial(kind: str) -> None:
    method = methods()["short batches"]
    assert_rounds_agree(method, objective(kind), DATA, rounds=3, update=2e-4, whole=1e-5)


@pytest.mark.parametrize("kind", MODULES)
def test_batched_equals_serial_to_many_digits_in_double(kind: str) -> None:
    """Rounding apart nothing differs: in double precision the updates agree to nine digits."""
    goal = objective(kind)
    goal.module.double()
    assert_rounds_agree(methods()["epochs"], goal, DATA, rounds=1, update=1e-9, whole=1e-9)


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("lstm_dropout", "epochs"),
        ("din", "all local data"),
        ("din", "replacement"),
        ("dropout_layernorm", "epochs"),
        ("dropout_layernorm", "all local data"),
        ("dropout_layernorm", "replacement"),
    ],
)
def test_batched_equals_serial_for_every_way_of_local_work(kind: str, how: str) -> None:
    assert_rounds_agree(methods()[how], objective(kind), DATA, rounds=3, update=2e-4, whole=1e-5)


@pytest.mark.parametrize(
    ("mode", "padding"), [("sum", False), ("mean", False), ("max", False), ("sum", True), ("mean", True)]
)
def test_embedding_bags(mode: str, padding: bool) -> None:
    clients = item_data(padding=padding)
    goal = bag(clients, dim=3, mode=mode, dtype=torch.float64, **({"padding_idx": 0} if padding else {}))
    method = fs.methods.fedsubavg(lr=0.5, local_steps=3, batch_size=4, clients_per_round=6)
    assert_rounds_agree(method, goal, clients, rounds=2, update=1e-9, whole=1e-9)


def test_embedding_bag_with_sample_weights() -> None:
    class Weighted(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.EmbeddingBag(20, 1, mode="sum", dtype=torch.float64)

        def forward(self, batch):
            ids = batch["ids"]
            share = torch.linspace(0.5, 1, ids.shape[1], dtype=torch.float64).expand(ids.shape)
            return self.emb(ids, per_sample_weights=share).squeeze(-1)

    clients = item_data()
    goal = fs.Objective(Weighted(), LOSS, {"emb.weight": "ids"})
    method = fs.methods.fedavg(lr=0.5, local_steps=2, batch_size=4, clients_per_round=6)
    assert_rounds_agree(method, goal, clients, rounds=2, update=1e-9, whole=1e-9)


def test_the_padding_row_is_not_trained() -> None:
    for engine in ("serial", "batched"):
        trainer = trainer_for(methods()["short batches"], objective("padding_idx"), DATA, engine)
        before = trainer.params["items.weight"][0].clone()
        trainer.round(1)
        assert torch.equal(trainer.params["items.weight"][0], before)


def test_a_padded_batch_trains_as_if_the_padding_were_not_there() -> None:
    """One client with 3 samples and batch size 8 steps along the mean gradient of its 3 samples."""
    clients = item_data((3, 3))
    goal = bag(clients, dtype=torch.float64)
    method = fs.methods.fedsgd(lr=0.5, batch_size=8, clients_per_round=None, weighting="clients")
    module = copy.deepcopy(goal.module)
    batch = {
        k: torch.from_numpy(v)
        for k, v in clients.gather(torch.arange(6).numpy(), ["ids", "label"], local=False).items()
    }
    LOSS(module(batch), batch).mean().backward()
    for engine in ("serial", "batched"):
        trainer = trainer_for(method, goal, clients, engine)
        trainer.round(1)
        for name, p in module.named_parameters():
            torch.testing.assert_close(trainer.params[name], p.detach() - 0.5 * there(p.grad), rtol=0, atol=1e-15)
