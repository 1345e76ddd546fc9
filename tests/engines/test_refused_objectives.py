"""Objectives that do not fit their data are refused before training, in every engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine_checks import methods, refused
from engine_modules import ALL, DATA, ITEMS, LOSS, PLACES, SLOTS, Base, objective
from torch import nn
from worlds import click_data

import fedsub as fs
from fedsub.errors import ConfigError, ObjectiveError


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
