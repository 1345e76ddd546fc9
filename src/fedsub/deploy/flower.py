"""Flower's command line, asked so that its answers can be believed.

``flwr`` ends with status 0 also when a command failed, and `flwr run` when the app crashed. So every command is asked
for JSON and its "success" is read; what became of a run says `flwr list`, and the run's own directory.
"""

from __future__ import annotations

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

    def register(self, key: Path, name: str) -> str:
        return str(self.ask("supernode", "register", str(key), CONNECTION, "--name", name).get("node-id"))

    def unregister(self, node: str) -> None:
        self.ask("supernode", "unregister", node, CONNECTION)

    def nodes(self) -> list[dict[str, Any]]:
        return list(self.ask("supernode", "list", CONNECTION, "--verbose").get("nodes", []))

    def submit(self) -> str:
        """Hand the app to the SuperLink; returns the run's number."""
        config = self.site.config
        return str(self.ask("run", str(self.site.folder), CONNECTION, "--run-config", toml_pairs(config))["run-id"])

    def runs(self) -> list[dict[str, Any]]:
        return list(self.ask("list", CONNECTION).get("runs", []))

    def status(self, run: str) -> tuple[str, str]:
        """(pending | starting | running | finished:completed | finished:failed | finished:stopped, details)."""
        (found,) = self.ask("list", CONNECTION, "--run-id", run).get("runs", []) or [{}]
        return str(found.get("status", "unknown")), str(found.get("status-details") or found.get("details") or "")

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
