"""Checkpoints: what was saved comes back to the bit."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from histories import ROWS, WIDTH, check, check_loaded, cloned, random_bits, run, same
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedsub.disk import tensorfile
from fedsub.disk.checkpoint import Checkpoints, Snapshot
from fedsub.errors import CheckpointError

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_bit_comes_back(tmp_path: Path, dtype: torch.dtype) -> None:
    state = Snapshot(
        3,
        {
            "scalar": random_bits((), dtype),
            "empty": random_bits((0, 2), dtype),
            "cube": random_bits((2, 3, 4), dtype),
        },
        {
            "wide": random_bits((60, 5), dtype),
            "flat": random_bits((70,), dtype),
            "none": random_bits((0, 4), dtype),
        },
    )
    saved = Checkpoints(tmp_path, full_every_bytes=5)
    assert saved.save(state, None).name == "round-00000003.full.safetensors"
    assert same(check_loaded(tmp_path).tables, state.tables)
    state.round = 4
    state.tables["wide"][[1, 59]] = random_bits((2, 5), dtype, seed=1)
    state.tables["flat"][0] = random_bits((1,), dtype, seed=2)[0]
    moved = {"wide": np.array([59, 1, 1]), "flat": torch.tensor([0]), "none": np.array([], dtype=np.int64)}
    assert saved.save(state, moved).name == "round-00000004.rows.safetensors"
    found = check_loaded(tmp_path)
    assert same(found.tables, state.tables)
    assert same(found.tensors, state.tensors)


def test_meta_comes_back(tmp_path: Path) -> None:
    meta = {
        "best": math.inf,
        "losses": [0.1, -math.inf],
        "state": 2**127 + 1,
        "text": "é",
        "count": np.int64(3),
    }
    Checkpoints(tmp_path).save(Snapshot(0, meta=meta), None)
    assert check_loaded(tmp_path).meta == meta
    for bad in ({"clients": {3: 1}}, {"x": [object()]}):
        with pytest.raises(TypeError):
            Checkpoints(tmp_path).save(Snapshot(1, meta=bad), None)
    with pytest.raises(CheckpointError, match="reserved"):
        Checkpoints(tmp_path).save(Snapshot(1, meta={"a": [{"$float": 1}]}), None)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), keep=st.integers(1, 3), ratio=st.sampled_from([0.0, 0.3, 1.0, 4.0]))
def test_any_history_restores_exactly(data: st.DataObject, keep: int, ratio: float) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "checkpoints"
        saved = Checkpoints(folder, keep=keep, full_every_bytes=ratio)
        tables = {"a": torch.zeros(20, 3), "b": torch.zeros(9, dtype=torch.bfloat16)}
        state = Snapshot(0, {"t": torch.zeros(())}, tables)
        moved: dict[str, set[int]] | None = None
        last: Snapshot | None = None
        for step in range(data.draw(st.integers(1, 14))):
            action = data.draw(st.sampled_from(["move", "move", "save", "save", "load", "reopen", "grow"]))
            if action == "move":
                for key, table in tables.items():
                    ids = data.draw(st.lists(st.integers(0, len(table) - 1), max_size=4))
                    table[ids] = float(step + 1)
                    if moved is not None:
                        moved[key].update(ids)
            elif action == "grow":
                tables["a"] = state.tables["a"] = torch.cat([tables["a"], torch.ones(1, 3)])
            elif action == "save":
                state.round += data.draw(st.integers(1, 3))
                state.meta, state.tensors["t"] = {"step": step}, torch.tensor(float(step))
                rows = moved if moved is None else {k: np.array(sorted(v), dtype=np.int64) for k, v in moved.items()}
                saved.save(state, rows)
                last, moved = cloned(state), {key: set() for key in tables}
            elif last is not None:
                if action == "reopen":
                    saved = Checkpoints(folder, keep=keep, full_every_bytes=ratio)
                fits = {k: v for k, v in tables.items() if v.shape == last.tables[k].shape}
                state, notes = saved.load(into=fits)
                assert notes == []
                assert (state.round, state.meta) == (last.round, last.meta)
                assert same(state.tables, last.tables)
                assert same(state.tensors, last.tensors)
                assert all(state.tables[k] is fits[k] for k in fits)
                tables, moved = state.tables, {key: set() for key in state.tables}
        if last is not None:
            check(folder, {last.round: last}, last.round)


def test_tensors_as_training_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters, transposed tables, shared memory; and pieces smaller than a table."""
    monkeypatch.setattr(tensorfile, "CHUNK", 64)
    weight = torch.nn.Parameter(random_bits((300, 4), torch.float32))
    tables: dict[str, Tensor] = {
        "tied": weight,
        "view": weight,
        "turned": random_bits((5, 90), torch.float16).T,
    }
    saved = Checkpoints(tmp_path)
    saved.save(Snapshot(0, {"view": weight[:2]}, tables), None)
    with torch.no_grad():
        weight[10:40] = 1
    ids = np.arange(10, 40)
    assert ".rows." in saved.save(Snapshot(1, {}, tables), {"tied": ids, "view": ids, "turned": ids}).name
    target = torch.nn.Parameter(torch.zeros(300, 4))
    found, _ = Checkpoints(tmp_path).load(into={"tied": target})
    assert found.tables["tied"] is target
    assert same(found.tables, tables)


def test_into_must_fit_and_is_not_touched_otherwise(tmp_path: Path) -> None:
    run(tmp_path, 2)
    target = torch.zeros(ROWS, WIDTH)
    with pytest.raises(CheckpointError, match="has no table users; it holds items"):
        Checkpoints(tmp_path).load(into={"items": target, "users": target})
    with pytest.raises(CheckpointError, match="another model"):
        Checkpoints(tmp_path).load(into={"items": torch.zeros(ROWS, WIDTH + 1)})
    with pytest.raises(CheckpointError, match="another model"):
        Checkpoints(tmp_path).load(into={"items": target.double()})
    assert not target.any()
