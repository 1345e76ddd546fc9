"""What became of a run, where programs say that all is well and it is not."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import pytest
from sites import make, write_live, write_rounds

pytest.importorskip("cryptography")

import fedsub as fs
from fedsub.deploy import flower
from fedsub.deploy.flower import Flower
from fedsub.deploy.outcome import finished, outcome, roll, rounds_done
from fedsub.deploy.processes import born
from fedsub.deploy.site import Site, toml_pairs
from fedsub.errors import ConfigError, RunError


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return make(tmp_path)


def told(site: Site, alive: bool, **more) -> None:
    """The supervisor's roll, of this process or of one that is gone."""
    site.state.mkdir(exist_ok=True)
    me = {"pid": os.getpid(), "born": born(os.getpid())} if alive else {"pid": 999_999, "born": "1"}
    text = json.dumps({"supervisor": me, "children": [], "out": str(site.out), "run": "7", **more})
    (site.state / "processes.json").write_text(text)


def test_before_during_and_after(site):
    assert outcome(site).state == "nothing"
    told(site, True)
    assert outcome(site).state == "starting"
    write_rounds(site, 0)
    write_live(site, state="waiting")
    assert outcome(site).state == "waiting"
    write_rounds(site, 3)
    write_live(site)
    now = outcome(site)
    assert (now.state, now.round, now.rounds, now.run, now.good) == ("running", 3, 20, "7", True)
    assert now.sentence() == "Running: round 3 of 20 is done."


def test_whoever_says_running_without_a_supervisor_is_not_believed(site):
    write_rounds(site, 3)
    write_live(site, state="running")
    told(site, False, flower="running")
    found = outcome(site)
    assert (found.state, found.good) == ("interrupted", False)
    assert "Its supervisor is gone" in found.sentence()


def test_a_run_that_was_given_up_says_why(site):
    write_rounds(site, 3)
    told(site, False, flower="finished:completed", gave_up=True, why="No space left on device.")
    found = outcome(site)
    assert (found.state, found.good) == ("failed", False)
    assert found.sentence() == "Failed after round 3 of 20. No space left on device."


def test_flowers_completed_without_a_result_is_no_finished_run(site):
    write_rounds(site, 20)
    told(site, False, flower="finished:completed")
    assert outcome(site).state == "interrupted"
    (site.out / "result.json").write_text("{}")
    assert outcome(site).state == "failed"
    assert "damaged" in outcome(site).why


def real_run(site: Site, rounds: int) -> None:
    clients = fs.Clients.from_arrays({"user": [0, 0, 1, 1], "item": [0, 1, 1, 2], "y": [0, 1, 1, 0]}, "user",
                                     ids=["item"], label="y")  # fmt: skip
    method = fs.methods.fedsubavg(lr=0.1, clients_per_round=2, batch_size=2)
    out, resume = site.out, site.out.exists()
    fs.run(method, fs.models.make_objective(clients), clients, rounds=rounds, out=out, resume=resume, engine="serial")


def test_a_finished_run_is_finished_whatever_anybody_says_and_one_of_more_rounds_is_not(site):
    real_run(site, 20)
    told(site, False, flower="finished:failed", gave_up=True)
    assert outcome(site).state == "finished"
    assert outcome(site).sentence() == "Finished: round 20 of 20."
    path = site.folder / "pyproject.toml"
    path.write_text(path.read_text().replace("rounds = 20", "rounds = 25"))
    more = Site.open(site.folder)
    assert not finished(more)
    assert (outcome(more).round, outcome(more).rounds) == (20, 25)
    real_run(more, 25)
    assert finished(more)
    lines = (site.out / "metrics.jsonl").read_text()
    (site.out / "metrics.jsonl").write_text(lines.replace('"round": 3', '"round": 4').replace('"round":3', '"round":4'))
    assert not finished(more)  # somebody changed what the result belongs to


@pytest.mark.parametrize("text", ["", "[", "{}", '{"round"', "\0\0", '{"round": "three"}\n'])
def test_files_that_are_anything_end_nothing(site, text):
    site.out.mkdir(parents=True)
    for name in ("metrics.jsonl", "live.json", "config.json"):
        (site.out / name).write_text(text)
    assert outcome(site).state == "interrupted"
    assert rounds_done(site.out) == 0


def fake_flwr(folder: Path, monkeypatch: pytest.MonkeyPatch, printed: str, status: int = 0) -> None:
    """A flwr that prints this and ends so."""
    path = folder / "flwr"
    path.write_text(f"#!{sys.executable}\nimport sys\nprint({printed!r})\nsys.exit({status})\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(flower, "program", lambda name: str(path))


def test_a_command_that_failed_with_status_0_is_an_error(site, tmp_path, monkeypatch):
    Flower(site).prepare()
    fake_flwr(tmp_path, monkeypatch, '{"success": false, "error-message": "no such run"}')
    with pytest.raises(RunError, match="flwr stop 7 failed: no such run"):
        Flower(site).stop("7")
    fake_flwr(tmp_path, monkeypatch, "Traceback: something")
    with pytest.raises(RunError, match="Traceback: something"):
        Flower(site).runs()
    fake_flwr(
        tmp_path, monkeypatch, '{"success": true, "runs": [{"status": "finished:failed", "status-details": "x"}]}'
    )
    assert Flower(site).status("7") == ("finished:failed", "x")


def test_flwr_is_asked_where_no_folder_can_be_taken_for_a_connection(site):
    Flower(site).prepare()
    home = site.state / "flower"
    assert list((home / "empty").iterdir()) == []
    assert f'address = "127.0.0.1:{site.settings.server.port}"' in (home / "config.toml").read_text()
    assert roll(site).supervisor() is None


def test_settings_as_flwr_takes_them():
    assert toml_pairs({"a": 1, "b": 0.5, "c": True, "d": 'x "y" \\z'}) == 'a=1 b=0.5 c=true d="x \\"y\\" \\\\z"'
    with pytest.raises(ConfigError, match="control characters"):
        toml_pairs({"a": "x\ny"})
