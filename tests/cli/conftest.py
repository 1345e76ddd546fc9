"""Small files to run the command line on."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

OWN = """
import fedsub as fs
from torch import nn

class Scorer(nn.Module):
    def __init__(self, items):
        super().__init__()
        self.items, self.out = nn.Embedding(items, 3), nn.Linear(3, 1)

    def forward(self, batch):
        return self.out(self.items(batch["item"])).squeeze(-1)

def make_objective(clients, seed):
    return fs.Objective(Scorer(clients.size("item")), fs.losses.binary("liked"), tables={"items.weight": "item"})

def without_seed(clients):
    return make_objective(clients, 0)

def fails(clients):
    return 1 / 0

def nothing(clients):
    return 3

def leaves(clients):
    raise SystemExit(0)
"""

OWN_METHOD = """
from dataclasses import dataclass
import fedsub as fs

@dataclass(frozen=True)
class Dynamic(fs.Part):
    alpha: float = 0.1

    def grad(self, grads, params, work):
        return {k: g + self.alpha * (params[k] - work.sent[k]) for k, g in grads.items()}

def dynamic(alpha: float = 0.1, *, lr: float = 0.3, clients_per_round: int | None = 5):
    sampler = fs.Everyone() if clients_per_round is None else fs.Uniform(clients_per_round)
    return fs.Method(local=fs.SGD(lr=lr), parts=(Dynamic(alpha),), average=fs.OverHolders(), server=fs.Add(),
                     sampler=sampler, name="dynamic")

def needs(alpha: float):
    return dynamic(alpha)

def shared(alpha: float = 0.1, **common):
    return fs.methods.fedsubavg(**common)

def nothing():
    return 3

def fails():
    return 1 / 0
"""

STUDY = """
[data]
path = "ratings.csv"
client = "user"
label = "liked"
tables = ["item"]

[model]
objective = "my_model:make_objective"

[methods]
fedavg = { lr = 0.2 }
"Capped" = { method = "fedsubavg", max_coef = 5, lr = 0.2 }

[train]
rounds = 4
clients_per_round = 5

[run]
engine = "batched"

[evaluate]
every = 2
"""


@pytest.fixture
def real_report() -> None:
    """Ask for it to have the report drawn."""


@pytest.fixture(autouse=True)
def quick_report(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes longer than these trainings; tests/report/ is about it."""
    if "real_report" in request.fixturenames:
        return
    import fedsub.study.report

    def write_report(comparison, folder):
        page = Path(folder) / "report.html"
        page.write_text(comparison.table())
        return page

    monkeypatch.setattr(fedsub.study.report, "write_report", write_report)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with ratings.csv, my_model.py, my_method.py and study.toml."""
    draw = random.Random(0)
    lines = ["user,item,genre,time,liked"]
    for user in range(20):
        for _ in range(draw.randint(5, 12)):
            item = min(39, int(draw.expovariate(1 / 8)))
            like = int(draw.random() < (0.8 if item % 3 else 0.3))
            lines.append(f"u{user},i{item},g{item % 4},{draw.randint(0, 999)},{like}")
    (tmp_path / "ratings.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "my_model.py").write_text(OWN)
    (tmp_path / "my_method.py").write_text(OWN_METHOD)
    (tmp_path / "study.toml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSUB_TRACEBACK", raising=False)
    return tmp_path
