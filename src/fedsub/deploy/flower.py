"""Flower's command line, asked so that its answers can be believed.

``flwr`` ends with status 0 also when a command failed, and `flwr run` when the app crashed. So every command is asked
for JSON and its "success" is read; what became of a run says `flwr list`, and the run's own directory.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsub.deploy.processes import parse_last_object
from fedsub.deploy.site import Site, toml_pairs
from fedsub.errors import RunError, lacking

BETWEEN = "\x1e"  # before what each of several commands prints
# flwr's own entry point, called for one command after the other: its start takes longer than its work.
SEVERAL = f"""
import json, sys
from importlib.metadata import entry_points
(flwr,) = entry_points(group="console_scripts", name="flwr")
app = flwr.load()
for words in json.load(sys.stdin):
    print({BETWEEN!r}, flush=True)
    try:
        app(words)
    except SystemExit:
        pass
"""
CONNECTION = "site"  # must not be the name of a folder with a pyproject.toml where flwr runs
ENDED = "finished"


def program(name: str) -> str:
    """One of Flower's programs: beside this Python, or on the path."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise lacking("Flower (flwr)", "flower")
    return found


def environment(site: Site) -> dict[str, str]:
    """For Flower's programs: its files in the deployment's folder, no telemetry, this Python's programs first."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return os.environ | {
        "PATH": path, "FLWR_HOME": str(site.state / "flower"), "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1", "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }  # fmt: skip


@dataclass(frozen=True)
class Flower:
    """The commands that a deployment needs."""

    site: Site

    def prepare(self) -> None:
        """Tell flwr where the SuperLink is."""
        home = self.site.state / "flower"
        (home / "empty").mkdir(parents=True, exist_ok=True)
        text = (
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
            f'address = "127.0.0.1:{self.site.settings.server.port}"\n'
            f'root-certificates = "{self.site.authority}"\n'
        )
        (home / "config.toml").write_text(text)

    def ask(self, *words: str, seconds: float = 90.0) -> dict[str, Any]:
        """A command's answer; RunError with what it said if it did not succeed."""
        said = " ".join(words[:2])
        try:
            done = subprocess.run(
                [program("flwr"), *words, "--format", "json"], env=environment(self.site), text=True,
                cwd=self.site.state / "flower" / "empty", capture_output=True, timeout=seconds, check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise RunError(f"flwr {said} did not answer within {seconds:.0f} s; is the SuperLink well?") from error
        found = parse_last_object(done.stdout)
        if found is None or found.get("success") is not True:
            why = (found or {}).get("error-message") or (done.stderr or done.stdout).strip()[-500:] or "it said nothing"
            raise RunError(f"flwr {said} failed: {why}")
        return found

    def register(self, keys: dict[str, Path]) -> dict[str, str | RunError]:
        """Register public keys by name, all in one process; returns Flower's number of each, or why there is none."""
        words = [
            ["supernode", "register", str(key), CONNECTION, "--name", name, "--format", "json"]
            for name, key in keys.items()
        ]
        done = subprocess.run(
            [sys.executable, "-c", SEVERAL], input=json.dumps(words), env=environment(self.site), text=True,
            cwd=self.site.state / "flower" / "empty", capture_output=True, check=False,
        )  # fmt: skip
        said = done.stdout.split(BETWEEN)[1:]
        out: dict[str, str | RunError] = {}
        for place, name in enumerate(keys):
            text = said[place] if place < len(said) else done.stderr[-500:]
            found = parse_last_object(text) or {}
            if found.get("success") is True:
                out[name] = str(found["node-id"])
            else:
                out[name] = RunError(str(found.get("error-message") or text.strip()[-500:] or "flwr said nothing"))
        return out

    def unregister(self, node: str) -> None:
        self.ask("supernode", "unregister", node, CONNECTION)

    def nodes(self) -> list[dict[str, Any]]:
        return list(self.ask("supernode", "list", CONNECTION, "--verbose").get("nodes", []))

    def submit(self, *more: str, **changed: Any) -> str:
        """Hand the app to the SuperLink, with changed settings and more of flwr's options; returns the run's number."""
        config = toml_pairs(self.site.config | changed)
        return str(self.ask("run", str(self.site.folder), CONNECTION, "--run-config", config, *more)["run-id"])

    def runs(self) -> list[dict[str, Any]]:
        return list(self.ask("list", CONNECTION).get("runs", []))

    def status(self, run: str) -> tuple[str, str]:
        """(pending | starting | running | finished:completed | finished:failed | finished:stopped, details)."""
        (found,) = self.ask("list", CONNECTION, "--run-id", run).get("runs", []) or [{}]
        details = str(found.get("status-details") or "")
        return str(found.get("status", "unknown")), "" if details == "N/A" else details

    def stop(self, run: str) -> None:
        self.ask("stop", run, CONNECTION)

    def log(self, run: str) -> str:
        """What the server app printed; "" if it cannot be had."""
        try:
            done = subprocess.run(
                [program("flwr"), "log", run, CONNECTION, "--show"], env=environment(self.site), text=True,
                cwd=self.site.state / "flower" / "empty", capture_output=True, timeout=60, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return ""
        return done.stdout + done.stderr
