"""The commands of compose.yaml and of the systemd units, run by hand: each service in a folder of its own that has
what it mounts and nothing else, to the end of the run. No container and no systemd; slow, skipped without nginx.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from test_make_run import fedsub, left_behind, made

from fedsub.deploy.outcome import outcome
from fedsub.deploy.site import Site

pytestmark = pytest.mark.slow
COMMAND = [sys.executable, "-m", "fedsub"]
SECONDS = 900


@pytest.fixture
def site(tmp_path: Path) -> Site:
    if shutil.which("nginx") is None and not Path("/usr/sbin/nginx").exists():
        pytest.skip("nginx is not installed; on Debian: apt-get install nginx-light")
    found = made(tmp_path, "demo", 2, rounds=3)
    subprocess.run([sys.executable, "prepare.py", "--scale", "0.02"], cwd=found.folder, check=True)
    return found


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Programs, which are ended with all that they started."""
    running: list[subprocess.Popen[bytes]] = []
    yield running
    for one in reversed(running):
        with suppress(ProcessLookupError):
            os.killpg(one.pid, signal.SIGTERM)
    for one in running:
        try:
            one.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(one.pid, signal.SIGKILL)


def room(site: Site, folder: Path, mounts: list[str]) -> Path:
    """What the image has, and what is mounted into it."""
    folder.mkdir()
    copies = re.findall(r"^COPY (.*) (\S+)$", (site.folder / "Dockerfile").read_text(), re.M)
    assert copies
    for sources, to in copies:
        for source in sources.split() if not to.startswith("/") else ():  # else wheels, not the app
            at = folder / to if to != "./" else folder / source
            (shutil.copytree if source.endswith("/") else shutil.copy)(site.folder / source, at)
    for mount in mounts:
        source, inside = mount.split(":")[:2]
        assert inside.startswith("/app/")
        (at := folder / inside.removeprefix("/app/")).parent.mkdir(parents=True, exist_ok=True)
        if source.startswith("./state") or source == "./runs":  # docker makes what is not there
            (site.folder / source).mkdir(parents=True, exist_ok=True)
        at.symlink_to((site.folder / source).resolve())
        assert at.exists(), mount
    return folder


def start(words: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """A service's command in its folder; fedsub is this one."""
    assert Path(words[0]).name == "fedsub"
    with open(folder / "service.log", "ab") as log:
        return subprocess.Popen(
            [*COMMAND, *words[1:]], cwd=folder, stdout=log, stderr=log, start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PATH": f"{os.environ['PATH']}:/usr/sbin"},
        )  # fmt: skip


def wait(site: Site, running: list[subprocess.Popen[bytes]], folders: list[Path]) -> None:
    end = time.monotonic() + SECONDS
    while not (site.out / "result.json").exists() or running[0].poll() is None:
        said = "\n".join((folder / "service.log").read_text()[-3000:] for folder in folders)
        assert running[0].poll() in (None, 0), said
        assert time.monotonic() < end, said
        time.sleep(0.5)
    assert running[0].wait() == 0


def test_the_services_of_the_compose_file(site: Site, started: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    services = yaml.safe_load((site.folder / "compose.yaml").read_text())["services"]
    folders = []
    for name, service in services.items():
        folders.append(room(site, tmp_path / name, service["volumes"]))
        said = service["command"]
        words = shlex.split(said) if isinstance(said, str) else said
        words = [word.replace("/app", str(folders[-1])).replace("=server:", "=127.0.0.1:") for word in words]
        started.append(start(words, folders[-1]))
    wait(site, started, folders)
    fedsub("predict", "runs/first", "data/new.csv", "--out", "scored.csv", folder=site.folder)
    assert not left_behind(Site.open(tmp_path / "server"))


def test_the_commands_of_the_units(site: Site, started: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
    """The server's folder is the deployment; a node's has the app, ca.crt, its key and its data."""
    folders, nodes = [site.folder], []
    for number in range(2):
        mounts = [
            "./certs/ca.crt:/app/certs/ca.crt", f"./keys/node-{number}:/app/keys/node-{number}",
            f"./data/client-{number:06d}:/app/data/client",
        ]  # fmt: skip
        nodes.append(room(site, tmp_path / f"node-{number}", mounts))
    for unit, number in (("demo-server", 0), ("demo-node@", 0), ("demo-node@", 1)):
        text = (site.folder / "systemd" / f"{unit}.service").read_text()
        if unit == "demo-node@":
            folders.append(nodes[number])
        server = re.search(r"^Environment=SERVER=(.*)$", text, re.M)
        line = re.search(r"^ExecStart=(.*)$", text, re.M)
        assert line is not None
        said = line[1].replace("%i", str(number)).replace("${SERVER}", server[1] if server else "")
        words = [word.replace("/opt/demo", str(folders[-1])) for word in shlex.split(said)]
        started.append(start(words, folders[-1]))
    wait(site, started, folders)
    assert outcome(Site.open(site.folder)).state == "finished"
