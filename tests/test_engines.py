"""Engines: batched agrees with serial, nothing but the seed changes a bit, and refusals say why."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from worlds import bag, choice_for, click_data, equal, item_data, there, trainer_for

import fedsub as fs
from fedsub.errors import ConfigError, ObjectiveError
from fedsub.objective.problem import Problem

DATA = click_data(length=3)
ITEMS, PLACES, SLOTS = DATA.size("item"), DATA.size("place"), DATA.size("slot")
LOSS = fs.losses.binary("label")
ALL = {"items.weight": ["item", "history"], "places.weight": "place", "slots.weight": "slot"}


class Base(nn.Module):
    """Tables for all three spaces; a subclass says what to do with the history's embeddings [B, L, 6]."""

    def __init__(self, dim: int = 6, **options):
        super().__init__()
        self.items = nn.Embedding(ITEMS, dim, **options)
        self.places = nn.Embedding(PLACES, 2)
        self.slots = nn.Embedding(SLOTS, 1)
        self.out = nn.Linear(2 * dim + 5, 1)

    def forward(self, batch):
        ids = batch["history"]
        seen = self.encode(self.items(ids), ids, batch)
        parts = [
            seen,
            self.items(batch["item"]),
            self.places(batch["place"]).flatten(1),
            self.slots(batch["slot"]),
        ]
        return self.out(torch.cat(parts, -1)).squeeze(-1)

    def encode(self, x, ids, batch):
        return (x * (ids != 0).unsqueeze(-1)).sum(1)


class LSTM(Base):
    def __init__(self, **options):
        super().__init__()
        self.rnn = nn.LSTM(6, 6, num_layers=2, batch_first=True, **options)

    def encode(self, x, ids, batch):
        return self.rnn(x)[0][:, -1]


class GRU(Base):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(6, 6)  # time first, no batch_first

    def encode(self, x, ids, batch):
        return self.rnn(x.transpose(0, 1))[1][0]


class Bidirectional(Base):
    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(6, 3, bidirectional=True, batch_first=True, nonlinearity="relu")

    def encode(self, x, ids, batch):
        return self.rnn(x)[0].mean(1)


class Cells(Base):
    def __init__(self):
        super().__init__()
        self.lstm, self.gru = nn.LSTMCell(6, 6), nn.GRUCell(6, 6)

    def encode(self, x, ids, batch):
        h, c = torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0])
        g = h
        for t in range(x.shape[1]):
            h, c = self.lstm(x[:, t], (h, c))
            g = self.gru(h, g)
        return g


class Transformer(Base):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(6, 2, 12, dropout=0.1, batch_first=True)

    def encode(self, x, ids, batch):
        # A first place that is never masked keeps samples without history finite.
        x = torch.cat([self.items(batch["item"]).unsqueeze(1), x], 1)
        mask = torch.cat([torch.zeros_like(ids[:, :1], dtype=torch.bool), ids == 0], 1)
        return self.layer(x, src_key_padding_mask=mask)[:, 0]


class Attention(Base):
    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(6, 3, batch_first=True)

    def encode(self, x, ids, batch):
        query = self.items(batch["item"]).unsqueeze(1)
        return self.attend(query, x, x, need_weights=True)[0].squeeze(1)


class DIN(Base):
    """Attention of the candidate over the history, as in a deep interest network."""

    def __init__(self):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(24, 8), nn.PReLU(), nn.Linear(8, 1, bias=False))

    def encode(self, x, ids, batch):
        q = self.items(batch["item"]).unsqueeze(1).expand_as(x)
        s = self.score(torch.cat([q, x, q - x, q * x], -1)).squeeze(-1)
        a = s.masked_fill(ids == 0, -1e9).softmax(-1) * (ids != 0)
        return (a.unsqueeze(-1) * x).sum(1)


class Dropped(Base):
    def __init__(self):
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(6), nn.Dropout(0.3)

    def encode(self, x, ids, batch):
        return self.drop(self.norm(super().encode(x, ids, batch)))


class Indexed(Base):
    def __init__(self):
        super().__init__()
        self.slots = nn.Embedding(SLOTS, 1)

    def forward(self, batch):
        seen = self.items.weight[batch["history"]].sum(1)
        places = torch.index_select(self.places.weight, 0, batch["place"].reshape(-1)).reshape(-1, 4)
        parts = [seen, self.items.weight[batch["item"]], places, self.slots.weight[batch["slot"]]]
        return self.out(torch.cat(parts, -1)).squeeze(-1)


class Padded(Base):
    def __init__(self):
        super().__init__(padding_idx=0)

    def encode(self, x, ids, batch):
        return x.mean(1)  # the padding row is read, but must not be trained


class SeveralTables(Base):
    """A second table over the space of items, and the plain value."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Embedding(ITEMS, 1)
        self.slope = nn.Parameter(torch.tensor(0.3))

    def forward(self, batch):
        extra = self.bias(batch["history"]).squeeze(-1).sum(1) + self.bias(batch["item"]).squeeze(-1)
        return super().forward(batch) + extra + self.slope * batch["value"]


class Narrow(Base):
    """Layers whose results begin at odd places in memory, one client after the other."""

    def __init__(self):
        super().__init__(dim=18)
        self.layers = nn.Sequential(nn.Linear(18, 11), nn.Tanh(), nn.Linear(11, 9), nn.Tanh(), nn.Linear(9, 18))

    def encode(self, x, ids, batch):
        return self.layers(x.mean(1))


MODULES = {
    "base": Base,
    "narrow": Narrow,
    "lstm": LSTM,
    "lstm_dropout": lambda: LSTM(dropout=0.4),
    "gru": GRU,
    "bidirectional": Bidirectional,
    "cells": Cells,
    "transformer": Transformer,
    "attention": Attention,
    "din": DIN,
    "dropout_layernorm": Dropped,
    "indexed": Indexed,
    "padding_idx": Padded,
    "several_tables": SeveralTables,
}


def objective(kind, *, seed: int = 0) -> fs.Objective:
    torch.manual_seed(seed)
    module = MODULES[kind]() if isinstance(kind, str) else kind()
    tables = dict(ALL)
    if hasattr(module, "bias") and isinstance(module.bias, nn.Embedding):
        tables["bias.weight"] = ["item", "history"]
    return fs.Objective(module, LOSS, tables)


def methods() -> dict[str, fs.Method]:
    common = {"lr": 0.3, "clients_per_round": 5}
    return {
        "short batches": fs.methods.fedsubavg(local_steps=3, batch_size=4, **common),
        "epochs": fs.methods.fedprox(local_epochs=2, batch_size=3, mu=0.5, **common),
        "all local data": fs.methods.fedavg(local_steps=2, batch_size=None, **common),
        "replacement": fs.methods.sampled_heat(
            local_steps=3, batch_size=4, batches="replacement", replacement=True, **common
        ),
        "adam": fs.methods.fedsubavg(solver="adam", local_epochs=1, batch_size=2, **common),
        # Of eight clients' gradients one in ten is above the first norm, and nearly all above the second.
        "few clipped": fs.methods.fedsubavg(clip_norm=1.25, local_steps=5, batch_size=4, **common),
        "most clipped": fs.methods.fedsubavg(clip_norm=0.15, local_steps=5, batch_size=4, **common),
    }


def assert_rounds_agree(method, objective, clients, *, rounds: int, update: float, whole: float) -> None:
    """Every round starts from the same parameters; ``update`` is relative to the largest change."""
    one = trainer_for(method, objective, clients, "serial", seed=3)
    many = trainer_for(method, objective, clients, "batched", seed=3)
    for number in range(1, rounds + 1):
        before = {n: p.clone() for n, p in one.params.items()}
        a, b = one.round(number), many.round(number)
        assert a.loss == pytest.approx(b.loss, rel=1e-5)
        for name, p in one.params.items():
            worst = float((p - many.params[name]).abs().max())
            change = float((p - before[name]).abs().max())
            assert change > 0, f"{name} did not move"
            assert worst <= update * change, f"round {number}: {name} differs by {worst / change:.2g}"
            assert worst <= whole * float(p.abs().max()), (number, name)
            many.params[name].copy_(p)


# ---------------------------------------------------------------------- batched equals serial


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


# ---------------------------------------------------------------------- determinism


SETTINGS = pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("lr", "short batches"),
        ("lr", "epochs"),
        ("din", "short batches"),
        ("dropout_layernorm", "epochs"),
        ("narrow", "epochs"),
        ("lr", "adam"),
        ("din", "adam"),
        ("lr", "few clipped"),
        ("lr", "most clipped"),
    ],
)


def three_rounds(kind: str, how: str, chunk: int | None, workers: int):
    """(losses, parameters) after three rounds of eight clients."""
    clients = item_data() if kind == "lr" else DATA
    goal = bag(clients) if kind == "lr" else objective(kind)
    method = replace(methods()[how], sampler=fs.Uniform(8))
    trainer = trainer_for(method, goal, clients, "batched", chunk=chunk, workers=workers, seed=1)
    return [trainer.round(r).loss for r in (1, 2, 3)], trainer.params


@SETTINGS
def test_workers_change_no_bit(kind: str, how: str) -> None:
    losses, params = three_rounds(kind, how, 2, 1)
    again, same = three_rounds(kind, how, 2, 2)
    assert losses == again
    assert equal(params, same)


@SETTINGS
def test_chunks_change_no_bit(kind: str, how: str) -> None:
    losses, params = three_rounds(kind, how, 2, 1)
    for chunk in (3, 7, 8, *[1, None] * (kind == "lr")):
        again, same = three_rounds(kind, how, chunk, 1)
        assert losses == again, chunk
        assert equal(params, same), chunk


@SETTINGS
def test_chunks_change_no_more_than_rounding(kind: str, how: str) -> None:
    losses, params = three_rounds(kind, how, 3, 1)
    again, others = three_rounds(kind, how, 8, 1)
    assert losses == pytest.approx(again, rel=1e-6)
    for name, p in params.items():
        torch.testing.assert_close(p, others[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["din", "dropout_layernorm", "lstm_dropout"])
def test_workers_change_no_bit_in_the_serial_engine(kind: str) -> None:
    found = []
    for workers in (1, 2):
        trainer = trainer_for(methods()["epochs"], objective(kind), DATA, "serial", workers=workers)
        for number in (1, 2, 3):
            trainer.round(number)
        found.append(trainer.params)
    assert equal(*found)


@pytest.mark.parametrize(
    ("engine", "kind"),
    [("serial", "lstm_dropout"), ("serial", "dropout_layernorm"), ("batched", "dropout_layernorm")],
)
def test_the_seed_decides_everything(engine: str, kind: str) -> None:
    def params(seed: int):
        torch.rand(seed + 3)  # the global generator plays no role
        return fs.run(methods()["short batches"], objective(kind), DATA, rounds=3, engine=engine, seed=seed).params

    again = params(5)
    assert equal(params(5), again)
    assert not equal(params(6), again)


class Noisy(Base):
    def encode(self, x, ids, batch):
        return super().encode(x, ids, batch) + 0.3 * torch.rand(len(x), 6)


def test_other_random_numbers_are_seeded_too_whatever_the_workers() -> None:
    found = []
    for workers in (1, 1, 2):
        torch.rand(3)
        found.append(fs.run(methods()["short batches"], objective(Noisy), DATA, rounds=3, workers=workers).params)
    assert equal(found[0], found[1])
    assert equal(found[0], found[2])


def test_dropout_drops_the_right_share_anew_every_step() -> None:
    seen: list[torch.Tensor] = []

    class Probe(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(20, 64)
            nn.init.ones_(self.emb.weight)

        def forward(self, batch):
            x = F.dropout(self.emb(batch["ids"]), 0.25, self.training)
            seen.append(x.detach().clone())
            return x.mean((1, 2))

    goal = fs.Objective(Probe(), LOSS, {"emb.weight": "ids"})
    method = fs.methods.fedavg(lr=1e-9, local_steps=4, batch_size=4, clients_per_round=6)
    trainer = trainer_for(method, goal, item_data(), "serial")
    seen.clear()
    trainer.round(1)
    values = torch.cat([x.reshape(-1) for x in seen])
    assert ((values == 0) | ((values - 4 / 3).abs() < 1e-5)).all()
    share = float((values == 0).float().mean())
    assert abs(share - 0.25) < 4 * (0.25 * 0.75 / len(values)) ** 0.5
    masks = {tuple((x[0] == 0).reshape(-1).tolist()) for x in seen}
    assert len(masks) == len(seen)  # every client and step has a mask of its own


def test_evaluation_and_the_returned_module_use_no_dropout() -> None:
    result = fs.run(methods()["short batches"], objective("dropout_layernorm"), DATA, rounds=1, engine="serial")
    batch = {k: torch.from_numpy(v) for k, v in DATA.gather(torch.arange(20).numpy(), local=False).items()}
    module = result.module()
    assert not module.training
    assert torch.equal(module(batch), module(batch))


# ---------------------------------------------------------------------- fallbacks, each with its sentence


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


# ---------------------------------------------------------------------- errors before training


def refused(goal: fs.Objective, clients=DATA, words: str = "", kind=ObjectiveError) -> None:
    for engine in ("serial", "batched"):
        with pytest.raises(kind) as caught:
            fs.run(methods()["short batches"], goal, clients, rounds=1, engine=engine)
        assert words in str(caught.value), str(caught.value)


def test_an_undeclared_embedding_fed_with_ids() -> None:
    class More(Base):
        def __init__(self):
            super().__init__()
            self.extra = nn.Embedding(ITEMS, 1)

        def forward(self, batch):
            return super().forward(batch) + self.extra(batch["item"]).squeeze(-1)

    refused(objective(More), words="looks up 'extra.weight' with column 'item', but tables does not declare")


def test_an_undeclared_embedding_indexed_by_hand() -> None:
    class More(Base):
        def __init__(self):
            super().__init__()
            self.extra = nn.Parameter(torch.zeros(ITEMS))

        def forward(self, batch):
            return super().forward(batch) + self.extra[batch["item"]]

    refused(objective(More), words="looks up 'extra' with column 'item', but tables does not declare")


def test_a_table_that_is_never_used() -> None:
    class Idle(Base):
        def __init__(self):
            super().__init__()
            self.idle = nn.Embedding(ITEMS, 1)

    torch.manual_seed(0)
    refused(fs.Objective(Idle(), LOSS, {**ALL, "idle.weight": "item"}), words="never looks up the table 'idle")


def test_an_id_column_that_no_table_uses() -> None:
    tables = {k: v for k, v in ALL.items() if k != "slots.weight"}
    refused(fs.Objective(Base(), LOSS, tables), words="No table uses the id column slot")


def test_a_table_that_is_too_small() -> None:
    module = Base()
    module.places = nn.Embedding(PLACES - 1, 2)
    refused(fs.Objective(module, LOSS, ALL), words=f"has {PLACES - 1} rows")
    refused(fs.Objective(module, LOSS, ALL), words="clients.size('place')")


def test_a_larger_table_is_fine() -> None:
    module = Base()
    module.places = nn.Embedding(PLACES + 5, 2)
    before = module.places.weight.detach().clone()
    result = fs.run(methods()["short batches"], fs.Objective(module, LOSS, ALL), DATA, rounds=2)
    assert torch.equal(result.params["places.weight"][PLACES:], before[PLACES:])


def test_the_wrong_column() -> None:
    class Wrong(Base):
        def forward(self, batch):
            return self.slots(batch["item"]).squeeze(-1) + super().forward(batch)

    refused(objective(Wrong), words="looks up 'slots.weight' with column 'item', but tables says it is indexed")


def test_padding_idx_without_reserved_padding() -> None:
    class Wrong(Base):
        def __init__(self):
            super().__init__()
            self.slots = nn.Embedding(SLOTS, 1, padding_idx=0)

    refused(objective(Wrong), words="read the data with padding=('slot',)")


def test_padding_idx_other_than_the_first_row() -> None:
    class Wrong(Base):
        def __init__(self):
            super().__init__(padding_idx=3)

    refused(objective(Wrong), words="only row 0 can be padding")


def test_batch_norm_with_running_statistics() -> None:
    class Normed(Base):
        def __init__(self, **options):
            super().__init__()
            self.norm = nn.BatchNorm1d(6, **options)

        def encode(self, x, ids, batch):
            return self.norm(super().encode(x, ids, batch))

    clients = click_data((4, 5, 6, 7))
    refused(objective(Normed), clients, "buffers do not travel")
    # Without running statistics nothing has to travel; it mixes samples, so ragged batches are serial.
    fine = objective(lambda: Normed(track_running_stats=False))
    method = fs.methods.fedavg(lr=0.1, local_steps=2, batch_size=None, clients_per_round=3)
    assert fs.run(method, fine, clients, rounds=1).engine == "serial"


def test_losses_of_the_wrong_shape() -> None:
    module = objective("base").module
    refused(fs.Objective(module, lambda z, b: LOSS(z, b).unsqueeze(-1), ALL), words="one value per sample")
    refused(fs.Objective(module, lambda z, b: LOSS(z, b)[:0], ALL), words="one value per sample")
    constant: Any = lambda z, b: 1.0  # noqa: E731
    refused(fs.Objective(module, constant, ALL), words="returned float")


def test_columns_numbered_apart() -> None:
    tables = {**ALL, "items.weight": ["item", "place"]}
    refused(fs.Objective(Base(), LOSS, tables), words="numbered apart")


def test_a_column_that_does_not_exist_or_holds_no_ids() -> None:
    refused(fs.Objective(Base(), LOSS, {**ALL, "slots.weight": "slots"}), words="did you mean 'slot'?")
    refused(fs.Objective(Base(), LOSS, {**ALL, "slots.weight": "value"}), words="holds plain values")


def test_a_parameter_that_does_not_exist_or_does_not_train() -> None:
    with pytest.raises(ObjectiveError, match=r"did you mean 'items\.weight'"):
        fs.Objective(Base(), LOSS, {"item.weight": "item"})
    frozen = Base()
    frozen.items.weight.requires_grad_(False)
    with pytest.raises(ObjectiveError, match="requires_grad=False"):
        fs.Objective(frozen, LOSS, ALL)
    with pytest.raises(ObjectiveError, match="no parameters"):
        fs.Objective(nn.ReLU(), LOSS)
    with pytest.raises(ObjectiveError, match="No column indexes"):
        fs.Objective(Base(), LOSS, {**ALL, "slots.weight": []})


def test_an_unknown_engine() -> None:
    with pytest.raises(ConfigError, match="engine must be one of"):
        fs.run(methods()["short batches"], objective("base"), DATA, rounds=1, engine="fast")


# ---------------------------------------------------------------------- the user's module


@pytest.mark.parametrize("engine", ["serial", "batched", "auto"])
def test_the_users_module_is_left_alone(engine: str) -> None:
    goal = objective("dropout_layernorm")
    before = {k: v.clone() for k, v in goal.module.state_dict().items()}
    goal.module.eval()
    result = fs.run(methods()["short batches"], goal, DATA, rounds=2, engine=engine)
    assert equal(dict(goal.module.state_dict()), before)
    assert not goal.module.training
    assert all(p.grad is None for p in goal.module.parameters())
    assert not equal(dict(result.module().state_dict()), before)
    assert not any(
        p.data_ptr() == q.data_ptr()
        for p, q in zip(goal.module.parameters(), result.module().parameters(), strict=True)
    )


def test_copy_false_trains_the_module_itself() -> None:
    expected = fs.run(methods()["short batches"], objective("base"), DATA, rounds=2, engine="batched").params
    goal = objective("base")
    fs.run(methods()["short batches"], goal, DATA, rounds=2, engine="batched", copy=False)
    assert equal({n: p.detach() for n, p in goal.module.named_parameters()}, expected)


def test_frozen_parameters_are_constants() -> None:
    goal = objective("base")
    goal.module.get_parameter("out.weight").requires_grad_(False)
    problem = Problem.bind(goal, DATA)
    assert "out.weight" not in problem.names
    assert_rounds_agree(methods()["short batches"], goal, DATA, rounds=1, update=2e-4, whole=1e-5)
    result = fs.run(methods()["short batches"], goal, DATA, rounds=1)
    assert torch.equal(*(module.get_parameter("out.weight") for module in (result.module(), goal.module)))


def test_inputs_as_positional_arguments() -> None:
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(20, 1)

        def forward(self, ids):
            return self.emb(ids).sum((1, 2))

    goal = fs.Objective(Plain(), LOSS, {"emb.weight": "ids"}, inputs=("ids",))
    method = fs.methods.fedavg(lr=0.3, local_steps=3, batch_size=4, clients_per_round=5)
    assert_rounds_agree(method, goal, item_data(), rounds=2, update=2e-4, whole=1e-5)
