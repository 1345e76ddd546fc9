"""A SuperLink with TLS and node authentication, and nodes, as processes on this machine; ports that are free."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import fedsub as fs
from fedsub.deploy.flower import BETWEEN, SEVERAL
from fedsub.deploy.processes import parse_last_object

HERE = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
PATH = os.pathsep.join([str(Path(fs.__file__).parents[1]), str(HERE)])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def node_key(path: Path) -> Path:
    """A private key in OpenSSH's format, and its public one beside it."""
    key = ec.generate_private_key(ec.SECP384R1())
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    )
    path.chmod(0o600)
    path.with_suffix(".pub").write_bytes(
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    )
    return path


def certificates(folder: Path) -> None:
    """An authority, and a server's certificate for 127.0.0.1 that it signed."""

    def written(name: str, key: ec.EllipticCurvePrivateKey, made: x509.Certificate) -> None:
        (folder / f"{name}.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
        (folder / f"{name}.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )

    now, ours = datetime.now(UTC), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
    top, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    begun = x509.CertificateBuilder().not_valid_before(now - timedelta(1)).not_valid_after(now + timedelta(30))
    ca = begun.subject_name(ours).issuer_name(ours).public_key(top.public_key()).serial_number(1)
    ca = ca.add_extension(x509.BasicConstraints(True, None), True).add_extension(usage, True)
    written("ca", top, ca.sign(top, hashes.SHA256()))
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    hosts = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")])
    server = begun.subject_name(name).issuer_name(ours).public_key(key.public_key()).serial_number(2)
    written("server", key, server.add_extension(hosts, False).sign(top, hashes.SHA256()))


APP = """
import sys
from pathlib import Path
from flower.world import task as made
task = made(Path({folder!r}))
"""
PROJECT = """
[project]
name = "loopback"
version = "1.0.0"
description = "a test"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "test"
[tool.flwr.app.components]
serverapp = "loopapp.server_app:app"
clientapp = "loopapp.client_app:app"
[tool.flwr.app.config]
"""


def _end_with_me() -> None:
    """In a child: SIGTERM when this process ends, however it ends; a killed test leaves nobody behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def cpu_seconds(process: subprocess.Popen) -> float:
    """What a process has computed until now, on Linux."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass
class Loopback:
    """A folder with everything; processes end with `close`. ``database``: survives a crash of the SuperLink."""

    folder: Path
    config: Mapping[str, Any]
    database: bool = False
    task: str = ""  # the source of the app's task module
    processes: dict[str, subprocess.Popen] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.port = free_port()
        certificates(self.folder)
        app = self.folder / "app"
        (app / "loopapp").mkdir(parents=True)
        lines = [f"{name} = {json.dumps(value)}" for name, value in self.config.items()]
        (app / "pyproject.toml").write_text(PROJECT + "\n".join(lines) + "\n")
        (app / "loopapp" / "__init__.py").write_text("")
        (app / "loopapp" / "task.py").write_text(self.task or APP.format(folder=str(self.folder)))
        (app / "loopapp" / "server_app.py").write_text(
            "from fedsub.flower import server_app\nfrom loopapp.task import task\napp = server_app(task)\n"
        )
        (app / "loopapp" / "client_app.py").write_text(
            "from fedsub.flower import client_app\nfrom loopapp.task import task\napp = client_app(task)\n"
        )
        home = self.folder / "home"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "site"\n[superlink.site]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.folder / "ca.crt"}"\n'
        )
        self.env = {
            **os.environ, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1", "PYTHONPATH": PATH, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip

    def start(self, name: str, *command: str | Path) -> subprocess.Popen:
        log = open(self.folder / f"{name}.log", "ab")  # noqa: SIM115
        self.processes[name] = subprocess.Popen(
            [str(BIN / command[0]), *map(str, command[1:])], stdout=log, stderr=log, env=self.env,
            start_new_session=True, cwd=self.folder, preexec_fn=_end_with_me,
        )  # fmt: skip
        log.close()
        return self.processes[name]

    def superlink(self) -> None:
        more: list[str | Path] = []
        if self.database:
            secret = self.folder / "secret"
            secret.write_text("a secret of this test, long enough\n")
            more = ["--database", self.folder / "state.db", "--isolation", "process",
                    "--superexec-auth-secret-file", secret]  # fmt: skip
        self.start(
            "superlink", "flower-superlink", "--host", "127.0.0.1", "--port", str(self.port), "--ssl-ca-certfile",
            self.folder / "ca.crt", "--ssl-certfile", self.folder / "server.crt", "--ssl-keyfile",
            self.folder / "server.key", "--enable-supernode-auth", "--disable-runtime-dependency-installation", *more,
        )  # fmt: skip
        self._wait_until_healthy()
        if self.database and "superexec" not in self.processes:
            self.start(
                "superexec", "flower-superexec", "--runtime-api-address", f"127.0.0.1:{self.port}",
                "--root-certificates", self.folder / "ca.crt", "--superexec-auth-secret-file", self.folder / "secret",
            )  # fmt: skip

    def _wait_until_healthy(self) -> None:
        context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with suppress(OSError):
                urllib.request.urlopen(f"https://127.0.0.1:{self.port}/health", context=context, timeout=2).close()
                return
            assert self.processes["superlink"].poll() is None, self.log("superlink")
            time.sleep(0.2)
        raise AssertionError(self.log("superlink"))

    def register(self, *clients: int) -> None:
        """Make a key for each and register it, all in one process: flwr's start takes longer than its work."""
        words = []
        for client in clients:
            public = node_key(self.folder / f"node-{client}").with_suffix(".pub")
            words.append(["supernode", "register", str(public), "site", "--name", f"node-{client}", "--format", "json"])
        done = subprocess.run(
            [sys.executable, "-c", SEVERAL], input=json.dumps(words), env=self.env, cwd=self.folder, text=True,
            capture_output=True, check=True, timeout=300,
        )  # fmt: skip
        said = done.stdout.split(BETWEEN)[1:]
        assert len(said) == len(clients), done.stderr
        assert all((parse_last_object(text) or {}).get("success") for text in said), said

    def flwr(self, *command: str | Path) -> dict[str, Any]:
        done = subprocess.run(
            [str(BIN / "flwr"), *map(str, command)], env=self.env, capture_output=True, text=True, cwd=self.folder,
            check=False, timeout=120,
        )  # fmt: skip
        try:
            return json.loads(done.stdout[done.stdout.index("{") :])
        except ValueError:
            raise AssertionError(done.stdout + done.stderr) from None

    def node(self, client: int, *, resident: bool = True, state: str | None = None) -> subprocess.Popen:
        folder = state or str(self.folder / f"state-{client}")
        said, key = f'client={client} state="{folder}"', self.folder / f"node-{client}"
        if resident:
            return self.start(
                f"node-{client}", "fedsub", "node", "run", self.folder / "app", "--superlink",
                f"127.0.0.1:{self.port}", "--root-certificates", self.folder / "ca.crt", "--key", key,
                "--node-config", said,
            )  # fmt: skip
        return self.start(
            f"node-{client}", "flower-supernode", "--superlink", f"127.0.0.1:{self.port}", "--root-certificates",
            self.folder / "ca.crt", "--auth-supernode-private-key", key, "--port", str(free_port()),
            "--node-config", said,
        )  # fmt: skip

    def submit(self, **config: Any) -> str:
        said = " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())
        command = ["run", self.folder / "app", "site", "--format", "json"]
        found = self.flwr(*command, *(["--run-config", said] if said else []))
        assert found["success"], found
        return str(found["run-id"])

    def status(self, run: str) -> str:
        return str(self.flwr("list", "site", "--run-id", run, "--format", "json")["runs"][0]["status"])

    def wait(self, run: str, seconds: float = 120) -> str:
        """Its last status; ends early when the result is there."""
        until = time.monotonic() + seconds
        asked = 0.0
        while time.monotonic() < until:
            there = (self.folder / "out" / "result.json").exists()
            if there or time.monotonic() - asked > 5:  # asking costs a process
                asked = time.monotonic()
                if (found := self.status(run)).startswith("finished"):
                    return found
            time.sleep(0.5)
        return self.status(run)

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """A process and what it started."""
        process = self.processes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        process.wait(30)

    def _left(self) -> list[int]:
        """Processes that know the SuperLink's address by their command line; it is this link's alone."""
        found, address = [], f"127.0.0.1:{self.port}".encode()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if address in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
        return found

    def close(self) -> None:
        for name in list(self.processes):
            with suppress(Exception):
                self.kill(name)
        for pid in self._left():  # apps that lead sessions of their own, and would look for the SuperLink for minutes
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder / "home", ignore_errors=True)
