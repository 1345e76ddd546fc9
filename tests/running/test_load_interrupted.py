"""A run that was interrupted is read from its checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from loading import CLIENTS, METHODS, says, scorer, train

import fedsub as fs
from fedsub.errors import ObjectiveError
from fedsub.running.callbacks import Callback


class Stop(Callback):
    """Ends a run as a crash would, after a round."""

    def __init__(self, after: int):
        self.after = after

    def on_round(self, record):
        if record["round"] == self.after:
            raise KeyboardInterrupt


def test_an_interrupted_run_is_read_from_its_checkpoint(tmp_path: Path):
    objective = fs.models.make_objective(CLIENTS, "embedding", seed=1)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", objective=objective, callbacks=[Stop(3)])
    trained = fs.load(tmp_path / "run")
    assert (trained.finished, trained.round) == (False, 2)
    assert "round 2" in trained.notes[0]
    method = fs.methods.fedsubavg(lr=0.5, clients_per_round=4)
    shorter = fs.run(method, objective, CLIENTS, rounds=2)
    assert torch.equal(says(trained.module()), says(shorter.module()))
    assert trained.vocabulary["item"] is not None


def test_personal_parameters_of_an_interrupted_run(tmp_path: Path):
    objective, method = scorer(), fs.methods.fedper(lr=0.5, clients_per_round=4)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", method, objective, callbacks=[Stop(3)])
    fs.run(method, objective, CLIENTS, rounds=2, out=tmp_path / "shorter")
    half, shorter = fs.load(tmp_path / "run"), fs.load(tmp_path / "shorter")
    for client in CLIENTS.client_ids:
        assert torch.equal(
            says(half.module(objective, client=client)), says(shorter.module(objective, client=client))
        )  # fmt: skip


def test_constants_that_a_checkpoint_lacks_must_be_the_same(tmp_path: Path):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", callbacks=[Stop(3)])
    trained = fs.load(tmp_path / "run")
    trained.module(scorer(seed=9))
    with pytest.raises(ObjectiveError, match="shift of the module, which training keeps"):
        trained.module(scorer(shift=0.25))


def test_a_lazy_server_that_was_interrupted_owes_rounds(tmp_path: Path):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", METHODS["fedsubadam"], callbacks=[Stop(3)])
    assert any("owes" in note for note in fs.load(tmp_path / "run").notes)
