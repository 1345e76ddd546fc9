"""Data larger than memory, interrupted: by `kill -9`, a full disk, files that change. What was done is used."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from large import outcome, to, written
from test_large import READ, clicks

from fedsub.data import Clients
from fedsub.data.ingest import from_file
from fedsub.data.large import arrays, parts, sources
from fedsub.data.large.runs import Run
from fedsub.errors import DataError, DataNotice, StoreError

CHILD = """
import json, sys, time
from pathlib import Path
from large import TINY, to
from fedsub.data.ingest import from_file
from fedsub.data.large import parts
parts.EVERY = 0
stage, count, seen = sys.argv[3], int(sys.argv[4]), 0
def progress(what, done, total):
    global seen
    if what == stage:
        seen += 1
        if seen == count:
            print("here", flush=True)
            time.sleep(60)
from_file(sys.argv[1], "user", to=to(Path(sys.argv[2]), TINY, progress=progress), **json.loads(sys.argv[5]))
"""
PLAIN = {"ids": ["item"], "label": "y", "values": ["price"]}  # what a text file can hold


def killed_at(stage: str, count: int, data: Path, target: Path, options: dict[str, Any] = READ) -> None:
    """A process of its own, killed when it has told ``stage`` for the ``count``-th time."""
    here = Path(__file__).parent
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(here), str(here.parent)])
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(data), str(target), stage, str(count), json.dumps(options)],
        stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == b"here\n"
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL


def interrupted_at(stage: str, count: int, data: Path, target: Path) -> None:
    """The same in this process, by Ctrl-C."""
    seen = []

    def progress(what, done, total):
        seen.append(what)
        if seen.count(stage) == count and what == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        from_file(data, "user", to=to(target, progress=progress), **READ)


@pytest.fixture
def data(tmp_path) -> Path:
    return written(clicks(), tmp_path / "data", [90, 91, 200])


@pytest.fixture
def whole(data, tmp_path):
    return outcome(lambda _: from_file(data, "user", **READ), tmp_path / "memory.fedsub")


@pytest.mark.parametrize(
    ("stage", "count"),
    [
        ("read", 12),
        ("write", 9),
        pytest.param("number", 2, marks=pytest.mark.slow),
        pytest.param("finish", 1, marks=pytest.mark.slow),
    ],
)
def test_killed_and_run_again(data, whole, tmp_path, monkeypatch, stage, count):
    target = tmp_path / "out.fedsub"
    killed_at(stage, count, data, target)
    assert not target.exists()
    runs = list((tmp_path / ".out.fedsub.work" / "runs").iterdir())
    made, gathered = [], []
    write, gather = vars(Run)["write"].__func__, parts.Parts.gather
    monkeypatch.setattr(Run, "write", classmethod(lambda cls, *a, **k: made.append(1) or write(cls, *a, **k)))
    monkeypatch.setattr(parts.Parts, "gather", lambda self, part: gathered.append(part) or gather(self, part))
    found = outcome(lambda folder: from_file(data, "user", to=to(folder), **READ), target)
    assert (found.files, found.manifest, found.told) == (whole.files, whole.manifest, whole.told)
    assert len(made) <= 45 - len([r for r in runs if not r.name.endswith(".part")]) + 1
    if stage == "read":
        assert 10 <= len(made) < 45
    else:
        assert not made
    if stage == "write":
        assert gathered[0] >= 7  # parts that were written are not made again
    assert not (tmp_path / ".out.fedsub.work").exists()


def test_a_text_file_killed_half_way_goes_on(data, tmp_path, monkeypatch):
    text = tmp_path / "clicks.csv"
    pl.read_parquet(data / "*.parquet").drop("history").write_csv(text)
    whole = outcome(lambda _: from_file(text, "user", **PLAIN), tmp_path / "memory.fedsub")
    target = tmp_path / "out.fedsub"
    killed_at("copy", 20, text, target, PLAIN)
    before = {path.name for path in (tmp_path / ".out.fedsub.work" / "staged").glob("*.parquet")}
    made, appear = [], sources._appearing
    monkeypatch.setattr(sources, "_appearing", lambda path: made.append(path.name) or appear(path))
    found = outcome(lambda folder: from_file(text, "user", to=to(folder), **PLAIN), target)
    assert found.files == whole.files
    assert len(before) == 19
    assert len(made) > 19
    assert not before & set(made)  # pieces that were read are not read again


def test_a_full_disk_keeps_what_is_done(data, whole, tmp_path, monkeypatch):
    made, put = [], arrays.put

    def full(path, array, mode="wb"):
        made.append(path)
        if len(made) > 200:
            raise OSError(errno.ENOSPC, "No space left on device")
        put(path, array, mode)

    with monkeypatch.context() as patched:
        patched.setattr("fedsub.data.large.runs.put", full)
        with pytest.raises(StoreError, match=r"the disk is full\. What is done is kept in .*\.out\.fedsub\.work; free"):
            from_file(data, "user", to=to(tmp_path / "out.fedsub"), **READ)
    kept = len(list((tmp_path / ".out.fedsub.work" / "runs").glob("[!.]*")))
    assert kept > 5
    found = outcome(lambda folder: from_file(data, "user", to=to(folder), **READ), tmp_path / "out.fedsub")
    assert found.files == whole.files


def test_files_that_changed_meanwhile_are_read_again(data, tmp_path):
    target = tmp_path / "out.fedsub"
    interrupted_at("write", 3, data, target)
    changed = clicks(seed=5)
    changed[90:91].write_parquet(data / "part-1.parquet")
    os.utime(data / "part-1.parquet", ns=(time.time_ns(), time.time_ns() + 10**9))
    found = outcome(lambda folder: from_file(data, "user", to=to(folder), **READ), target)
    there = outcome(lambda _: from_file(data, "user", **READ), tmp_path / "memory.fedsub")
    assert found.files == there.files
    assert [text for text in found.told if "part-1.parquet has changed since it was read" in text]


def test_other_options_begin_anew(data, tmp_path):
    interrupted_at("write", 3, data, tmp_path / "out.fedsub")
    options: dict[str, Any] = {**READ, "max_len": 1}
    found = outcome(lambda folder: from_file(data, "user", to=to(folder), **options), tmp_path / "out.fedsub")
    there = outcome(lambda _: from_file(data, "user", **options), tmp_path / "memory.fedsub")
    assert found.files == there.files


def test_a_file_that_changes_while_it_is_read_is_refused(data, tmp_path, monkeypatch):
    seen = iter(range(100))
    monkeypatch.setattr("fedsub.data.large.save.states", lambda tables: {str(tables.files[0].path): [next(seen), 0]})
    with pytest.raises(DataError, match=r"part-0\.parquet has changed while it was read; run the same again"):
        from_file(data, "user", to=to(tmp_path / "out.fedsub"), **READ)


def test_two_processes_do_not_write_the_same(data, tmp_path):
    from fedsub.data.large.work import Work

    with (
        Work(tmp_path / "out.fedsub").open(),
        pytest.raises(DataError, match=r"Another process is writing .*out\.fedsub; wait for it"),
    ):
        from_file(data, "user", to=to(tmp_path / "out.fedsub"), **READ)


def test_what_is_wrong_in_one_file_costs_only_that_file(data, tmp_path, monkeypatch):
    """The message names file and row; the others are not read again when it is corrected."""
    good = pl.read_parquet(data / "part-2.parquet")
    bad = good.with_columns(y=pl.when(pl.int_range(pl.len()) == 3).then(2).otherwise(pl.col("y")))
    bad.write_parquet(data / "part-2.parquet", row_group_size=5)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(
            DataError, match=r"Column 'y', row part-2\.parquet:3, client 'u\d+': 2 is not a binary label"
        ):
            from_file(data, "user", to=to(tmp_path / "out.fedsub"), **READ)
    assert [w for w in caught if issubclass(w.category, DataNotice) and "What was read is kept in" in str(w.message)]
    good.write_parquet(data / "part-2.parquet", row_group_size=5)
    made, write = [], vars(Run)["write"].__func__
    monkeypatch.setattr(Run, "write", classmethod(lambda cls, *a, **k: made.append(1) or write(cls, *a, **k)))
    found = outcome(lambda folder: from_file(data, "user", to=to(folder), **READ), tmp_path / "out.fedsub")
    there = outcome(lambda _: from_file(data, "user", **READ), tmp_path / "memory.fedsub")
    assert found.files == there.files
    assert len(made) == 16  # 109 rows of one file, 7 at a time


def error_of(make) -> str:
    with pytest.raises(DataError) as found:
        make()
    return str(found.value)


@pytest.mark.parametrize("large", [False, True])
def test_files_that_do_not_fit_together(data, tmp_path, large):
    """Told before anything is read, alike in memory."""
    options: dict[str, Any] = {"to": to(tmp_path / "out.fedsub")} if large else {}
    frame = pl.read_parquet(data / "part-2.parquet")
    frame.with_columns(pl.col("item").cast(pl.String)).write_parquet(data / "part-2.parquet")
    said = error_of(lambda: from_file(data, "user", **READ, **options))
    assert "Column 'item' holds Int64 in part-0.parquet and String in part-2.parquet; write all files with" in said
    frame.drop("price").write_parquet(data / "part-2.parquet")
    said = error_of(lambda: from_file(data, "user", **READ, **options))
    assert "There is no column 'price' in part-2.parquet, but in other files" in said
    (data / "part-2.parquet").write_text("PAR1 this is no table")
    said = error_of(lambda: from_file(data, "user", **READ, **options))
    assert "part-2.parquet cannot be read as parquet" in said
    (data / "part-3.parquet").unlink()
    (data / "part-2.parquet").unlink()
    (data / "notes.csv").write_text("a,b")
    said = error_of(lambda: from_file(data, "user", **READ, **options))
    assert "holds files of several kinds (.csv, .parquet)" in said
    assert not (tmp_path / ".out.fedsub.work").exists()


@pytest.mark.parametrize("large", [False, True])
def test_columns_that_are_not_there(data, tmp_path, large):
    options: dict[str, Any] = {"to": to(tmp_path / "out.fedsub")} if large else {}
    said = error_of(lambda: from_file(data, "user", ids=["itm"], **options))
    assert "There is no column 'itm' in the data; did you mean 'item'?" in said
    said = error_of(lambda: from_file(data, "history", ids=["item"], **options))
    assert "Client column 'history' holds List(Int64), expected one id per sample" in said


def test_lines_that_are_too_long_are_told_with_all_else(tmp_path):
    (tmp_path / "t.csv").write_text("user,item,y\n1,2,0\n1,2,0,9\n,3,1\n1,2,7\n")
    options: dict[str, Any] = {"ids": ["item"], "label": "y"}
    there = error_of(lambda: from_file(tmp_path / "t.csv", "user", **options))
    here = error_of(lambda: from_file(tmp_path / "t.csv", "user", to=to(tmp_path / "out.fedsub"), **options))
    assert here == there
    assert "line 3 has 4 fields" in here
    assert "Client column 'user', line 4" in here


def test_options_that_need_each_other(data, tmp_path):
    with pytest.raises(DataError, match="memory and workers are for data that are written as they are read"):
        Clients.from_file(data, "user", memory="2GB", **READ)
    with pytest.raises(DataError, match="vocabulary and grow number data in memory"):
        Clients.from_file(data, "user", to=tmp_path / "o", grow=True, **READ)
    with pytest.raises(DataError, match="workers is 0, expected how many pieces"):
        Clients.from_file(data, "user", to=tmp_path / "o", workers=0, **READ)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(StoreError, match="exists and was not written by fedsub"):
        Clients.from_file(data, "user", to=tmp_path / "mine", **READ)


def test_the_state_of_a_part_is_on_disk(data, tmp_path, monkeypatch):
    """A state that does not fit the files is not gone on with."""
    monkeypatch.setattr(parts, "EVERY", 0)
    interrupted_at("write", 5, data, tmp_path / "out.fedsub")
    state = tmp_path / ".out.fedsub.work" / "state.json"
    said = json.loads(state.read_text())
    assert said["done"] >= 3
    (tmp_path / ".out.fedsub.work" / "saved" / "offsets.npy").write_bytes(b"short")
    found = outcome(lambda folder: from_file(data, "user", to=to(folder), **READ), tmp_path / "out.fedsub")
    there = outcome(lambda _: from_file(data, "user", **READ), tmp_path / "memory.fedsub")
    assert found.files == there.files
