"""Arrow files and streams, Hugging Face's directories, JSON lines: what the same rows give as Parquet."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import fsspec
import numpy as np
import polars as pl
import pytest
from large import same, to
from test_large import READ, clicks

import fedsub as fs
from fedsub.data import frames
from fedsub.data.ingest import from_file
from fedsub.errors import DataError


def as_lines(frame: pl.DataFrame, path: Path) -> Path:
    rows = [{k: v for k, v in row.items() if v is not None} for row in frame.to_dicts()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def frame() -> pl.DataFrame:
    return clicks(120)


@pytest.fixture
def fingerprint(frame) -> str:
    return fs.Clients.from_frame(frame, "user", **READ).fingerprint


@pytest.mark.parametrize("kind", ["file", "compressed", "stream", "lines", "packed lines"])
def test_the_same_data(frame, fingerprint, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(frames, "BATCHES", 7)
    path = tmp_path / {"lines": "log.jsonl", "packed lines": "log.ndjson.gz"}.get(kind, "log.arrow")
    if kind == "stream":
        import pyarrow as pa

        with pa.ipc.new_stream(path, frame.to_arrow().schema) as out:
            for batch in frame.to_arrow().to_batches(max_chunksize=5):
                out.write_batch(batch)
    elif "lines" in kind:
        plain = as_lines(frame, tmp_path / "log.jsonl")
        if kind != "lines":
            path.write_bytes(gzip.compress(plain.read_bytes()))
    else:
        frame.write_ipc(path, compression="zstd" if kind == "compressed" else "uncompressed")
    found = same(path, tmp_path, "user", **READ)
    assert not found.error
    assert found.manifest["fingerprint"] == fingerprint


def test_types_of_lines_are_those_of_all(tmp_path):
    """Whole numbers, then fractions; a column that only later lines have; lists that begin empty; a blank line."""
    path = tmp_path / "log.jsonl"
    rows = [{"user": 1, "item": i, "value": i, "list": []} for i in range(20)]
    rows += [{"user": 2, "item": i, "value": i + 0.5, "list": [i], "late": 1} for i in range(20)]
    path.write_text("\n\n".join(map(json.dumps, rows)) + "\n")
    found = same(path, tmp_path, "user", ids={"item": ["item"], "l": ["list"]}, values=["value"])
    assert not found.error
    values = from_file(path, "user", ids={"item": ["item"], "l": ["list"]}, values=["value"]).columns["value"].values
    assert np.array_equal(values, [i + 0.5 * (i >= 20) - 20 * (i >= 20) for i in range(40)])


@pytest.mark.parametrize("text", ['{"user": 1, "item"\n', "[1, 2]\n"])
def test_damaged_lines_are_refused(tmp_path, text):
    path = tmp_path / "log.jsonl"
    path.write_text('{"user": 1, "item": 2}\n' + text)
    found = same(path, tmp_path, "user", ids=["item"])
    assert "log.jsonl cannot be read as jsonl" in found.error


def test_a_directory_of_hugging_face(frame, fingerprint, tmp_path):
    """As `save_to_disk` writes one: streams, `state.json`, and what `map` has cached."""
    for part in ("train", "test"):
        folder = tmp_path / "hub" / part
        folder.mkdir(parents=True)
        (folder / "state.json").write_text("{}")
        for i, begin in enumerate((0, 70)):
            frame[begin : begin + 70 if not i else None].write_ipc_stream(folder / f"data-0000{i}-of-00002.arrow")
        frame[:3].write_ipc_stream(folder / "cache-0123.arrow")
    (tmp_path / "hub" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert from_file(tmp_path / "hub" / "train", "user", **READ).fingerprint == fingerprint
    assert (
        from_file(tmp_path / "hub" / "train", "user", to=to(tmp_path / "o.fedsub"), **READ).fingerprint == fingerprint
    )
    with pytest.raises(DataError, match=r"several data sets \(test, train\); name one of them"):
        from_file(tmp_path / "hub", "user", **READ)


def test_lines_in_an_object_store(frame, fingerprint, tmp_path):
    store = fsspec.filesystem("memory")
    plain = as_lines(frame, tmp_path / "log.jsonl")
    store.pipe_file("/bucket/log/part-0.jsonl", plain.read_bytes())
    try:
        found = fs.Clients.from_file("memory://bucket/log/*.jsonl", "user", **READ)
        assert found.fingerprint == fingerprint
    finally:
        store.rm("/bucket", recursive=True)
