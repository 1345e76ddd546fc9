"""Models with parameters of each client's own come back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from loading import CLIENTS, check_clients, kept_model, says, scorer, train

import fedsub as fs


@pytest.mark.parametrize("names", [("last",), ("items.weight", "out.*")], ids=["layer", "table"])
def test_personal_parameters(tmp_path: Path, monkeypatch, names):
    seen, objective = kept_model(monkeypatch), scorer()
    train(tmp_path / "run", fs.methods.fedper(lr=0.5, clients_per_round=4, personal=list(names)), objective)
    check_clients(fs.load(tmp_path / "run"), objective, seen[-1])


def test_mixture(tmp_path: Path, monkeypatch):
    seen = kept_model(monkeypatch)
    objective = fs.models.make_objective(CLIENTS, "lr", bias=True, l2=0.1)
    result = train(tmp_path / "run", fs.methods.l2gd(lam=0.5), objective)
    trained = fs.load(tmp_path / "run")
    assert torch.equal(says(trained.module()), says(result.module()))
    check_clients(trained, objective, seen[-1])


def test_factorisation(tmp_path: Path, monkeypatch):
    seen = kept_model(monkeypatch)
    objective = fs.models.make_objective(CLIENTS, "factorisation", rank=2)
    result = train(tmp_path / "run", fs.methods.fedmavg(), objective)
    trained = fs.load(tmp_path / "run")
    assert torch.equal(says(trained.module()), says(result.module()))
    check_clients(trained, objective, seen[-1])
