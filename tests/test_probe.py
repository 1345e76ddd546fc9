"""Modules that would run on submodels and be wrong are refused before training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import fedsub as fs
from fedsub.errors import ConfigError, ObjectiveError


def data(clients: int = 6, rows: int = 9) -> fs.Clients:
    draw = np.random.default_rng(0)
    n = clients * 5
    arrays = {"item": draw.integers(3, rows, n), "label": draw.integers(0, 2, n)}
    return fs.Clients.from_arrays(
        arrays, client=np.repeat(np.arange(clients), 5), ids=["item"], label="label", sizes={"item": rows}
    )


class Base(nn.Module):
    def __init__(self, rows: int = 9):
        super().__init__()
        self.items, self.out = nn.Embedding(rows, 3), nn.Linear(3, 1)
        nn.init.zeros_(self.items.weight)

    def forward(self, batch):
        return self.out(self.items(batch["item"])).squeeze(-1)


class Arithmetic(Base):
    def forward(self, batch):
        return super().forward(batch) + 0.1 * batch["item"]


class Modulo(Base):
    def forward(self, batch):
        return self.out(self.items(batch["item"] % 2)).squeeze(-1)


class Beyond(Base):
    def forward(self, batch):
        return self.out(self.items(batch["item"] + 1)).squeeze(-1)


class Bound(Base):
    def __init__(self):
        super().__init__()
        self.head = lambda rows: self.out(rows)

    def forward(self, batch):
        return self.head(self.items(batch["item"])).squeeze(-1)


class Counts(Base):
    def __init__(self):
        super().__init__()
        self.seen = torch.zeros(())

    def forward(self, batch):
        self.seen = self.seen + 1
        return super().forward(batch) * self.seen


class Detached(Base):
    def forward(self, batch):
        return super().forward(batch).detach()


class Keeps(Base):
    """Keeps an intermediate result, as people do with attention weights: fine."""

    def forward(self, batch):
        self.rows = self.items(batch["item"])
        return self.out(self.rows).squeeze(-1)


def run(module: nn.Module, clients: fs.Clients | None = None, **options):
    clients = clients or data()
    objective = fs.Objective(module, fs.losses.binary("label"), {"items.weight": "item"})
    method = fs.methods.fedsubavg(lr=0.1, local_steps=2, batch_size=2, clients_per_round=2)
    return fs.run(method, objective, clients, rounds=2, **options)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Arithmetic(), "other losses on a client's submodel than on the full tables"),
        (Modulo(), "other losses on a client's submodel than on the full tables"),
        (Beyond(), "look ids up as they come|looking rows up"),
        (Bound(), "still uses parameter 'out.weight' of the original"),
        (Counts(), "different losses for the same batch"),
        (Detached(), "does not depend on any trained parameter"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
@pytest.mark.parametrize("engine", ["serial", "auto"])
def test_refused(module: nn.Module, message: str, engine: str) -> None:
    with pytest.raises(ObjectiveError, match=message):
        run(module, engine=engine)


@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_a_module_may_keep_intermediate_results(engine: str) -> None:
    torch.manual_seed(0)
    kept, plain = Keeps(), Base()
    plain.load_state_dict(kept.state_dict())
    for name, value in run(kept, engine=engine).params.items():
        torch.testing.assert_close(value, run(plain, engine=engine).params[name])


def test_a_split_numbered_otherwise_is_refused() -> None:
    def read(items: list[str]) -> fs.Clients:
        return fs.Clients.from_arrays(
            {"item": items, "label": [0, 1, 0, 1]}, client=np.array([0, 0, 1, 1]), ids=["item"], label="label"
        )

    train, other = read(["a", "b", "a", "c"]), read(["a", "b", "a", "d"])
    with pytest.raises(ConfigError, match="numbers the rows of 'item' otherwise"):
        run(Base(3), train, test=other)


def test_labels_must_suit_the_loss() -> None:
    clients = fs.Clients.from_arrays(
        {"item": [0, 1, 2], "label": [0, 1, 7]}, client=np.array([0, 0, 1]), ids=["item"], label="label",
        binary_label=False, sizes={"item": 3},
    )  # fmt: skip
    with pytest.raises(ObjectiveError, match="needs labels 0 and 1, but column 'label' holds 7"):
        run(Base(3), clients)


@pytest.mark.parametrize("wrong", [{"module": Base}, {"module": None}, {"tables": "items.weight"}, {"loss": 3}])
def test_an_objective_of_wrong_types(wrong) -> None:
    given = {"module": Base(), "loss": fs.losses.binary("label"), "tables": {"items.weight": "item"}, **wrong}
    with pytest.raises(ObjectiveError, match="must"):
        fs.Objective(**given)


@pytest.mark.parametrize("wrong", [{"every": 0}, {"every": 1.5}, {"samples": 0}, {"final_samples": -5}])
def test_evaluate_wants_whole_numbers(wrong) -> None:
    with pytest.raises(ConfigError, match="whole number"):
        fs.Evaluate(**wrong)
