"""The folder in which an ingest keeps what is done, beside its target: ``.ratings.fedsub.work``.

    about.json       of which data, read how; the pieces
    runs/DIGEST/     a piece, sorted; named after file, rows and options, so that it is found again if they are the same
    client.… space0.…   vocabularies
    saved/           what becomes the target, with `state.json`, how far it is

A process that was killed leaves it, and the next one with the same target goes on with it. It is removed when the
target is complete, or when the data turn out to be unusable.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from fedsub.disk.files import make_folder, write_atomic
from fedsub.disk.reading import read_json
from fedsub.errors import DataError, RunError, StoreError

ABOUT, RUNS, SAVED = "about.json", "runs", "saved"


class Work:
    """The folder of work for a target, locked while it is open."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.folder = target.with_name(f".{target.name}.work")
        self.runs, self.saved = self.folder / RUNS, self.folder / SAVED
        self._lock = -1

    @contextmanager
    def open(self) -> Iterator[Work]:
        """Taken by this process alone; what is done stays when it fails, and `remove` takes it away."""
        make_folder(self.runs)
        self._lock = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise DataError(
                f"Another process is writing {self.target}; wait for it, or choose another directory."
            ) from None
        try:
            yield self
        except (OSError, RunError) as error:
            raise self._said(error) from error
        finally:
            if self.folder.exists() and not any(path.is_file() for path in self.folder.rglob("*/*")):
                self.remove()  # nothing was done
            os.close(self._lock)

    def _said(self, error: Exception) -> Exception:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError) or isinstance(error, StoreError):
            return error
        full = cause.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = "the disk is full" if full else cause.strerror or str(cause)
        todo = "free some space" if full else "correct this"
        return StoreError(
            f"Could not write {self.target}: {reason}. What is done is kept in {self.folder}; {todo} and run the same "
            "again, it goes on from there."
        )

    def about(self) -> dict[str, Any]:
        """What an earlier process said of its work, {} if there is none."""
        try:
            found = read_json(self.folder / ABOUT)
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def say(self, about: dict[str, Any]) -> None:
        write_atomic(self.folder / ABOUT, json.dumps(about).encode())

    def begin_anew(self) -> None:
        """Forget what was done."""
        for path in self.folder.iterdir():
            if path.name != ".lock":
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        make_folder(self.runs)

    def keep_runs(self, names: set[str]) -> None:
        """Remove the runs of data that are no more what they were."""
        for path in self.runs.iterdir():
            if path.name not in names:
                shutil.rmtree(path, ignore_errors=True)

    def remove(self) -> None:
        with suppress(OSError):
            shutil.rmtree(self.folder)


def key_of(*parts: Any) -> str:
    return blake2b(json.dumps(parts, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()
