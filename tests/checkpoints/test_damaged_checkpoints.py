"""Damage to checkpoints costs a round, not the run."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from histories import check, cloned, data_file, flip, record_file, run
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsub.disk.checkpoint import Checkpoints
from fedsub.errors import CheckpointError


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


def test_nothing_intact(tmp_path: Path) -> None:
    run(tmp_path, 3, full_every_bytes=10)
    flip(data_file(tmp_path, 0), 5000)
    with pytest.raises(CheckpointError, match=r"No checkpoint in .* rounds 1 to 2 build on it\. Restore"):
        Checkpoints(tmp_path).load()
