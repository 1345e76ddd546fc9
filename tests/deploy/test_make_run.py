"""`fedsub deploy new` and `make run` in a fresh folder: to a model that `fedsub predict` reads, whatever is killed.

Slow: minutes. Skipped where Flower is missing.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
import torch
from sites import free_ports

pytest.importorskip("flwr", reason="Flower is not installed; pip install 'fedsub[flower]'")
pytest.importorskip("cryptography")

import fedsub as fs
from fedsub.deploy.outcome import live, outcome, roll, rounds_done
from fedsub.deploy.site import Site

pytestmark = pytest.mark.slow
SECONDS = 900


def fedsub(*words: str, folder: Path, wrong: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "fedsub", *words], cwd=folder, capture_output=True, text=True, timeout=SECONDS,
        check=False,
    )  # fmt: skip
    assert done.returncode == wrong, done.stdout + done.stderr
    return done.stdout


def made(folder: Path, name: str, nodes: int, **settings: Any) -> Site:
    """A deployment by the command, on free ports, with some of the app's settings changed."""
    port, entrance, page = free_ports(3)
    fedsub("deploy", "new", name, "--nodes", str(nodes), "--port", str(port), "--entrance", str(entrance),
           "--page", str(page), folder=folder)  # fmt: skip
    path = folder / name / "pyproject.toml"
    lines = path.read_text().splitlines()
    for key, value in settings.items():
        lines = [f"{key} = {value}" if line.split(" = ")[0] == key else line for line in lines]
    path.write_text("\n".join(lines) + "\n")
    return Site.open(folder / name)


def start(site: Site) -> subprocess.Popen[bytes]:
    with open(site.folder / "make.log", "ab") as log:
        return subprocess.Popen(
            ["make", "run", f"FEDSUB={sys.executable} -m fedsub", f"PYTHON={sys.executable}"], cwd=site.folder,
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip


def until(what: Callable[[], Any], running: subprocess.Popen[bytes], site: Site) -> Any:
    end = time.monotonic() + SECONDS
    while not (found := what()):
        log = (site.folder / "make.log").read_text()
        assert running.poll() in (None, 0), log
        assert time.monotonic() < end, log
        time.sleep(0.2)
    return found


def simulated(site: Site, nodes: int) -> fs.Result:
    """The same in this process: the app's method on the data that its prepare.py makes."""
    sys.path.insert(0, str(site.folder))
    try:
        for name in ("prepare", f"{site.package}.task"):
            sys.modules.pop(name, None)
        prepare, task = importlib.import_module("prepare"), importlib.import_module(f"{site.package}.task")
    finally:
        sys.path.remove(str(site.folder))
    frame = prepare.table(prepare.ratings(SimpleNamespace(movielens=None, scale=0.05)), nodes)
    clients = fs.Clients.from_frame(frame, "node", ids=list(prepare.FEATURES), label="label")
    train, test = clients.split(0.9, seed=0)
    objective = task.objective({name: space.size for name, space in train.spaces.items()})
    config = site.config
    return fs.run(
        task.method(config), objective, train, test=test, rounds=config["rounds"], seed=config["seed"],
        engine="serial", evaluate=fs.Evaluate(every=config["rounds"]),
    )  # fmt: skip


def assert_same_model(site: Site, expected: fs.Result) -> None:
    trained = fs.load(site.out)
    assert trained.finished
    assert expected.params is not None
    for name, value in expected.params.items():
        assert torch.equal(trained.params[name], value), name


def left_behind(site: Site) -> list[str]:
    """Processes that still know the deployment's folder by their command line."""
    out = subprocess.run(["ps", "-eo", "stat,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in out.splitlines() if str(site.folder) in line and not line.startswith("Z")]


def test_from_nothing_to_predictions(tmp_path: Path):
    if shutil.which("make") is None:
        pytest.skip("make is not here")
    site = made(tmp_path, "demo", 5)
    running = start(site)
    try:
        page = f"http://127.0.0.1:{site.settings.page.port}"

        def rounds() -> int:
            try:
                with urllib.request.urlopen(f"{page}/status.json", timeout=5) as answer:
                    return json.load(answer)["outcome"]["round"]
            except OSError:
                return 0

        until(lambda: rounds() >= 2, running, site)  # while it trains
        with urllib.request.urlopen(f"{page}/", timeout=5) as answer:
            text = answer.read().decode()
        assert "Who is there" in text
        assert "node-4" in text
        with urllib.request.urlopen(f"{page}/metrics", timeout=5) as answer:
            assert 'fedsub_nodes{state="joined"} 5' in answer.read().decode()
        assert "Running" in fedsub("deploy", "status", folder=site.folder)
        assert "is supervised already" in subprocess.run(
            [sys.executable, "-m", "fedsub", "deploy", "run", "--resume"], cwd=site.folder, capture_output=True,
            text=True, check=False,
        ).stderr  # fmt: skip
        assert running.wait(SECONDS) == 0, (site.folder / "make.log").read_text()
    finally:
        _end(running, site)
    assert outcome(site).state == "finished"
    assert outcome(site).flower == "finished:completed"
    assert left_behind(site) == []
    scored = pl.read_csv(site.folder / "scored.csv")
    assert len(scored) == 20
    assert scored["probability"].is_between(0, 1).all()
    expected = simulated(site, 5)
    assert_same_model(site, expected)
    assert "Finished" in fedsub("deploy", "status", folder=site.folder)
    again = json.loads(fedsub("deploy", "run", "--resume", "--json", folder=site.folder))  # nothing is left to do
    assert again["state"] == "finished"
    fedsub("deploy", "run", folder=site.folder, wrong=2)
    page_file = (site.state / "status.html").read_text()
    assert "round 20 of 20" in page_file


def _end(running: subprocess.Popen[bytes], site: Site) -> None:
    if running.poll() is None:
        subprocess.run([sys.executable, "-m", "fedsub", "deploy", "stop"], cwd=site.folder, check=False)
        running.wait(60)


def test_whatever_is_killed_the_run_ends_with_the_same_model(tmp_path: Path):
    """The server app, the SuperLink, a node and at last the supervisor itself, each with SIGKILL in mid-run."""
    site = made(tmp_path, "killed", 3, rounds=40, deadline="600.0", **{"clients-per-round": 3})
    running = start(site)

    def pid(name: str) -> int:
        return next(c["pid"] for c in roll(site).read()["children"] if c["name"] == name)

    def reached(rounds: int) -> int:
        return until(lambda: rounds_done(site.out) >= rounds, running, site)

    try:
        reached(3)
        os.kill(int((site.out / ".lock").read_text()), signal.SIGKILL)  # the server app
        reached(8)
        os.kill(pid("superlink"), signal.SIGKILL)
        reached(12)
        os.kill(pid("node-1"), signal.SIGKILL)
        reached(16)
        supervisor = roll(site).supervisor()
        assert supervisor is not None
        os.kill(supervisor, signal.SIGKILL)
        running.wait(60)
        assert outcome(site).state == "interrupted"
        assert roll(site).leftovers()
        said = fedsub("deploy", "stop", folder=site.folder)
        assert "Stopped what was left" in said
        assert left_behind(site) == []
        fedsub("deploy", "status", folder=site.folder, wrong=1)
        running = start(site)
        assert running.wait(SECONDS) == 0, (site.folder / "make.log").read_text()
    finally:
        _end(running, site)
    told = [json.loads(line)["event"] for line in (site.state / "events.jsonl").read_text().splitlines()]
    assert any("The server app is gone" in sentence for sentence in told)
    assert any("superlink ended with SIGKILL" in sentence for sentence in told)
    assert any("node-1 ended with SIGKILL" in sentence for sentence in told)
    assert live(site.out)["counts"]["refused"] == 0
    assert_same_model(site, simulated(site, 3))
    assert left_behind(site) == []
