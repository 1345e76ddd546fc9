"""Saves that are killed, fail or are refused, and folders with nothing to load."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from histories import check, cloned, record_file, reseal, run

from fedsub.disk import checkpoint
from fedsub.disk.checkpoint import Checkpoints, Snapshot
from fedsub.disk.files import TEMPORARY
from fedsub.errors import CheckpointError, RunError


def test_a_kill_during_a_save(tmp_path: Path) -> None:
    _, history = run(tmp_path, 3, full_every_bytes=10)
    leftover = tmp_path / f".round-00000003.json.17{TEMPORARY}"
    leftover.write_bytes(b"{")
    (tmp_path / "round-00000003.rows.safetensors").write_bytes(b"whole or not")
    (note,) = check(tmp_path, history, 2)
    assert "round 3 is incomplete (round-00000003.json is missing); going back to round 2." in note
    assert leftover.exists()  # who only reads may read while another process is writing
    assert Checkpoints(tmp_path).latest_round() == 2
    saved = Checkpoints(tmp_path)
    state, _ = saved.load()
    state.round = 9
    saved.save(state, {"items": np.array([], dtype=np.int64)})
    assert not leftover.exists()
    assert not (tmp_path / "round-00000003.rows.safetensors").exists()


@pytest.mark.parametrize("fails_at", ["safetensors", "json"])
def test_a_save_that_fails_can_be_repeated(tmp_path: Path, monkeypatch, fails_at: str) -> None:
    saved, history = run(tmp_path, 3, full_every_bytes=10)
    original = checkpoint.write_atomic

    def refuse(path, content, **options):
        if path.name.endswith(fails_at):
            raise RunError("the disk is full")
        return original(path, content, **options)

    state = cloned(history[2])
    state.round = 3
    state.tables["items"][5] = 5
    monkeypatch.setattr(checkpoint, "write_atomic", refuse)
    with pytest.raises(RunError):
        saved.save(state, {"items": np.array([5])})
    assert len(check(tmp_path, history, 2)) == (fails_at == "json")
    monkeypatch.undo()
    saved.save(state, {"items": np.array([5])})
    assert check(tmp_path, {3: state}, 3) == []


def test_nothing_to_load(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        assert Checkpoints(folder).latest_round() is None
        with pytest.raises(CheckpointError, match="There is no checkpoint in"):
            Checkpoints(folder).load()


def test_foreign_folders_and_newer_versions(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    for call in (Checkpoints(tmp_path).load, lambda: Checkpoints(tmp_path).save(Snapshot(0), None)):
        with pytest.raises(CheckpointError, match=r"holds other files \(thesis.tex\)"):
            call()
    assert os.listdir(tmp_path) == ["thesis.tex"]
    with pytest.raises(CheckpointError, match="is a file"):
        Checkpoints(tmp_path / "thesis.tex").load()
    folder = tmp_path / "checkpoints"
    run(folder, 2)
    reseal(record_file(folder, 1), version=2)
    with pytest.raises(CheckpointError, match="version 2, this fedsub reads up to 1"):
        Checkpoints(folder).load()
    reseal(record_file(folder, 1), version=1, format="other")
    with pytest.raises(CheckpointError, match="format 'other'"):
        Checkpoints(folder).load()


def test_rounds_only_grow_and_nobody_elses_are_overwritten(tmp_path: Path) -> None:
    saved, history = run(tmp_path, 3)
    with pytest.raises(CheckpointError, match="already holds round 2; save later rounds only"):
        saved.save(history[2], None)
    with pytest.raises(CheckpointError, match=r"already holds round 2; load\(\) it first"):
        Checkpoints(tmp_path).save(history[0], None)
    assert check(tmp_path, history, 2) == []
    late = cloned(history[2])
    late.round = 10
    path = Checkpoints(tmp_path).save(late, {"items": np.array([1])})  # since which save, nobody knows
    assert ".full." in path.name
    assert check(tmp_path, {10: late}, 10) == []


def test_what_cannot_be_saved_is_said(tmp_path: Path) -> None:
    saved = Checkpoints(tmp_path)
    with pytest.raises(CheckpointError, match="single number"):
        saved.save(Snapshot(0, tables={"t": torch.zeros(())}), None)
    with pytest.raises(CheckpointError, match="cannot be saved"):
        saved.save(Snapshot(0, {"t": torch.zeros(2, dtype=torch.complex128)}), None)
    with pytest.raises(CheckpointError, match="counted from 0"):
        saved.save(Snapshot(-1), None)
    with pytest.raises(CheckpointError, match="keep=0"):
        Checkpoints(tmp_path, keep=0)
    assert os.listdir(tmp_path) == []
