"""Files that survive a crash."""

from __future__ import annotations

import errno
import json
import math
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsub.disk.files import TEMPORARY, JsonLines, digest, dump, plain, remove_temporaries, write_atomic
from fedsub.errors import CheckpointError, RunError, StoreError


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Files of this process cannot grow past `size`: the nearest thing to a full disk without one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_write_atomic_returns_size_and_digest(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"

    def pieces(file) -> None:
        file.write(b"abc")
        file.write(np.arange(3, dtype=np.uint8))

    assert write_atomic(path, pieces) == (6, digest(path))
    assert path.read_bytes() == b"abc\x00\x01\x02"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_a_failed_write_keeps_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_atomic(path, b"old")

    def fails(file) -> None:
        file.write(b"new")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, fails)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_full_disk_is_said_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    write_atomic(path, b"old")
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(RunError, match=r"a\.json: the disk is full\. .*last checkpoint is kept.*resume"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_other_refusals_are_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="No such file or directory"):
        write_atomic(tmp_path / "absent" / "a.json", b"")
    with largest_file(1000), pytest.raises(RunError, match="File too large"):
        write_atomic(tmp_path / "big", bytes(100_000))
    assert os.listdir(tmp_path) == []


def test_remove_temporaries_leaves_other_files(tmp_path: Path) -> None:
    for name in (f".a.json.17{TEMPORARY}", ".hidden", "a.json", "b.tmp"):
        (tmp_path / name).touch()
    remove_temporaries(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".hidden", "a.json", "b.tmp"]


def test_plain_unwraps_and_refuses() -> None:
    value = {"a": np.float32(0.5), "b": np.arange(2), "c": (math.nan, -math.inf), "d": Path("x"), "e": True}
    assert plain(value) == {"a": 0.5, "b": [0, 1], "c": ["nan", "-inf"], "d": "x", "e": True}
    with pytest.raises(TypeError, match="keys are strings"):
        plain({3: "x"})
    with pytest.raises(TypeError, match="cannot be written"):
        plain({"a": object()})


@given(st.floats())
def test_floats_read_back_exactly(value: float) -> None:
    read = json.loads(dump({"x": value}), parse_constant=pytest.fail)["x"]
    assert read == value if math.isfinite(value) else read == str(value)


def test_lines_are_appended_and_cut_back(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "m.jsonl")
    log.append({"round": 1, "loss": 0.1})
    mark = log.position
    log.append({"round": 2}, {"round": 3, "loss": math.nan})
    log.flush()
    assert log.position == log.path.stat().st_size
    assert b'"loss": "nan"' in log.path.read_bytes()
    assert math.isnan(JsonLines.read(log.path)[2]["loss"])
    log.truncate(mark)
    log.append({"round": 4})
    assert [row["round"] for row in JsonLines.read(log.path)] == [1, 4]


def test_cutting_where_no_line_ends_is_refused(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "m.jsonl")
    log.append({"round": 1})
    with pytest.raises(CheckpointError, match="shortened"):
        log.truncate(log.position + 1)
    with pytest.raises(CheckpointError, match="no end of line"):
        log.truncate(log.position - 1)
    assert len(JsonLines.read(log.path)) == 1


@pytest.mark.parametrize("torn", [b'{"round": 2, "lo', b"\0" * 50, b'{"x": "' + b"y" * (3 << 20)])
def test_a_torn_last_line_is_ignored_and_then_replaced(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"round": 1}\n' + torn)
    assert JsonLines.read(path) == [{"round": 1}]
    log = JsonLines(path)
    log.append({"round": 2})
    assert JsonLines.read(path) == [{"round": 1}, {"round": 2}]


def test_a_damaged_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"round": 1}\n{"rou\n{"round": 3}\n')
    with pytest.raises(StoreError, match="Line 2 of"):
        JsonLines.read(path)


def test_rows_that_do_not_fit_leave_no_part_of_them(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "m.jsonl")
    log.append({"round": 1})
    mark = log.position
    with largest_file(mark + 20), pytest.raises(RunError, match=r"m\.jsonl"):
        log.append({"round": 2}, {"round": 3, "text": "x" * 100})
    assert log.position == mark == log.path.stat().st_size
    log.append({"round": 2})
    assert [row["round"] for row in JsonLines.read(log.path)] == [1, 2]


def test_numbers_that_json_cannot_hold_are_numbers_again(tmp_path: Path) -> None:
    row = {"up": math.inf, "parts": [{"down": -math.inf}, "nan "], "text": "infinity", "none": None, "NaN": "NaN"}
    log = JsonLines(tmp_path / "m.jsonl")
    log.append(row | {"nan": math.nan})
    (found,) = JsonLines.read(log.path)
    assert math.isnan(found.pop("nan"))
    assert found == row
