"""The run directory: one run, one configuration, one process at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedsub.disk import rundir
from fedsub.disk.files import TEMPORARY, JsonLines
from fedsub.disk.rundir import RunDir
from fedsub.errors import CheckpointError, ConfigError, RunError

CONFIG = {"method": {"name": "fedsubavg", "lr": 0.3}, "rounds": 5, "tables": ["items"]}


def test_a_run_from_start_to_finish(tmp_path: Path) -> None:
    path = tmp_path / "out" / "run"
    with RunDir(path) as run:
        assert not path.exists()
        assert not run.started
        run.start(CONFIG)
        run.log_metrics({"round": 1, "loss": 0.1})
        run.log_traffic({"client": 3, "up": 10}, {"client": 4, "up": 12})
        run.log_timing({"round": 1, "seconds": 0.5})
        run.log_event("Rejected the update of client 3.", client=3)
        assert run.started
        assert not run.finished
        run.finish({"loss": 0.1})
        assert run.finished
    assert json.loads((path / "config.json").read_text()) == CONFIG
    assert json.loads((path / "result.json").read_text()).items() >= {"loss": 0.1}.items()
    assert run.result()["kept"].keys() == {"config.json", "versions.json"}
    assert {"python", "torch", "numpy", "fedsub", "platform"} <= json.loads((path / "versions.json").read_text()).keys()
    assert len(JsonLines.read(path / "traffic.jsonl")) == 2
    (event,) = JsonLines.read(path / "events.jsonl")
    assert (event["event"], event["client"]) == ("Rejected the update of client 3.", 3)
    assert run.checkpoints == path / "checkpoints"
    assert run.checkpoints.is_dir()


def test_an_interrupted_run_ends_with_the_same_metrics(tmp_path: Path) -> None:
    def rounds(run: RunDir, start: int, stop: int) -> None:
        for number in range(start, stop):
            run.log_metrics({"round": number, "loss": 1 / (number + 3)})
            run.log_traffic({"round": number, "up": number})

    with RunDir(tmp_path / "straight") as run:
        run.start(CONFIG)
        rounds(run, 0, 6)
    with RunDir(tmp_path / "broken") as run:
        run.start(CONFIG)
        rounds(run, 0, 3)
        positions = json.loads(json.dumps(run.positions()))
        rounds(run, 3, 5)
        run.log_event("The lights went out.")
    with open(tmp_path / "broken" / "metrics.jsonl", "ab") as file:
        file.write(b'{"round": 5, "lo')
    with RunDir(tmp_path / "broken") as run:
        run.start(CONFIG)
        run.rewind(positions)
        rounds(run, 3, 6)
    for name in ("metrics.jsonl", "traffic.jsonl"):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "straight" / name).read_bytes()
    assert len(JsonLines.read(tmp_path / "broken" / "events.jsonl")) == 1


def test_rewind_is_all_or_nothing(tmp_path: Path) -> None:
    with RunDir(tmp_path) as run:
        run.start(CONFIG)
        run.log_metrics({"round": 1})
        here = run.positions()
        with pytest.raises(CheckpointError, match=r"timing\.jsonl .*shortened"):
            run.rewind({"metrics": 0, "traffic": 0, "timing": 99})
        with pytest.raises(CheckpointError, match="no position for timing"):
            run.rewind({"metrics": 0, "traffic": 0})
        assert run.positions() == here
        run.rewind(None)
        marks = run.positions()
        assert sorted(marks) == ["events", "metrics", "timing", "traffic"]
        assert all(isinstance(mark, list) and mark[0] == 0 for mark in marks.values())


def test_another_configuration_is_refused_key_by_key(tmp_path: Path) -> None:
    with RunDir(tmp_path) as run:
        run.start(CONFIG)
    other = {"method": {"name": "fedsubavg", "lr": 0.1}, "rounds": 5, "tables": ["items", "users"], "seed": 1}
    with RunDir(tmp_path) as run, pytest.raises(CheckpointError) as caught:
        run.start(other)
    text = str(caught.value)
    assert "method.lr: 0.3 in the directory, 0.1 now" in text
    assert 'tables: ["items"] in the directory, ["items", "users"] now' in text
    assert "seed: absent in the directory, 1 now" in text
    assert "rounds" not in text
    assert "method.name" not in text
    with RunDir(tmp_path) as run:  # and it is not locked by the attempt
        run.start(CONFIG)


def test_configurations_are_compared_as_they_are_written(tmp_path: Path) -> None:
    with RunDir(tmp_path) as run:
        run.start({"out": tmp_path / "x", "pair": (1, 2), "clip": float("inf"), "empty": {}})
    with RunDir(tmp_path) as run:
        run.start({"out": str(tmp_path / "x"), "pair": [1, 2], "clip": float("inf"), "empty": {}})
    with RunDir(tmp_path) as run, pytest.raises(CheckpointError, match="pair"):
        run.start({"out": str(tmp_path / "x"), "pair": [True, 2], "clip": float("inf"), "empty": {}})


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    with RunDir(tmp_path / "run") as run:
        run.start(CONFIG)
        program = (
            "import sys; from fedsub.disk.rundir import RunDir; from fedsub.errors import RunError\n"
            "try: RunDir(sys.argv[1]).start({})\n"
            "except RunError as error: print(error)"
        )
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        command = [sys.executable, "-c", program, str(tmp_path / "run")]
        said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        assert f"(pid {os.getpid()}) is training into {tmp_path / 'run'}" in said
        with pytest.raises(RunError, match="Another process"):
            RunDir(tmp_path / "run").start(CONFIG)
        with pytest.raises(RunError, match="already started"):
            run.start(CONFIG)
    with RunDir(tmp_path / "run") as run:
        run.start(CONFIG)


def test_other_peoples_directories_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigError, match=r"holds other files \(thesis.tex\); choose another --out"):
        RunDir(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.tex"]
    with pytest.raises(ConfigError, match="is a file"):
        RunDir(tmp_path / "thesis.tex")
    model = tmp_path / "model"  # other programs have a config.json too
    model.mkdir()
    (model / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"config\.json"):
        RunDir(model)


def test_a_start_that_was_cut_short_is_taken_up(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    leftover = tmp_path / f".config.json.17{TEMPORARY}"
    leftover.touch()
    with RunDir(tmp_path) as run:
        run.start(CONFIG)
    assert not leftover.exists()
    (tmp_path / "plot.png").touch()
    with RunDir(tmp_path) as run:
        run.start(CONFIG)


def test_newer_and_damaged_directories(tmp_path: Path) -> None:
    with RunDir(tmp_path) as run:
        run.start(CONFIG)
    (tmp_path / "config.json").write_text('{"method"')
    with RunDir(tmp_path) as run, pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        run.start(CONFIG)
    (tmp_path / "versions.json").write_text(json.dumps({"format": rundir.FORMAT, "version": 2}))
    with pytest.raises(CheckpointError, match="newer fedsub"):
        RunDir(tmp_path)


def test_a_change_of_versions_is_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunDir(tmp_path) as run:
        run.start(CONFIG)
    before = (tmp_path / "versions.json").read_bytes()
    monkeypatch.setattr(rundir, "versions", lambda: {**json.loads(before), "torch": "9.9"})
    with RunDir(tmp_path) as run:
        run.start(CONFIG)
    (event,) = JsonLines.read(tmp_path / "events.jsonl")
    assert "torch 9.9, before" in event["event"]
    assert (tmp_path / "versions.json").read_bytes() == before


def test_logging_before_the_start_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="call start"):
        RunDir(tmp_path).log_metrics({"round": 1})
