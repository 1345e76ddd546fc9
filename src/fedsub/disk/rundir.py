"""The directory of one training run: what it was asked to do, what happened, and where to go on.

config.json      the full configuration, written once
versions.json    python, torch, numpy, fedsub, platform; command line, data, commits (`fedsub.disk.provenance`)
metrics.jsonl    one line a round; the same bytes whether or not the run was interrupted
traffic.jsonl    bytes per client
samples.npy      how many training samples each client has, for estimates of time (`fedsub.study.costs`)
timing.jsonl     seconds, CPU seconds, peak memory: never the same twice, so apart
events.jsonl     sentences: rejected updates, damaged checkpoints, the choice of engine
engine.json      what engine="auto" chose, as soon as it is known
checkpoints/     see `fedsub.disk.checkpoint`
model.*, vocabulary/, personal.*, held.*, clients.*    the model, to come back: see `fedsub.running.keep`
live.json, population.safetensors    of a server whose clients are elsewhere: who is there, what is known of them
result.json      written last: its presence means that the run is finished; with digests of the files above

What a resume reads is known to the checkpoint: of each log how long it was, and the digest of its lines.
"""

from __future__ import annotations

import fcntl
import io
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from fedsub.disk.files import (
    TEMPORARY,
    JsonLines,
    Mark,
    check_marked,
    digest,
    dump,
    make_folder,
    output_folder,
    plain,
    remove_temporaries,
    write_atomic,
    writing,
)
from fedsub.disk.reading import check_plain
from fedsub.disk.seal import read_sealed, seal_of, write_sealed
from fedsub.disk.settings import differences
from fedsub.disk.versions import versions
from fedsub.errors import CheckpointError, ConfigError, RunError

FORMAT, VERSION = "fedsub-run", 1
Free = Callable[[str], bool]  # whether a setting, by its dotted name, may differ
REWOUND = ("metrics", "traffic", "timing")  # cut back on resume; events tell the whole story
LOGS = (*REWOUND, "events")
SAMPLES = "samples.npy"
SHOWN = ("config.json", "versions.json", SAMPLES)  # what else is read of a finished run, besides its model
_OWN = {SAMPLES, "config.json", "versions.json", "engine.json", "result.json", "checkpoints", ".lock"}
_OWN |= {f"{name}.jsonl" for name in LOGS}
_OWN |= {"live.json", "population.safetensors"}  # of servers whose clients are elsewhere, from before the first round


class RunDir:
    """A run directory. Making the object only looks; `start` creates, locks and opens it.

    with RunDir("out/run") as run:
        run.start(config)
        run.log_metrics({"round": 1, "loss": 0.25})
        meta = {"files": run.positions()}          # into the checkpoint of the round
        run.finish({"loss": 0.25})
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = output_folder(path, writable=False)
        self._lock: int | None = None
        self._logs: dict[str, JsonLines] = {}
        self._flushing: ThreadPoolExecutor | None = None
        self._check_ours()

    @property
    def checkpoints(self) -> Path:
        """The folder for `Checkpoints`."""
        return self.path / "checkpoints"

    @property
    def started(self) -> bool:
        """Whether a configuration was written here, by this process or an earlier one."""
        return (self.path / "config.json").exists()

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").exists()

    def start(
        self, config: Mapping[str, Any], free: Free | None = None, origin: Mapping[str, Any] | None = None
    ) -> None:
        """Take the directory for this process; the configuration must be the one it was started with (see `check`).

        ``origin``: where the run comes from, kept beside the versions.
        """
        if self._lock is not None:
            raise RunError(f"{self.path} is already started in this process; use the same RunDir.")
        make_folder(self.path)
        self._take_lock()
        try:
            self._check_ours()  # again: another process may have filled it before the lock was ours
            remove_temporaries(self.path)
            self.check(config, free)
            changed, resumed_by = self._write_versions(origin or {})
            if not self.started:
                write_atomic(self.path / "config.json", dump(config, indent=2))
            with writing(self.checkpoints):
                self.checkpoints.mkdir(exist_ok=True)
            remove_temporaries(self.checkpoints)
            for name in LOGS:
                self._logs[name] = JsonLines(self.path / f"{name}.jsonl")
            if resumed_by:
                self.log_event(f"Resumed by: {resumed_by}")
            if changed:
                self.log_event(f"Resumed with other versions ({changed}); results may differ in the last digits.")
        except BaseException:
            self.close()
            raise

    # Logs

    def log_metrics(self, *rows: Mapping[str, Any]) -> None:
        self._log("metrics").append(*rows)

    def log_traffic(self, *rows: Mapping[str, Any]) -> None:
        self._log("traffic").append(*rows)

    def log_timing(self, *rows: Mapping[str, Any]) -> None:
        self._log("timing").append(*rows)

    def log_event(self, sentence: str, **details: Any) -> None:
        """A sentence for people, with the time; `details` for programs."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._log("events").append({"time": now, "event": sentence, **details})

    def keep_samples(self, sizes: np.ndarray) -> None:
        """How many training samples each client has, written once, and again if it is not what was written."""
        path, raw = self.path / SAMPLES, io.BytesIO()
        np.save(raw, np.asarray(sizes, np.uint32), allow_pickle=False)
        try:
            there = path.exists()
            if there and check_plain(path) == raw.tell() and path.read_bytes() == raw.getvalue():
                return
        except OSError:
            there = True
        write_atomic(path, raw.getvalue())
        if there:
            self.log_event(f"{SAMPLES} was not what had been written, and was written again.")

    def flush(self) -> None:
        """Return once everything logged is on the disk."""
        waiting = [log for log in map(self._log, LOGS) if not log.durable]
        if len(waiting) < 2:
            for log in waiting:
                log.flush()
            return
        self._flushing = self._flushing or ThreadPoolExecutor(len(LOGS), thread_name_prefix="fedsub-flush")
        # Together: a file system writes its journal once for all of them, where it would once for each.
        list(self._flushing.map(JsonLines.flush, waiting))

    def positions(self) -> dict[str, Mark]:
        """The ends of the logs with a digest of each, for a checkpoint's meta.

        Flushes: a checkpoint must not outlive its lines.
        """
        self.flush()
        return {name: self._log(name).mark() for name in LOGS}

    def rewind(self, positions: Mapping[str, Mark] | None) -> None:
        """Cut the logs back to a checkpoint's `positions`; None: to the beginning. Events stay, looked over."""
        target: dict[str, Mark] = dict.fromkeys(REWOUND, 0) if positions is None else dict(positions)
        if lacking := [name for name in REWOUND if name not in target]:
            raise CheckpointError(f"The checkpoint has no position for {', '.join(lacking)}; it cannot be resumed.")
        for name in LOGS:  # all or none
            if name in target:
                self._log(name).check(target[name])
        for name in REWOUND:
            self._log(name).truncate(target[name])

    def ask_for(self, rounds: int) -> None:
        """Have the run trained further: it is unfinished again."""
        # In this order: killed in between, it is an unfinished run of as many rounds as before.
        (self.path / "result.json").unlink(missing_ok=True)
        write_atomic(self.path / "config.json", dump(self.config() | {"rounds": rounds}, indent=2))

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result, after everything that led to it, with digests of what else is shown of the run."""
        kept = {name: digest(self.path / name) for name in SHOWN if (self.path / name).is_file()}
        write_sealed(self.path / "result.json", {**result, "logs": self.positions(), "kept": kept})

    def result(self) -> dict[str, Any]:
        """What `finish` wrote, after a look at every file that is shown with it."""
        name = "result.json"
        try:
            found = read_sealed(self.path / name)
            for name, expected in found.get("kept", {}).items():
                if digest(self.path / name) != expected:
                    raise ValueError("it was changed since it was written: its content does not match its digest")
            for log, mark in found.get("logs", {}).items():
                name = f"{log}.jsonl"
                check_marked(self.path / name, mark, whole=log in REWOUND)
        except FileNotFoundError as error:
            raise self._unusable(name, "it is missing") from error
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise self._unusable(name, str(error)) from error
        return found

    def _unusable(self, name: str, why: str) -> CheckpointError:
        return CheckpointError(
            f"{self.path / name} is missing or damaged ({why}); delete {self.path} to train it again, or only its "
            "result.json to go on from its newest checkpoint with resume."
        )

    # Opening and closing

    def close(self) -> None:
        """Close the logs and let other processes in. May be called twice."""
        for log in self._logs.values():
            log.close()
        self._logs.clear()
        if self._flushing is not None:
            self._flushing.shutdown()
            self._flushing = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> RunDir:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _log(self, name: str) -> JsonLines:
        if name not in self._logs:
            raise RunError(f"The run in {self.path} is not open; call start(config) first.")
        return self._logs[name]

    def _take_lock(self) -> None:
        """A lock of the operating system: it ends with the process, however that ends."""
        path = self.path / ".lock"
        with writing(path):
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(handle, 32, 0).decode(errors="replace").strip()
            os.close(handle)
            if not isinstance(error, BlockingIOError):
                raise RunError(f"{path} cannot be locked ({error.strerror}); use a local disk.") from error
            raise RunError(
                f"Another process{f' (pid {owner})' if owner else ''} is training into {self.path}; "
                "wait for it, or choose another --out."
            ) from error
        self._lock = handle
        with writing(path):
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)

    def _check_ours(self) -> None:
        """Refuse a directory with files of somebody else, before anything is written into it."""
        if not self.path.exists():
            return
        # A start that was cut short left only our names; later, people add plots of their own.
        other = sorted(p.name for p in self.path.iterdir() if p.name not in _OWN and not p.name.endswith(TEMPORARY))
        marker = self.path / "versions.json"
        if marker.exists():
            found = _read(marker)
            if found.get("format") == FORMAT and found.get("version", 0) > VERSION:
                raise CheckpointError(f"{self.path} was written by a newer fedsub; install that one.")
            if found.get("format") != FORMAT:
                other = other or [marker.name]
            elif self.started:
                return
        elif self.started:
            other = other or ["config.json"]  # versions.json is written before it: this one is not ours
        if other:
            raise ConfigError(f"{self.path} holds other files ({other[0]}); choose another --out.")

    def identity(self) -> str:
        """A digest of the configuration but for the rounds, which may grow: for a checkpoint's meta."""
        return seal_of({key: value for key, value in self.config().items() if key != "rounds"})

    def config(self) -> dict[str, Any]:
        """The configuration that this run was started with."""
        return _read(self.path / "config.json")

    def check(self, config: Mapping[str, Any], free: Free | None = None) -> None:
        """Refuse a configuration that is not the one this run was started with, but for settings that are ``free``."""
        if not self.started:
            return
        if lines := differences(self.config(), plain(config), free or (lambda key: False)):
            raise CheckpointError(
                f"{self.path} belongs to a run with another configuration:\n" + "\n".join(lines) + "\n"
                "Use the same configuration to resume it, or choose another --out."
            )

    def _write_versions(self, origin: Mapping[str, Any]) -> tuple[str, str]:
        """Write the versions once; later, say which of them changed, and the command line if it is another one."""
        path = self.path / "versions.json"
        now = {"format": FORMAT, "version": VERSION, **versions()}
        if not path.exists():
            write_sealed(path, {**now, **origin})
            return "", ""
        before = _read(path)
        now |= {"commit": origin["commit"]} if "commit" in before and "commit" in origin else {}
        changed = ", ".join(f"{k} {v}, before {before.get(k)}" for k, v in now.items() if before.get(k) != v)
        other = "command" in before and origin.get("command", "") != before["command"]
        return changed, str(origin.get("command", "")) if other else ""


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_sealed(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); restore it, or choose another --out.") from error
