"""Saving and opening: everything survives, and a failing disk keeps the save before."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from saves import assert_same, small

from fedsub.data import Clients
from fedsub.data.store import fingerprint
from fedsub.data.twins import movielens_like
from fedsub.errors import StoreError


@settings(deadline=None, max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 3), st.lists(st.text("abé", max_size=2), max_size=3)), min_size=1))
def test_round_trip(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("store") / "saved"
    clients = Clients.from_arrays({"h": [r[1] for r in rows]}, [r[0] for r in rows], ids=["h"])
    clients.save(path)
    assert_same(clients, Clients.open(path, verify=True))


def test_opened_data_is_mapped_and_works_like_the_original(tmp_path):
    clients = small()
    clients.save(tmp_path / "saved")
    opened = Clients.open(tmp_path / "saved")
    assert isinstance(opened.columns["i"].values, np.memmap)
    assert fingerprint(opened) == clients.fingerprint
    everything = np.arange(4)
    for name, array in clients.gather(everything, local=False).items():
        np.testing.assert_array_equal(opened.gather(everything, local=False)[name], array)
    parts, again = (c.split(by="last", column="t") for c in (clients, opened))
    assert [p.fingerprint for p in parts] == [p.fingerprint for p in again]


def test_saving_again_replaces_and_leaves_nothing_behind(tmp_path):
    small().save(tmp_path / "saved")
    other = small(("x", "x", "x", "x"))
    other.save(tmp_path / "saved")
    assert Clients.open(tmp_path / "saved").fingerprint == other.fingerprint
    opened = Clients.open(tmp_path / "saved")
    opened.save(tmp_path / "saved")  # onto the very files it is mapped from
    assert Clients.open(tmp_path / "saved", verify=True).fingerprint == other.fingerprint
    assert os.listdir(tmp_path) == ["saved"]


def test_foreign_directories_and_files_are_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("x")
    for name in ("mine", "file"):
        with pytest.raises(StoreError, match="not written by fedsub"):
            small().save(tmp_path / name)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize(("number", "words"), [(errno.ENOSPC, "disk is full"), (errno.EIO, "output error")])
def test_a_failing_disk_keeps_the_old_save(tmp_path, monkeypatch, number, words):
    clients = small()
    clients.save(tmp_path / "saved")
    calls = []

    def fsync(handle):
        calls.append(handle)
        if len(calls) == 3:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StoreError, match=words):
        small(("y", "y", "y", "y")).save(tmp_path / "saved")
    assert os.listdir(tmp_path) == ["saved"]
    assert Clients.open(tmp_path / "saved", verify=True).fingerprint == clients.fingerprint


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_really_full_disk(tmp_path, monkeypatch):
    clients = movielens_like(scale=0.01)
    real = open

    def to_full(file, mode="r", **options):
        return real("/dev/full" if str(file).endswith("column0.npy") else file, mode, **options)

    monkeypatch.setattr("builtins.open", to_full)
    with pytest.raises(StoreError, match="disk is full"):
        clients.save(tmp_path / "saved")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("path", ["x" * 5000, "a\0b", None, 3])
def test_paths_that_cannot_be(path):
    with pytest.raises(StoreError, match="cannot be used as a path"):
        Clients.open(path)
    with pytest.raises(StoreError, match="cannot be used as a path"):
        small().save(path)


def test_saving_to_no_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match="names no directory of its own"):
        small().save("")
