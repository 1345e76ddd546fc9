"""Child processes that are started, watched, restarted and, whatever happened, stopped.

Every child leads a session of its own, so that it is stopped with all that it started: Flower's programs start others
and may end before them. Who runs is written to a file, so that the next start finds what a killed one left behind.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from fedsub.disk.files import dump, write_atomic
from fedsub.disk.reading import read_json
from fedsub.errors import RunError

PATIENCE = 8.0  # seconds between asking a process to end and ending it
LONGEST_PAUSE = 30.0
STEADY = 60.0  # a child that ran so long was well; the next restart comes at once
LOG_LIMIT = 20 * 1024 * 1024


@dataclass
class Child:
    """One program with its log; `watch` restarts it when it has ended."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    log: Path
    cwd: Path
    restarts: int = 0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    started: float = 0.0
    born: str = ""
    restarts_in_a_row: int = 0
    _due: float = 0.0

    @property
    def pid(self) -> int | None:
        return None if self.process is None else self.process.pid

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.log.exists() and self.log.stat().st_size > LOG_LIMIT:
            self.log.replace(self.log.with_name(f"{self.log.name}.1"))
        with open(self.log, "ab") as out:
            self.process = subprocess.Popen(
                self.argv, env=dict(self.env), cwd=self.cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip
        self.started, self.born = time.time(), born(self.process.pid) or ""

    def watch(self) -> str:
        """Restart it if it has ended and its pause is over. Returns a sentence when it is seen to have ended."""
        if self.process is None or (code := self.process.poll()) is None:
            return ""
        now = time.time()
        if self._due == 0.0:
            end_group(self.process.pid)  # what it started and left behind
            if now - self.started > STEADY:
                self.restarts_in_a_row = 0
            pause = min(LONGEST_PAUSE, 0.5 * 2**self.restarts_in_a_row)
            self._due = now + pause
            return f"{self.name} ended with {how(code)}; it is started again in {pause:.0f} s. {tail(self.log)}"
        if now >= self._due:
            self._due = 0.0
            self.restarts += 1
            self.restarts_in_a_row += 1
            self.start()
        return ""

    def stop(self, patience: float = PATIENCE) -> None:
        """End it and all that it started."""
        if self.process is None:
            return
        if self.process.poll() is None:
            _signal(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(patience)
            except subprocess.TimeoutExpired:
                _signal(self.process.pid, signal.SIGKILL)
                self.process.wait()
        end_group(self.process.pid)
        self.process = None


def stop_all(children: Sequence[Child], patience: float = PATIENCE) -> None:
    """End several, which takes as long as the slowest."""
    for child in children:
        if child.runs:
            _signal(child.process.pid, signal.SIGTERM)  # type: ignore[union-attr]
    end = time.monotonic() + patience
    for child in children:
        if child.runs:
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.0, end - time.monotonic()))  # type: ignore[union-attr]
        child.stop(0.0)


def how(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def tail(log: Path, lines: int = 1) -> str:
    """The last lines of a log that say something."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - 8192))
            found = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    except OSError:
        return ""
    return "\n".join([line for line in found if line][-lines:])[-2000:]


def born(pid: int) -> str | None:
    """When a process began, by the system's clock; None if there is none. With the number it names one process only."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return None if fields[0] == b"Z" else fields[19].decode()
    except OSError:
        if os.path.isdir("/proc/self"):
            return None
    done = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def _signal(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def end_group(group: int, patience: float = 2.0) -> None:
    """End what is left of a session whose leader is gone."""
    if not _signal(group, signal.SIGTERM):
        return
    end = time.monotonic() + patience
    while time.monotonic() < end and _alive(group):
        time.sleep(0.05)
    _signal(group, signal.SIGKILL)


def _alive(group: int) -> bool:
    """Whether a process of the group still runs; a zombie, which somebody else has to reap, does not."""
    if not os.path.isdir("/proc/self"):
        return _signal(group, 0)
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] != b"Z":
                return True
    return False


@dataclass(frozen=True)
class Roll:
    """The file that says who runs: ``supervisor`` and its children, by number and time of birth."""

    path: Path

    def write(self, children: Sequence[Child], **more: object) -> None:
        lines = [
            {"name": c.name, "pid": c.pid, "born": c.born, "since": c.started, "restarts": c.restarts, "runs": c.runs}
            for c in children
            if c.process is not None
        ]
        me = os.getpid()
        supervisor = {"pid": me, "born": born(me)}
        write_atomic(self.path, dump({"supervisor": supervisor, "children": lines, "time": time.time(), **more}))

    def read(self) -> dict:
        """What was written last; empty if there is nothing that can be read."""
        try:
            found = read_json(self.path)
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def supervisor(self) -> int | None:
        """The number of the supervisor that runs now; one that has ended in order says so."""
        told = self.read()
        return None if told.get("ended") else _same(told.get("supervisor"))

    def refuse_another(self) -> None:
        """RunError if a supervisor runs already."""
        if (other := self.supervisor()) is not None:
            raise RunError(
                f"{self.path.parent.parent} is supervised already (pid {other}); see fedsub deploy status, or stop it "
                "first."
            )

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Be the only supervisor while the block runs: a lock of the operating system, which ends with the process."""
        self.refuse_another()
        with open(self.path.with_suffix(".lock"), "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RunError(f"{self.path.parent.parent} is supervised already, by one that just began.") from error
            yield

    def leftovers(self) -> list[dict]:
        """Children of an earlier supervisor that still run."""
        found = self.read().get("children", [])
        return [entry for entry in found if isinstance(entry, dict) and _same(entry) is not None]

    def end_leftovers(self) -> list[str]:
        """Stop them; returns their names."""
        found = self.leftovers()
        for entry in found:
            _signal(entry["pid"], signal.SIGTERM)
        for entry in found:
            end_group(entry["pid"], PATIENCE)
        return [str(entry.get("name")) for entry in found]


def _same(entry: object) -> int | None:
    """The process that an entry of the roll means, if it still runs and is not another of the same number."""
    if not isinstance(entry, dict):
        return None
    pid = entry.get("pid")
    if not isinstance(pid, int) or pid <= 1 or not entry.get("born"):
        return None
    return pid if born(pid) == entry["born"] else None


def parse_last_object(text: str) -> dict | None:
    """The last JSON object that a program printed, with whatever stands before and after it."""
    decoder, at = json.JSONDecoder(), len(text)
    best = None
    while (at := text.rfind("{", 0, at)) >= 0:
        try:
            value, _ = decoder.raw_decode(text, at)
        except ValueError:
            continue
        if isinstance(value, dict):
            best = value
        if best is not None and (at == 0 or text[at - 1] == "\n"):
            return best
    return best
