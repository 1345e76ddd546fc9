"""Children that are started again, and stopped with all that they started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedsub.deploy import processes
from fedsub.deploy.processes import Child, Roll, born, parse_last_object, stop_all, tail

PARENT = """
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
if len(sys.argv) > 1:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(60)
"""


def child(folder: Path, *argv: str, name: str = "child") -> Child:
    return Child(name, [sys.executable, "-c", *argv], dict(os.environ), folder / f"{name}.log", folder)


def wait(what, seconds: float = 10.0):
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


@pytest.mark.parametrize("deaf", [False, True])
def test_what_a_child_started_ends_with_it(tmp_path, deaf):
    one = child(tmp_path, PARENT, *(["deaf"] if deaf else []))
    one.start()
    grandchild = int(wait(lambda: tail(one.log)))
    assert born(grandchild)
    one.stop(patience=0.2)
    assert not one.runs
    assert wait(lambda: born(grandchild) is None)


def test_a_grandchild_that_its_parent_left_behind_ends_when_that_is_seen(tmp_path):
    one = child(tmp_path, PARENT.replace("\ntime.sleep(60)", "\nsys.exit(3)"))
    one.start()
    grandchild = int(wait(lambda: tail(one.log)))
    wait(lambda: not one.runs)
    assert "ended with status 3; it is started again" in one.watch()
    assert wait(lambda: born(grandchild) is None)
    one.stop()


def test_it_is_started_again_with_longer_and_longer_pauses(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(processes.time, "time", lambda: now[0])
    one = child(tmp_path, "import sys; print('no'); sys.exit(1)")
    one.start()
    pauses = []
    for _ in range(8):
        wait(lambda: not one.runs)
        before = one.restarts
        assert one.watch()  # says so once
        assert not one.watch()
        begun = now[0]
        while one.restarts == before:
            now[0] += 0.25
            one.watch()
        pauses.append(now[0] - begun)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    one.stop()


def test_several_are_stopped_at_once(tmp_path):
    slow = (
        "import signal, time; signal.signal(15, lambda *_: time.sleep(0.5) or exit()); "
        "print(1, flush=True); time.sleep(60)"
    )
    many = [child(tmp_path, slow, name=f"c{k}") for k in range(4)]
    for one in many:
        one.start()
    for one in many:
        wait(lambda one=one: tail(one.log))
    begun = time.monotonic()
    stop_all(many)
    assert time.monotonic() - begun < 4 * 0.5 + 1.5  # not one after the other, with room for a busy machine
    assert not any(one.runs for one in many)


def test_a_killed_supervisors_children_are_found_and_ended(tmp_path):
    """A supervisor that is killed at once leaves children; the next one finds them by number and birth."""
    script = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(processes.__file__).parents[2])!r})
from pathlib import Path
from fedsub.deploy.processes import Child, Roll
one = Child("kept", [sys.executable, "-c", "import time; time.sleep(60)"], dict(os.environ), Path("log"), Path("."))
one.start()
Roll(Path("roll.json")).write([one], run="7")
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=False)
    assert done.returncode == -signal.SIGKILL
    roll = Roll(tmp_path / "roll.json")
    assert roll.read()["run"] == "7"
    assert roll.supervisor() is None
    (left,) = roll.leftovers()
    assert roll.end_leftovers() == ["kept"]
    assert wait(lambda: born(left["pid"]) is None)
    assert roll.leftovers() == []


def test_another_process_of_the_same_number_is_left_alone(tmp_path):
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        path = tmp_path / "roll.json"
        entry = {"name": "x", "pid": other.pid, "born": "12345"}
        path.write_text(json.dumps({"supervisor": entry, "children": [entry, {"pid": 1, "born": "0"}, "?", {}]}))
        roll = Roll(path)
        assert roll.supervisor() is None
        assert roll.end_leftovers() == []
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"children": 3}', "\0"])
def test_a_roll_that_cannot_be_read_is_an_empty_one(tmp_path, text):
    (tmp_path / "roll.json").write_text(text)
    assert Roll(tmp_path / "roll.json").supervisor() is None


def test_the_last_object_of_what_a_program_prints():
    text = 'Loading {not json}\n{"success": false}\nwarning\n{\n "success": true,\n "run": {"id": 3}\n}\nbye'
    assert parse_last_object(text) == {"success": True, "run": {"id": 3}}
    assert parse_last_object("nothing {here") is None
    assert parse_last_object('{"a": {"b": 1}}') == {"a": {"b": 1}}
