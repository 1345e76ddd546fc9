"""Checkpoints: what was saved comes back to the bit, and damage costs a round, not the run."""

from __future__ import annotations

import json
import math
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedsub.disk import checkpoint, tensorfile
from fedsub.disk.checkpoint import Checkpoints, Snapshot
from fedsub.disk.files import TEMPORARY
from fedsub.disk.seal import seal_of
from fedsub.errors import CheckpointError, RunError

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64, torch.bool]
ROWS, WIDTH = 200, 4


def random_bits(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Every pattern of bits, NaNs with payloads included."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(2, shape, generator=generator).bool()
    flat = torch.randint(256, (math.prod(shape) * dtype.itemsize,), generator=generator, dtype=torch.uint8)
    return flat.view(dtype).reshape(shape)


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[k].dtype == other[k].dtype and one[k].shape == other[k].shape and bits(one[k]) == bits(other[k])
        for k in one
    )


def cloned(state: Snapshot) -> Snapshot:
    copy = {"tensors": state.tensors, "tables": state.tables}
    parts = {part: {k: v.clone() for k, v in d.items()} for part, d in copy.items()}
    return Snapshot(state.round, parts["tensors"], parts["tables"], dict(state.meta))


def run(folder: Path, rounds: int, **options) -> tuple[Checkpoints, dict[int, Snapshot]]:
    """A run that moves three rows a round and saves each one; also what it looked like every time."""
    saved = Checkpoints(folder, **options)
    state = Snapshot(0, {"bias": torch.zeros(3)}, {"items": random_bits((ROWS, WIDTH), torch.float32)})
    history = {}
    for number in range(rounds):
        ids = np.array([number, number + 1, ROWS - 1])
        state.round, state.meta = number, {"seen": number * 10}
        state.tables["items"][ids] += number
        state.tensors["bias"] += 1
        saved.save(state, {"items": ids})
        history[number] = cloned(state)
    return saved, history


def check(folder: Path, history: dict[int, Snapshot], number: int) -> list[str]:
    """Load in a new process, so to speak; returns the sentences."""
    found, notes = Checkpoints(folder).load()
    expected = history[number]
    assert (found.round, found.meta) == (number, expected.meta)
    assert same(found.tensors, expected.tensors)
    assert same(found.tables, expected.tables)
    return notes


def data_file(folder: Path, number: int) -> Path:
    return next(folder.glob(f"round-{number:08d}.*.safetensors"))


def record_file(folder: Path, number: int) -> Path:
    return folder / f"round-{number:08d}.json"


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8 % len(content)] ^= 1 << bit % 8
    path.write_bytes(content)


def reseal(path: Path, **changes: object) -> None:
    """Change a record as another program would have written it."""
    data = json.loads(path.read_bytes()) | changes
    path.write_text(json.dumps(data | {"seal": seal_of(data)}))


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


def check_loaded(folder: Path) -> Snapshot:
    found, notes = Checkpoints(folder).load()
    assert notes == []
    return found


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


def test_a_save_costs_what_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    original = checkpoint.write_atomic

    def counting(path, content):
        result = original(path, content)
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


@settings(max_examples=60, deadline=None)
@given(
    ratio=st.sampled_from([0.0, 10.0]),  # the newest is a full one, or rows
    record=st.booleans(),
    bit=st.integers(0, 10**6),
    cut=st.one_of(st.none(), st.floats(0, 1, exclude_max=True)),
)
def test_damage_to_the_newest_falls_back_to_the_one_before(ratio, record, bit, cut) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _, history = run(folder, 3, full_every_bytes=ratio)
        path = record_file(folder, 2) if record else data_file(folder, 2)
        before = path.read_bytes()
        if cut is None:
            flip(path, bit)
        else:
            path.write_bytes(before[: int(len(before) * cut)])
        if record and _means_the_same(before, path.read_bytes()):
            assert check(folder, history, 2) == []  # the end of line, or 1E5 for 1e5
            return
        (note,) = check(folder, history, 1)
        assert note.startswith("Checkpoint of round 2 is damaged (")
        assert note.endswith("; going back to round 1.")
        if not record and cut is not None:
            assert f"bytes, expected {len(before):,})" in note


def _means_the_same(one: bytes, other: bytes) -> bool:
    try:
        return json.loads(one) == json.loads(other)
    except ValueError:
        return False


def test_the_sentence_has_both_sizes(tmp_path: Path) -> None:
    _, history = run(tmp_path, 5)
    size = data_file(tmp_path, 4).stat().st_size
    data_file(tmp_path, 4).write_bytes(b"x" * 17)
    assert check(tmp_path, history, 3) == [
        f"Checkpoint of round 4 is damaged (17 bytes, expected {size:,}); going back to round 3."
    ]


def test_damage_in_the_middle_of_a_chain_takes_what_builds_on_it(tmp_path: Path) -> None:
    _, history = run(tmp_path, 9, full_every_bytes=10)
    flip(data_file(tmp_path, 5), 4000)
    record_file(tmp_path, 8).unlink()
    first, second = check(tmp_path, history, 4)
    assert first == ("Checkpoint of round 8 is incomplete (round-00000008.json is missing); going back to round 7.")
    assert second.startswith("Checkpoint of round 5 is damaged (the content of round-00000005.rows")
    assert second.endswith(", and rounds 6 to 7 build on it; going back to round 4.")


def test_a_damaged_full_one_falls_back_to_the_previous_chain(tmp_path: Path) -> None:
    saved, history = run(tmp_path, 40)
    fulls = sorted(int(p.name[6:14]) for p in tmp_path.glob("*.full.safetensors"))
    assert len(fulls) == 2
    newest = fulls[-1]
    assert fulls[0] < newest - 1  # the chain to fall back to ends with rows
    assert newest < 37
    flip(data_file(tmp_path, newest), 9999)
    (note,) = check(tmp_path, history, newest - 1)
    assert f"rounds {newest + 1} to 39 build on it; going back to round {newest - 1}." in note
    assert saved.latest_round() == 39


def test_the_next_save_replaces_the_damaged_ones(tmp_path: Path) -> None:
    _, history = run(tmp_path, 9, full_every_bytes=10)
    flip(data_file(tmp_path, 5), 4000)
    saved = Checkpoints(tmp_path, full_every_bytes=10)
    state, notes = saved.load()
    assert (state.round, len(notes)) == (4, 1)
    state.round = 6
    state.tables["items"][3] = 7
    assert ".rows." in saved.save(state, {"items": np.array([3])}).name
    assert sorted(int(p.name[6:14]) for p in tmp_path.glob("*.json")) == [0, 1, 2, 3, 4, 6]
    assert check(tmp_path, history | {6: cloned(state)}, 6) == []


def test_a_replaced_full_one_does_not_cost_the_chain_below(tmp_path: Path) -> None:
    """Round 2 was a damaged full one and comes again as rows: with keep=1 its chain must stay."""
    saved, history = run(tmp_path, 2, full_every_bytes=10, keep=1)
    lost = cloned(history[1])
    lost.round = 2
    data = data_file(tmp_path, 1).read_bytes()
    keep = {p: p.read_bytes() for p in tmp_path.iterdir()}
    saved.save(lost, None)
    for path, content in keep.items():  # a crash before the old chain was deleted
        path.write_bytes(content)
    data_file(tmp_path, 2).write_bytes(data)
    saved = Checkpoints(tmp_path, full_every_bytes=10, keep=1)
    state, notes = saved.load()
    assert (state.round, len(notes)) == (1, 1)
    state.round = 2
    assert ".rows." in saved.save(state, {"items": np.array([0])}).name
    assert check(tmp_path, {2: state}, 2) == []
    assert not list(tmp_path.glob("round-00000002.full.*"))


def test_a_chain_from_another_history_is_not_mixed_in(tmp_path: Path) -> None:
    _, history = run(tmp_path / "a", 3, full_every_bytes=10)
    other, state = Checkpoints(tmp_path / "b", full_every_bytes=10), cloned(history[0])
    state.tables["items"].zero_()
    other.save(state, None)
    state.round = 1
    other.save(state, {"items": np.array([1])})
    for path in (tmp_path / "b").glob("round-00000001*"):
        (tmp_path / "a" / path.name).write_bytes(path.read_bytes())
    notes = check(tmp_path / "a", history, 0)
    assert notes == [
        "Checkpoint of round 2 does not continue the round 1 that is on disk; going back to round 1.",
        "Checkpoint of round 1 does not continue the round 0 that is on disk; going back to round 0.",
    ]


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

    def refuse(path, content):
        if path.name.endswith(fails_at):
            raise RunError("the disk is full")
        return original(path, content)

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


def test_nothing_intact(tmp_path: Path) -> None:
    run(tmp_path, 3, full_every_bytes=10)
    flip(data_file(tmp_path, 0), 5000)
    with pytest.raises(CheckpointError, match=r"No checkpoint in .* rounds 1 to 2 build on it\. Restore"):
        Checkpoints(tmp_path).load()


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
