"""A search goes on where it was interrupted, and several workers find what one finds."""

from __future__ import annotations

import pytest
from searches import TEST, Count, deadly, files, objective, tune

import fedsub as fs
from fedsub.errors import CheckpointError, ConfigError, RunError


def test_interrupted_and_resumed_reruns_nothing_finished(tmp_path):
    whole, first, second = Count(), Count(stop=3), Count()
    tune(out=tmp_path / "a", test=TEST, seeds=2, watch=whole)
    with pytest.raises(fs.Interrupted, match="kept in"):
        tune(out=tmp_path / "b", test=TEST, seeds=2, watch=first)
    with pytest.raises(CheckpointError, match="resume"):
        tune(out=tmp_path / "b", test=TEST, seeds=2)
    tune(out=tmp_path / "b", test=TEST, seeds=2, watch=second, resume=True)
    assert sorted(first.trained + second.trained) == sorted(whole.trained)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    third = Count()
    tune(out=tmp_path / "b", test=TEST, seeds=2, watch=third, resume=True)
    assert third.trained == []
    tune(out=tmp_path / "b", grid={"lr": [0.1, 0.3, 1.0]}, seeds=2, watch=third, resume=True)  # wider: only what is new
    assert len(third.trained) == 4


def test_a_damaged_record_is_named(tmp_path):
    tune(out=tmp_path)
    next((tmp_path / "trials").glob("*.json")).write_text("{}\n")
    with pytest.raises(CheckpointError, match="delete it to train that trial again"):
        tune(out=tmp_path, resume=True)


def test_two_workers_make_the_same_table_as_one(tmp_path):
    tune(out=tmp_path / "one", test=TEST)
    tune(out=tmp_path / "two", test=TEST, workers=2)
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_a_killed_worker_is_an_error_and_finished_trials_are_kept(tmp_path):
    with pytest.raises(RunError, match=r"A worker process ended before its trial did.*kept in"):
        tune(make=deadly, out=tmp_path / "a", seeds=2, workers=2)
    kept = {file.stem for file in (tmp_path / "a/trials").glob("*.json")}
    assert kept
    count = Count()
    tune(make=deadly, out=tmp_path / "a", seeds=2, resume=True, watch=count)
    assert kept.isdisjoint(count.trained)
    tune(out=tmp_path / "b", seeds=2)
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_what_cannot_be_sent_to_workers_is_said():
    with pytest.raises(ConfigError, match="objective cannot be sent to worker processes"):
        tune(make=lambda seed: objective(seed), workers=2)
