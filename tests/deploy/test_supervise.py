"""The supervisor's policy: who is started again, when it submits again, when it gives up. A stand-in plays Flower.

The programs are real processes that only sleep; that SuperLink, nodes and apps really come back is tested with Flower
itself (`test_deploy_slow.py`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from sites import make, write_live, write_rounds

pytest.importorskip("cryptography")

from fedsub.deploy import commands, supervise
from fedsub.deploy.outcome import outcome, roll
from fedsub.deploy.processes import Child, born
from fedsub.deploy.site import Site
from fedsub.deploy.supervise import Supervisor
from fedsub.errors import RunError


class Played:
    """Flower as the supervisor sees it. ``app`` is called with every submission and plays the server app."""

    def __init__(self, site: Site, app):
        self.site, self.app = site, app
        self.submitted: list[str] = []
        self.stopped: list[str] = []
        self.state: dict[str, tuple[str, str]] = {}
        self.registered: dict[str, str] = {}

    def prepare(self) -> None:
        self.site.state.mkdir(exist_ok=True)

    def nodes(self) -> list[dict[str, Any]]:
        return [{"node-id": node} for node in self.registered.values()]

    def register(self, keys: dict[str, Path]) -> dict[str, str]:
        new = {name: f"id-{name}" for name in keys}
        self.registered |= new
        return new

    def unregister(self, node: str) -> None:
        self.registered = {name: one for name, one in self.registered.items() if one != node}

    def runs(self) -> list[dict[str, Any]]:
        return [{"run-id": run, "status": status} for run, (status, _) in self.state.items()]

    def submit(self) -> str:
        run = str(len(self.submitted) + 1)
        self.submitted.append(run)
        self.state[run] = ("running", "")
        self.app(self, run)
        return run

    def status(self, run: str) -> tuple[str, str]:
        return self.state[run]

    def stop(self, run: str) -> None:
        self.stopped.append(run)
        self.state[run] = ("finished:stopped", "")

    def log(self, run: str) -> str:
        return f"log of {run}"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = make(tmp_path)

    def sleeper(name: str) -> Child:
        argv = [sys.executable, "-c", "import time; time.sleep(120)"]
        return Child(name, argv, dict(os.environ), made.state / "logs" / f"{name}.log", made.folder)

    monkeypatch.setattr(commands, "superlink", lambda site: sleeper("superlink"))
    monkeypatch.setattr(commands, "superexec", lambda site: sleeper("superexec"))
    monkeypatch.setattr(commands, "reverse_proxy", lambda site: sleeper("proxy"))
    monkeypatch.setattr(commands, "node", lambda site, k: sleeper(f"node-{k}"))
    monkeypatch.setattr(Supervisor, "healthy", lambda self: self.link.runs)
    monkeypatch.setattr(supervise, "TICK", 0.02)
    monkeypatch.setattr(supervise, "ASK_EVERY", 0.1)
    monkeypatch.setattr(supervise, "KEYS_EVERY", 0.05)
    return made


def supervised(site: Site, app, **more: Any) -> tuple[Supervisor, Played, list[str]]:
    said: list[str] = []
    made = Supervisor(site, said.append, **more)
    made.flower = Played(site, app)  # type: ignore[assignment]
    return made, made.flower, said  # type: ignore[return-value]


def finish(site: Site) -> None:
    write_rounds(site, 20)
    (site.out / "result.json").write_text("{}")


def test_it_submits_waits_and_leaves_nothing_behind(site, monkeypatch):
    monkeypatch.setattr(supervise, "finished", lambda site: (site.out / "result.json").exists())

    def app(flower: Played, run: str) -> None:
        def play() -> None:
            finish(site)
            flower.state[run] = ("finished:completed", "")

        threading.Timer(0.3, play).start()

    one, flower, said = supervised(site, app)
    one.run()
    assert flower.submitted == ["1"]
    assert flower.stopped == []
    assert set(flower.registered) == {"node-0", "node-1"}
    assert "Registered the keys of node-0, node-1 (2)" in said
    assert not any(child.runs for child in one.children)
    told = roll(site).read()
    assert told["flower"] == "finished:completed"
    assert told["ended"] is True
    assert [c.name for c in one.children] == ["superlink", "superexec", "proxy", "node-0", "node-1"]


def test_a_server_app_that_fails_is_submitted_again_and_its_log_is_kept(site, monkeypatch):
    monkeypatch.setattr(supervise, "finished", lambda site: (site.out / "result.json").exists())

    def app(flower: Played, run: str) -> None:
        if run == "1":
            write_rounds(site, 4)
            flower.state[run] = ("finished:failed", "No heartbeat received from the task")
        else:
            finish(site)
            flower.state[run] = ("finished:completed", "")

    one, flower, said = supervised(site, app)
    one.run()
    assert flower.submitted == ["1", "2"]
    assert any("No heartbeat received from the task" in sentence for sentence in said)
    assert "Submitted run 2, which goes on after round 4" in said
    assert (site.state / "logs/serverapp-1.log").read_text() == "log of 1"


def test_a_server_app_that_was_killed_is_noticed_by_its_process(site, monkeypatch):
    """Flower says "running" for a minute; the lock of the run's directory names who is gone."""
    monkeypatch.setattr(supervise, "finished", lambda site: (site.out / "result.json").exists())
    monkeypatch.setattr(supervise, "ASK_EVERY", 3600.0)
    killed = []

    def app(flower: Played, run: str) -> None:
        if run == "2":
            finish(site)
            flower.state[run] = ("finished:completed", "")
            return
        write_rounds(site, 2)
        trainer = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        (site.out / ".lock").write_text(f"{trainer.pid}\n")

        def kill() -> None:
            trainer.send_signal(signal.SIGKILL)
            trainer.wait()
            killed.append(time.monotonic())

        threading.Timer(0.5, kill).start()

    one, flower, _ = supervised(site, app)
    one.run()
    assert flower.submitted == ["1", "2"]
    assert flower.stopped[0] == "1"  # not waited for
    assert len(killed) == 1


def test_it_gives_up_when_nothing_comes_of_it_and_says_why(site):
    def app(flower: Played, run: str) -> None:
        write_rounds(site, 1)
        write_live(site, state="failed", why="task.outline: there is no directory data/outline.")
        flower.state[run] = ("finished:failed", "exit")

    one, flower, said = supervised(site, app)
    found = one.run()
    assert len(flower.submitted) == site.settings.run.tries + 1  # the first one brought a round
    assert (found.state, found.good) == ("failed", False)
    assert "there is no directory data/outline" in found.sentence()
    assert "Given up after 3 submissions without a new round" in said[-1]
    assert outcome(site).state == "failed"


def test_programs_that_end_are_started_again(site):
    stop = threading.Event()
    one, _, said = supervised(site, lambda flower, run: None, stop=stop)
    thread = threading.Thread(target=one.run)
    thread.start()
    try:
        end = time.monotonic() + 20
        while not one.nodes or not all(child.runs for child in one.children):
            assert time.monotonic() < end
            time.sleep(0.02)
        for child in (one.link, one.nodes[1]):
            before = child.pid
            assert before is not None
            os.kill(before, signal.SIGKILL)
            while child.pid == before or not child.runs:
                assert time.monotonic() < end
                time.sleep(0.02)
        while [c["restarts"] for c in roll(site).read()["children"]] != [1, 0, 0, 0, 1]:
            assert time.monotonic() < end
            time.sleep(0.02)
        (site.keys / "node-1.pub").unlink()
        while "node-1" in one.flower.registered:  # type: ignore[attr-defined]
            assert time.monotonic() < end
            time.sleep(0.02)
        assert roll(site).supervisor() == os.getpid()
        with pytest.raises(RunError, match="is supervised already"):
            Supervisor(site, said.append).run()
    finally:
        stop.set()
        thread.join(20)
    assert not thread.is_alive()
    assert any("superlink ended with SIGKILL" in sentence for sentence in said)
    assert "Revoked the key of node-1" in said
    assert one.flower.stopped == ["1"]  # type: ignore[attr-defined]
    assert outcome(site).state == "interrupted"
    pids = [c.pid for c in one.children]
    assert not any(pid and born(pid) for pid in pids)
