"""A module of one's own, trained and kept, and what it says of the data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import nn

import fedsub as fs
from fedsub.objective.problem import Problem
from fedsub.round.memory import ClientState
from fedsub.round.predict import PersonalModel, Predictor

ROUNDS = 4


def data(seed: int = 0) -> fs.Clients:
    """Nine clients and thirty items with names, a value and a label; ids are text."""
    draw = np.random.default_rng(seed)
    n = 120
    frame = pl.DataFrame(
        {
            "user": [f"user {k % 9}" for k in range(n)],
            "item": [f"item {k}" for k in draw.integers(0, 30, n)],
            "shop": draw.integers(100, 105, n),
            "value": draw.normal(size=n).astype(np.float32),
            "label": draw.integers(0, 2, n),
        }
    )
    return fs.Clients.from_frame(frame, "user", ids=["item", "shop"], label="label", values=["value"])


CLIENTS = data()


class Scorer(nn.Module):
    """A table of items and one of shops, a frozen scale and a buffer."""

    def __init__(self, items: int, shops: int, dtype=torch.float32, shift: float = 0.5):
        super().__init__()
        self.items = nn.Embedding(items, 3, dtype=dtype)
        self.shops = nn.Embedding(shops, 3, dtype=dtype)
        self.out = nn.Linear(3, 1, dtype=dtype)
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=dtype), requires_grad=False)
        self.register_buffer("shift", torch.tensor(shift, dtype=dtype))

    def forward(self, batch):
        hidden = (self.items(batch["item"]) + self.shops(batch["shop"])).tanh()
        return (self.out(hidden).squeeze(-1) + self.shift) * self.scale


def scorer(seed: int = 0, **options) -> fs.Objective:
    torch.manual_seed(seed)
    module = Scorer(CLIENTS.size("item"), CLIENTS.size("shop"), **options)
    return fs.Objective(module, fs.losses.binary("label"), {"items.weight": "item", "shops.weight": "shop"})


def batch(clients: fs.Clients = CLIENTS, samples: np.ndarray | None = None) -> dict[str, torch.Tensor]:
    some = np.arange(clients.samples) if samples is None else samples
    return {name: torch.from_numpy(a) for name, a in clients.gather(some, local=False).items()}


def says(module: nn.Module, samples: np.ndarray | None = None) -> torch.Tensor:
    assert not module.training
    with torch.no_grad():
        return module(batch(samples=samples))


def train(out: Path, method=None, objective=None, **options) -> fs.Result:
    method = method or fs.methods.fedsubavg(lr=0.5, clients_per_round=4)
    return fs.run(method, objective or scorer(), CLIENTS, rounds=ROUNDS, out=out, checkpoint_every=2, **options)


METHODS = {
    "fedsubavg": fs.methods.fedsubavg(lr=0.5, clients_per_round=4),
    "fedsubadam": fs.methods.fedsubadam(lr=0.5, clients_per_round=2),
    "centralsgd": fs.methods.centralsgd(lr=0.5),
}


def personal_outputs(problem: Problem, model: PersonalModel) -> torch.Tensor:
    predictor = Predictor(problem, tuple(problem.clients.columns), torch.device("cpu"))
    return predictor(model, problem.clients, np.arange(problem.clients.samples))[1]


def check_clients(trained: fs.Trained, objective: fs.Objective, model: PersonalModel) -> None:
    """Every client's module has its own values exactly and says what its personal model says."""
    expected = personal_outputs(Problem.bind(objective, CLIENTS), model)
    assert trained.personal is not None
    assert trained.personal.client_ids.tolist() == CLIENTS.client_ids.tolist()
    shared = says(trained.module(objective))
    different = 0
    for k, client in enumerate(CLIENTS.client_ids):
        samples = np.arange(CLIENTS.offsets[k], CLIENTS.offsets[k + 1])
        module = trained.module(objective, client=client)
        found = says(module, samples)
        torch.testing.assert_close(found, expected[samples], rtol=1e-5, atol=1e-6)
        different += not torch.equal(found, shared[samples])
        assert isinstance(model.kept, ClientState)
        own = model.kept.read(model.slot, np.array([k]))
        params = dict(module.named_parameters())
        for name, value in trained.personal.params(client).items():
            rows = trained.personal.rows(client).get(name)
            assert torch.equal(value, own[name][0] if rows is None else own[name])
            assert torch.equal(params[name] if rows is None else params[name][rows], value)
    assert different == len(CLIENTS)


def kept_model(monkeypatch) -> list[PersonalModel]:
    """What the run hands over to be kept, to compare with what comes back."""
    from fedsub.running import keep

    seen: list[PersonalModel] = []
    end = keep.end

    def watched(folder, problem, params, model):
        seen.append(model)
        return end(folder, problem, params, model)

    monkeypatch.setattr(keep, "end", watched)
    return seen
