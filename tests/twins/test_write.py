"""What is streamed to disk is what is made in memory, whole or not there."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fedsub.data import Clients
from fedsub.data.stream import ClientsWriter
from fedsub.data.twins import TWINS, draws
from fedsub.errors import StoreError
from fedsub.objective.metrics import auc

SMALL = {"movielens-like": 0.02, "sentiment-like": 0.05, "amazon-like": 0.05, "alibaba-like": 0.002}


@pytest.mark.parametrize("name", TWINS)
def test_streamed_and_split_in_memory_are_the_same(name, tmp_path):
    twin = TWINS[name]
    about = twin.write(tmp_path / "twin", scale=SMALL[name], seed=5, block=7000)
    whole = twin.make(scale=SMALL[name], seed=5)
    how: dict[str, Any] = {"by": "column", "column": twin.holdout} if twin.holdout else {"seed": 5}
    for part, expected in zip(("train", "test"), whole.split(0.8, **how), strict=True):
        opened = Clients.open(tmp_path / "twin" / part, verify=True)
        assert (opened.samples, opened.label) == (about[part]["samples"], "label")
        assert "holdout" not in opened.columns
        if not twin.holdout:
            assert opened.fingerprint == expected.fingerprint == about[part]["fingerprint"]
        np.testing.assert_array_equal(opened.client_ids, expected.client_ids)
        samples = np.arange(opened.samples)
        seen, made = (c.gather(samples, opened.columns, local=False) for c in (opened, expected))
        for column in opened.columns:
            np.testing.assert_array_equal(seen[column], made[column])


@pytest.mark.parametrize("name", TWINS)
def test_blocks_change_nothing(name):
    twin = TWINS[name]
    marks = {twin.make(scale=SMALL[name], block=block).fingerprint for block in (1, 3000, 1 << 18)}
    assert len(marks) == 1
    assert twin.make(scale=SMALL[name], seed=1).fingerprint not in marks


def test_what_is_said_about_the_truth(tmp_path):
    twin = TWINS["amazon-like"]
    about = twin.write(tmp_path / "twin", scale=0.05)
    whole, truth = twin.make(scale=0.05), twin.truth(scale=0.05)
    label, held = whole.columns["label"].values, whole.columns["holdout"].values == 1
    for part, mask in (("train", ~held), ("test", held)):
        loss = -np.log(np.where(label[mask] > 0, truth[mask], 1 - truth[mask])).mean()
        assert about[part]["best"]["ce"] == pytest.approx(loss)
        assert about[part]["best"]["auc"] == pytest.approx(auc(truth[mask], label[mask]), abs=1e-4)


def test_distinct_draws_without_replacement():
    """Two of three rows with weights 3, 2, 1: the chance of leaving out row 2 is 3/6·2/3 + 2/6·3/4 = 7/12."""
    many = 20_000
    keys = draws.client_keys(0, 1, 0, many)
    nothing = (np.empty(0, np.int64), np.empty(0, np.int64))
    weights = draws.cumulated(np.array([3.0, 2.0, 1.0]))
    owner, row = draws.distinct(keys, np.full(many, 2), weights, nothing)
    np.testing.assert_array_equal(owner, np.repeat(np.arange(many), 2))
    pairs = row.reshape(-1, 2)
    assert (pairs[:, 0] != pairs[:, 1]).all()
    assert (pairs.sum(1) == 1).mean() == pytest.approx(7 / 12, abs=0.015)
    assert (pairs[:, 0] < pairs[:, 1]).mean() == pytest.approx(0.5, abs=0.015)  # shuffled
    given = (np.arange(many), np.full(many, 2))
    _, row = draws.distinct(keys, np.full(many, 2), weights, given)
    assert (row.reshape(-1, 2) == 2).any(1).all()


def test_all_rows_can_be_drawn_though_some_are_rare():
    keys = draws.client_keys(0, 1, 0, 3)
    nothing = (np.empty(0, np.int64), np.empty(0, np.int64))
    weights = draws.cumulated(np.array([1.0, 1e-3, 1e-4]))
    _, row = draws.distinct(keys, np.array([3, 1, 3]), weights, nothing)
    assert sorted(row[:3]) == sorted(row[4:]) == [0, 1, 2]


def left(folder) -> list[str]:
    return sorted(os.listdir(folder))


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    add, calls = ClientsWriter.add, []

    def full(self, *arguments):
        calls.append(1)
        if len(calls) == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        add(self, *arguments)

    monkeypatch.setattr(ClientsWriter, "add", full)
    with pytest.raises(StoreError, match="the disk is full"):
        TWINS["movielens-like"].write(tmp_path / "twin", scale=0.02, block=3000)
    assert left(tmp_path) == []


def test_an_interrupted_write_leaves_what_was_there(tmp_path):
    twin = TWINS["movielens-like"]
    before = twin.write(tmp_path / "twin", scale=0.02)

    def stop(done, total):
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        twin.write(tmp_path / "twin", scale=0.02, seed=1, block=3000, progress=stop)
    assert left(tmp_path) == ["twin"]
    assert Clients.open(tmp_path / "twin" / "train", verify=True).fingerprint == before["train"]["fingerprint"]
    after = twin.write(tmp_path / "twin", scale=0.02, seed=1)  # an older twin is replaced
    assert Clients.open(tmp_path / "twin" / "train").fingerprint == after["train"]["fingerprint"]


def test_a_killed_write_is_not_taken_for_data(tmp_path):
    code = (
        "import sys, time; from fedsub.data.twins import TWINS\n"
        "def wait(done, total): print('half', flush=True); time.sleep(60)\n"
        f"TWINS['movielens-like'].write({str(tmp_path / 'twin')!r}, scale=0.02, block=3000, progress=wait)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "half\n"
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert not (tmp_path / "twin").exists()
    with pytest.raises(StoreError, match="no directory"):
        Clients.open(tmp_path / "twin" / "train")
    TWINS["movielens-like"].write(tmp_path / "twin", scale=0.02)
    assert left(tmp_path) == ["twin"]  # what the killed one had written is gone too


def test_other_peoples_folders_are_kept(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(StoreError, match="was not written by fedsub"):
        TWINS["movielens-like"].write(tmp_path / "mine", scale=0.02)
    assert left(tmp_path / "mine") == ["notes.txt"]


def test_the_command(tmp_path):
    from fedsub.cli import app

    run = CliRunner().invoke(app, ["data", "generate", "movielens-like", "--scale", "0.02", "--to", f"{tmp_path}/twin"])
    assert run.exit_code == 0
    assert "121 clients, 20,004 samples" in run.output
    assert len(Clients.open(tmp_path / "twin" / "train")) == 121
    wrong = CliRunner().invoke(app, ["data", "generate", "movielens-lik", "--to", f"{tmp_path}/other"])
    assert wrong.exit_code == 2
    assert "did you mean 'movielens-like'" in wrong.output
    assert left(tmp_path) == ["twin"]
