"""`fedsub tune` as a person uses it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from searches import files, rows
from typer.testing import CliRunner

import fedsub as fs
from fedsub.cli import app


@pytest.fixture
def ratings(tmp_path, monkeypatch) -> Path:
    draw = np.random.default_rng(0)
    lines = ["user,item,time,liked"]
    lines += [f"u{u},i{draw.integers(12)},{draw.integers(999)},{draw.integers(2)}" for u in range(8) for _ in range(12)]
    (tmp_path / "ratings.csv").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


TUNE = ["tune", "ratings.csv", "--client", "user", "--label", "liked", "--table", "item", "--grid", "lr=0.1,1",
        "--rounds", "3", "-k", "4", "--out", "found"]  # fmt: skip


def command(*arguments: str, code: int = 0):
    result = CliRunner().invoke(app, [*TUNE, *arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def test_the_command(ratings):
    both = ("--methods", "fedavg,fedsubavg")
    said = command(*both, "--seeds", "2").output
    assert "All trials: found/trials.csv" in said
    assert len(rows(ratings / "found")) == 8
    before = files(ratings / "found")
    assert "Trials: 8 of 8 were trained before" in command(*both, "--seeds", "2", "--resume", "--workers", "1").output
    assert files(ratings / "found") == before
    assert "resume" in command(*both, "--seeds", "2", code=2).output
    one = json.loads(command("--resume", "--json", "--quiet", "-m", "fedsubavg").stdout)
    assert [w["method"] for w in one["winners"]] == ["FedSubAvg"]
    answer = json.loads(command(*both, "--resume", "--json", "--quiet", "--select", "best").stdout)
    assert [w["method"] for w in answer["winners"]] == ["FedAvg", "FedSubAvg"]
    assert answer["winners"][0]["test"][0]["samples"] == sum(
        int(r["samples"]) for r in rows(ratings / "found", "deciles.csv") if r["method"] == "FedAvg"
    )


OWN_METHOD = """
from dataclasses import dataclass
import fedsub as fs

@dataclass(frozen=True)
class Pull(fs.Part):
    alpha: float

    def grad(self, grads, params, work):
        return {k: g + self.alpha * (params[k] - work.sent[k]) for k, g in grads.items()}

def pull(alpha: float, *, lr: float = 0.3, clients_per_round: int = 4):
    return fs.Method(local=fs.SGD(lr=lr), parts=(Pull(alpha),), average=fs.OverHolders(), server=fs.Add(),
                     sampler=fs.Uniform(clients_per_round))
"""


def test_a_method_of_ones_own_is_tuned_in_workers(ratings):
    """Its class comes from a file that only the command knows; alpha has no default and is searched."""
    (ratings / "my_method.py").write_text(OWN_METHOD)
    own = [
        "-m",
        "my_method.py:pull",
        "-m",
        "fedavg",
        "--grid",
        "pull.alpha=0.1,1",
        "--quiet",
        "--json",
        "--search",
        "grid",
    ]
    found = json.loads(command(*own).stdout)
    assert [w["method"] for w in found["winners"]] == ["pull", "FedAvg"]
    assert set(found["winners"][0]["settings"]) == {"lr", "alpha"}
    assert found["trials"] == {"pull": 4, "FedAvg": 2}
    before = files(ratings / "found")
    command(*own, "--resume", "--workers", "1")
    assert files(ratings / "found") == before
    assert "needs the setting 'alpha'" in command("-m", "my_method.py:pull", code=2).output


def test_validation_is_cut_off_as_test_is(ratings):
    command("--split", "time", "--time-column", "time", "--workers", "1", "--retrain-on-all", "--quiet")
    command("--grid", "speed=1", "--out", "other", code=2)
    assert not Path("other").exists()


def test_ctrl_c_ends_the_workers_and_says_how_to_go_on(ratings):
    started = subprocess.Popen(
        [sys.executable, "-m", "fedsub.cli", *TUNE, "--rounds", "300", "--seeds", "5"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(Path(fs.__file__).parents[1])},
    )
    deadline = time.monotonic() + 120
    while not list((ratings / "found").glob("trials/*.json")) and time.monotonic() < deadline and not started.poll():
        time.sleep(0.05)
    os.killpg(started.pid, signal.SIGINT)  # as a terminal does
    said, _ = started.communicate(timeout=60)
    assert started.returncode == 130, said
    assert "--resume --out found" in said
    assert "Traceback" not in said
    kept = len(list((ratings / "found").glob("trials/*.json")))
    assert 0 < kept < 20
    time.sleep(1)
    assert len(list((ratings / "found").glob("trials/*.json"))) == kept  # nobody goes on
