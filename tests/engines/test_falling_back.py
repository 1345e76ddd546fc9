"""What cannot be batched runs serially, and one sentence says why; what `auto` measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from engine_checks import assert_rounds_agree, methods, refused
from engine_modules import ALL, DATA, LOSS, LSTM, Base, Noisy, objective
from torch import nn
from worlds import bag, choice_for, click_data, equal, item_data

import fedsub as fs


class Tied(Base):
    def forward(self, batch):
        return super().forward(batch) + F.linear(self.items(batch["item"]), self.items.weight).mean(-1)


class Penalty(Base):
    def forward(self, batch):
        return super().forward(batch) + (self.items.weight**2).sum()


class Packed(LSTM):
    def encode(self, x, ids, batch):
        lengths = (ids != 0).sum(1).clamp(min=1).cpu()
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.rnn(packed)[1][0][-1]


class Branch(Base):
    def encode(self, x, ids, batch):
        return x.sum(1) if x.sum() > 0 else 2 * x.sum(1)


class Item(Base):
    def encode(self, x, ids, batch):
        return x.sum(1) * x.abs().max().item()


class Centred(Base):
    def encode(self, x, ids, batch):
        x = x.sum(1)
        return x - x.mean(0)


FALLBACKS = {
    "noise": (Noisy, "draws random numbers with rand"),
    "packed": (Packed, ""),
    "branch": (Branch, ""),
    "item": (Item, ""),
    "mixes": (Centred, "mix the samples of a batch"),
}


@pytest.mark.parametrize("kind", FALLBACKS)
@pytest.mark.parametrize("engine", ["batched", "auto"])
def test_what_cannot_be_batched_runs_serially_and_says_why(kind: str, engine: str) -> None:
    module, words = FALLBACKS[kind]
    result = fs.run(methods()["short batches"], objective(module), DATA, rounds=2, engine=engine)
    assert result.engine == "serial"
    (sentence,) = [e for e in result.events if e.startswith("engine serial, because")]
    assert words in sentence
    assert len(sentence) < 400
    assert all(torch.isfinite(p).all() for p in result.params.values())
    same = fs.run(methods()["short batches"], objective(module), DATA, rounds=2, engine="serial")
    assert equal(result.params, same.params)


@pytest.mark.parametrize(("module", "how"), [(Tied, "linear"), (Penalty, "pow")])
def test_a_table_used_whole_is_refused_unless_that_is_meant(module, how: str) -> None:
    goal = objective(module)
    refused(goal, words=f"'items.weight' is used whole (by {how})")
    meant = replace(goal, whole=("items.weight",))
    found = [fs.run(methods()["short batches"], meant, DATA, rounds=2, engine=e) for e in ("auto", "batched", "serial")]
    for result in found:
        assert result.engine == "serial"
        assert equal(result.params, found[-1].params)
    for result in found[:2]:
        assert any(f"used whole (by {how})" in e for e in result.events)


class Gathered(Base):
    def forward(self, batch):
        ids = batch["slot"].reshape(-1, 1)
        return super().forward(batch) + self.slots.weight.gather(0, ids).squeeze(-1)


class ByColumn(Base):
    def forward(self, batch):
        return super().forward(batch) + self.items.weight[batch["item"], 2]


class Raw(Base):
    def forward(self, batch):
        return super().forward(batch) + torch.embedding(self.slots.weight, batch["slot"]).squeeze(-1)


@pytest.mark.parametrize("module", [Gathered, ByColumn, Raw])
def test_other_lookups_are_no_use_of_the_whole_table(module) -> None:
    result = fs.run(methods()["short batches"], objective(module), DATA, rounds=2, engine="auto")
    (sentence,) = [e for e in result.events if e.startswith("engine serial, because")]
    assert "lookup by" in sentence or "other than by a tensor of ids" in sentence


def test_a_scalar_loss_falls_back() -> None:
    goal = fs.Objective(objective("base").module, lambda z, batch: LOSS(z, batch).mean(), ALL)
    result = fs.run(methods()["short batches"], goal, DATA, rounds=2, engine="batched")
    assert result.engine == "serial"
    assert any("one number for the batch; return one value per sample" in e for e in result.events)
    per_sample = fs.run(methods()["short batches"], objective("base"), DATA, rounds=2, engine="serial")
    for name, p in result.params.items():
        torch.testing.assert_close(p, per_sample.params[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "sizes", [(8, 8, 8, 8, 8, 8, 8, 7), (7, 8, 8, 8, 8), (8, 16, 16, 16, 16, 16, 3, 16, 16), (16, 16, 16, 13)]
)
def test_mixing_is_found_wherever_the_short_batch_hides(sizes) -> None:
    """Whichever client has a short batch, and at whatever step, the check on two clients must see one."""
    clients = click_data(sizes)
    method = fs.methods.fedavg(lr=0.3, local_steps=5, batch_size=4, clients_per_round=3)
    _, _, choice = choice_for(method, objective(Centred), clients, "batched")
    assert choice.engine.name == "serial"
    assert "mix the samples" in choice.reason


def test_mixing_is_fine_when_no_batch_is_short() -> None:
    clients = click_data((8, 8, 4, 12, 8))
    method = fs.methods.fedavg(lr=0.3, local_steps=5, batch_size=4, clients_per_round=3)
    assert_rounds_agree(method, objective(Centred), clients, rounds=2, update=2e-4, whole=1e-5)


@pytest.mark.parametrize(
    ("settings", "left_out"),
    [
        ({}, ""),
        ({"solver": "adam"}, " (compared with SGD in place of Adam)"),
        ({"codec": "int8"}, " (compared without Int8)"),
        ({"codec": "int8", "solver": "adam"}, " (compared without Int8 and with SGD in place of Adam)"),
    ],
)
def test_the_sentence_says_what_was_left_out_of_the_comparison(settings, left_out: str) -> None:
    clients = item_data()
    method = fs.methods.fedsubavg(lr=0.3, local_steps=2, batch_size=3, clients_per_round=4, **settings)
    _, _, choice = choice_for(method, bag(clients), clients, "batched")
    assert choice.reason == f"engine batched: agrees with serial on two clients{left_out}"
    _, _, choice = choice_for(method, bag(clients), clients, "auto")
    assert choice.reason == f"batched agrees with serial on two clients{left_out}; timing both"


def test_auto_says_what_it_measured() -> None:
    result = fs.run(methods()["short batches"], bag(item_data()), item_data(), rounds=1, engine="auto")
    assert result.engine in ("batched", "serial")
    assert any("is the faster one" in e for e in result.events)


def test_central_training_is_serial() -> None:
    result = fs.run(
        fs.methods.centralsgd(clients_per_round=2, batch_size=3, local_steps=2),
        bag(item_data()),
        item_data(),
        rounds=1,
    )
    assert result.engine == "serial"
    assert any("all data is in one place" in e for e in result.events)
