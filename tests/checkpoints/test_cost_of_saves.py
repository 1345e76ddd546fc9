"""A checkpoint costs what moved, within an allowance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from histories import check_loaded, same
from torch import Tensor

from fedsub.disk import checkpoint
from fedsub.disk.checkpoint import Checkpoints, Snapshot
from fedsub.errors import CheckpointError


def test_a_save_costs_what_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    original = checkpoint.write_atomic

    def counting(path, content, **options):
        result = original(path, content, **options)
        written.append(result[0])
        return result

    monkeypatch.setattr(checkpoint, "write_atomic", counting)
    table = torch.zeros(100_000, 16)
    saved = Checkpoints(tmp_path)
    saved.save(Snapshot(0, tables={"t": table}), None)
    assert sum(written) > table.nbytes
    for number, count in enumerate((0, 10, 1000, 20_000), start=1):
        written.clear()
        saved.save(Snapshot(number, tables={"t": table}), {"t": np.arange(count)})
        assert count * (64 + 8) <= sum(written) <= count * (64 + 8) + 1500
        assert len(written) == 2


def test_row_files_stay_within_their_allowance(tmp_path: Path) -> None:
    table = torch.zeros(1000, 16)
    saved = Checkpoints(tmp_path, full_every_bytes=0.5)
    total = 0
    for number in range(60):
        path = saved.save(Snapshot(number, tables={"t": table}), {"t": np.arange(100)})
        total += path.stat().st_size
        chain = sum(p.stat().st_size for p in tmp_path.glob("*.rows.safetensors"))
        assert chain <= 2 * 0.5 * table.nbytes * 1.1  # two chains are kept
        assert len(list(tmp_path.glob("*.full.safetensors"))) <= 2
    # 7,200 bytes a save for the rows alone: the full ones in between cost a constant factor on top.
    assert total < 60 * 7200 * 4
    assert Checkpoints(tmp_path).load()[0].round == 59


def test_a_small_table_ends_up_as_full_saves(tmp_path: Path) -> None:
    saved = Checkpoints(tmp_path)
    for number in range(4):
        path = saved.save(Snapshot(number, tables={"t": torch.ones(4, 2)}), {"t": np.arange(4)})
        assert ".full." in path.name
    assert sorted(p.name[:14] for p in tmp_path.glob("*.json")) == ["round-00000002", "round-00000003"]


def test_full_when_what_moved_is_not_known_or_the_layout_changed(tmp_path: Path) -> None:
    saved = Checkpoints(tmp_path)
    table, none = torch.zeros(500, 4), np.array([], dtype=np.int64)

    def kind(number: int, tables: dict[str, Tensor], moved) -> str:
        return saved.save(Snapshot(number, tables=tables), moved).name.split(".")[1]

    assert kind(0, {"t": table}, {"t": none}) == "full"
    assert kind(1, {"t": table}, {"t": none}) == "rows"
    assert kind(2, {"t": table}, None) == "full"
    assert kind(3, {"t": table}, {}) == "full"
    assert kind(4, {"t": table.double()}, {"t": none}) == "full"
    assert kind(5, {"t": table.double(), "u": table}, {"t": none, "u": none}) == "full"
    assert kind(6, {"t": table.double(), "u": table}, {"t": none, "u": none}) == "rows"


def test_row_ids_are_checked_and_masks_understood(tmp_path: Path) -> None:
    saved = Checkpoints(tmp_path)
    table = torch.zeros(500, 4)
    saved.save(Snapshot(0, tables={"t": table}), None)
    for bad in (np.array([500]), np.array([-1]), np.array([0.5])):
        with pytest.raises(CheckpointError, match="from 0 to 499"):
            saved.save(Snapshot(1, tables={"t": table}), {"t": bad})
    with pytest.raises(CheckpointError, match="moved names u; the tables are t"):
        saved.save(Snapshot(1, tables={"t": table}), {"t": np.array([1]), "u": np.array([1])})
    table[7] = 1
    assert ".rows." in saved.save(Snapshot(1, tables={"t": table}), {"t": table[:, 0] > 0}).name
    assert same(check_loaded(tmp_path).tables, {"t": table})
