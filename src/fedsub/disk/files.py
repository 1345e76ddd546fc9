"""Files that survive a crash: whole ones replaced atomically, logs that can be cut back to an offset.

write_atomic("config.json", b"{}")        # the old content or the new one, never a half
log = JsonLines("metrics.jsonl")
log.append({"round": 1, "loss": 0.25})
mark = log.mark()                         # goes into a checkpoint: how many bytes, and their digest
log.truncate(mark)                        # after a resume: forget what came later
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from io import FileIO
from pathlib import Path
from typing import Any, Protocol

from fedsub.disk.reading import check_plain, parse_json
from fedsub.errors import CheckpointError, ConfigError, RunError, StoreError

TEMPORARY = ".fedsub-part"
_CHUNK = 1 << 20
_FULL = {errno.ENOSPC, errno.EDQUOT}


class Sink(Protocol):
    """What a writer passed to `write_atomic` may use."""

    def write(self, data: Any, /) -> object: ...


class _Counting:
    """Counts and digests what passes through, so that a file of gigabytes is not read again for it."""

    def __init__(self, file: Sink) -> None:
        self.file, self.size, self.hash = file, 0, blake2b(digest_size=32)

    def write(self, data: Any, /) -> None:
        with memoryview(data) as view:
            self.size += view.nbytes
            self.hash.update(view)
            self.file.write(view)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an operating system's refusal to write `path` into a `RunError` with the way out."""
    try:
        yield
    except OSError as error:
        full = error.errno in _FULL
        seen = "the disk is full" if full else error.strerror or str(error)
        todo = "free some space" if full else "correct this"
        raise RunError(
            f"Could not write {path}: {seen}. Everything up to the last checkpoint is kept; {todo} and resume the run."
        ) from error


def output_folder(path: Any, *, writable: bool = True) -> Path:
    """A path that a directory is or can be made at, refused before anything is computed if it cannot."""
    try:
        text = os.fsdecode(path)
        if not text or "\0" in text:
            raise ValueError("it is empty" if not text else "it holds a NUL character")
        os.fsencode(text)  # half of a surrogate pair is no character of any path
        folder = Path(text)
        above = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    except (OSError, ValueError, TypeError) as error:  # no path at all, or one that no file can have
        said = error.strerror if isinstance(error, OSError) else str(error)
        seen = repr(path)[:80]
        raise ConfigError(f"out is {seen}, expected the path of a directory ({said}); choose another.") from error
    if not above.is_dir():
        raise ConfigError(f"{above} is a file, not a directory; choose another out (--out).")
    if writable and not os.access(above, os.W_OK | os.X_OK):
        raise ConfigError(f"{above} cannot be written to (no permission); choose another out (--out).")
    return folder


def make_folder(path: Path) -> None:
    """Make a directory for output, and those above it; what the operating system says against it is about the path."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        said = "the disk is full" if error.errno in _FULL else error.strerror or str(error)
        raise ConfigError(f"The directory {path} cannot be made: {said}; choose another out (--out).") from error


def write_atomic(
    path: str | os.PathLike[str], content: bytes | Callable[[Sink], object], *, mode: int = 0o666,
    sync_name: bool = True,
) -> tuple[int, str]:  # fmt: skip
    """Write a whole file so that a reader, or a crash, sees the old content or the new one.

    `content` is the bytes, or a function that writes them to the file it is given; ``mode`` 0o600 is for secrets.
    ``sync_name=False`` leaves it to the next file in the same directory to make this one's name durable.
    Returns the size and the `digest` of what was written.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    with writing(path):
        try:
            with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
                sink = _Counting(file)
                if callable(content):
                    content(sink)
                else:
                    sink.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:  # also Ctrl-C: half a table must not stay on a disk that may be full
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        if sync_name:
            sync_directory(path.parent)
    return sink.size, sink.hash.hexdigest()


def sync_directory(folder: Path) -> None:
    """Make renames in a directory durable: syncing a file does not sync its name."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_temporaries(folder: Path) -> None:
    """Delete what `write_atomic` left behind in processes that were killed."""
    for leftover in folder.glob(f".*{TEMPORARY}"):
        with suppress(OSError):
            leftover.unlink()


def digest(path: str | os.PathLike[str]) -> str:
    """The BLAKE2b digest of a file, in hexadecimal, read in pieces."""
    total = blake2b(digest_size=32)
    check_plain(path)
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(_CHUNK):
            total.update(piece)
    return total.hexdigest()


def plain(value: Any, special: Callable[[float], object] = str) -> Any:
    """A value as JSON can hold it: arrays and scalars unwrapped, NaN and infinities through `special`.

    JSON has no NaN; by default it becomes the string "nan", the infinities "inf" and "-inf".
    """
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else special(float(value))
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, Mapping):
        for key in value:
            # json would turn 3 into "3" without a word, and a lookup by number would miss it later.
            if not isinstance(key, str):
                raise TypeError(f"JSON keys are strings, got {key!r}; write str({key!r}).")
        return {key: plain(item, special) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, special) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):  # NumPy and torch, scalars and arrays
        return plain(value.tolist(), special)
    raise TypeError(f"{value!r} of type {type(value).__name__} cannot be written as JSON.")


def dump(value: Any, **options: Any) -> bytes:
    """A value as JSON bytes with exact floats (the shortest digits that read back as the same number)."""
    return (json.dumps(plain(value), allow_nan=False, **options) + "\n").encode()


Mark = int | Sequence[Any]  # [bytes, their digest], or only the bytes, as an older fedsub wrote it


class JsonLines:
    """An append-only file of one JSON object a line.

    Opening it cuts off a last line that a crash left without its end, so that the next line does not
    continue it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with writing(self.path):
            # Unbuffered: the position is what the file holds, and nothing waits in memory for a close.
            self._file = FileIO(self.path, "a+")
            check_plain(self.path)
            self._end = _last_line_end(self._file)
            self._file.truncate(self._end)
        self._hash = None if self._end else blake2b(digest_size=16)  # of all lines, once it was asked for
        self._durable = False  # whether all that was appended is known to be on the disk

    @property
    def position(self) -> int:
        """The offset in bytes at which the next line begins."""
        return self._end

    def mark(self) -> list[Any]:
        """[bytes, their digest]: what the file holds now."""
        if self._hash is None:
            self._hash = self._digest_of(self._end)
        return [self._end, self._hash.hexdigest()]

    def append(self, *rows: Mapping[str, Any]) -> None:
        """Add the rows, one line each: all of them or, if the disk refuses, none."""
        whole = b"".join(dump(row) for row in rows)
        data = memoryview(whole)
        self._durable = False
        with writing(self.path):
            try:
                while data:
                    data = data[self._file.write(data) :]
            except BaseException:
                with suppress(OSError):
                    self._file.truncate(self._end)
                raise
        self._end += len(whole)
        if self._hash is not None:
            self._hash.update(whole)

    def flush(self) -> None:
        """Return once every line is on the disk, not only in the system's memory."""
        if not self._durable:
            with writing(self.path):
                os.fsync(self._file.fileno())
            self._durable = True

    @property
    def durable(self) -> bool:
        """Whether `flush` has nothing to do."""
        return self._durable

    def truncate(self, mark: Mark) -> None:
        """Cut the file back to a recorded `mark`."""
        self.check(mark)
        position, _ = _parts(mark)
        with writing(self.path):
            self._file.truncate(position)
            os.fsync(self._file.fileno())
        self._end = position
        self._hash = None if position else blake2b(digest_size=16)

    def check(self, mark: Mark) -> None:
        """Raise unless the file can be cut back to a `mark`: what it held then, it holds still."""
        position, expected = _parts(mark)
        if not 0 <= position <= self._end:
            raise CheckpointError(
                f"{self.path} holds {self._end:,} bytes, the checkpoint was taken at {position:,}: "
                "the file was shortened since. Restore it, or start again in another directory."
            )
        if position and os.pread(self._file.fileno(), 1, position - 1) != b"\n":
            raise CheckpointError(
                f"{self.path} has no end of line at byte {position:,}, where the checkpoint was taken: "
                "the file was edited since. Restore it, or start again in another directory."
            )
        if expected is not None and self._digest_of(position).hexdigest() != expected:
            raise CheckpointError(
                f"{self.path} was changed since the checkpoint was taken: its first {position:,} bytes are not what "
                "was written. Restore it, or start again in another directory."
            )

    def _digest_of(self, length: int) -> blake2b:
        found, begin = blake2b(digest_size=16), 0
        while piece := os.pread(self._file.fileno(), min(_CHUNK, length - begin), begin):
            found.update(piece)
            begin += len(piece)
        return found

    def close(self) -> None:
        self._file.close()

    @staticmethod
    def read(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
        """Every row of a file; a last line without its end is still being written, or was torn: ignored.

        The texts "nan", "inf" and "-inf", which `plain` writes, are numbers again.
        """
        rows = []
        check_plain(path)
        for number, line in enumerate(Path(path).read_bytes().split(b"\n")[:-1], start=1):
            try:
                row = parse_json(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                raise StoreError(
                    f"Line {number} of {os.fspath(path)} is not a JSON object; the file is damaged. "
                    "Restore it, or delete that line."
                )
            rows.append({key: _numbers(value) for key, value in row.items()})
        return rows


def _numbers(value: Any) -> Any:
    """A value with the numbers that JSON cannot hold, which `plain` wrote as text."""
    if isinstance(value, str):
        return float(value) if value in ("nan", "inf", "-inf") else value
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    return [_numbers(item) for item in value] if isinstance(value, list) else value


def check_marked(path: Path, mark: Sequence[Any], *, whole: bool = True) -> None:
    """Raise ValueError unless a log that is not open holds what its `mark` says, and with ``whole`` nothing else."""
    length, expected = _parts(mark)
    found, left = blake2b(digest_size=16), length
    size = check_plain(path)
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(min(_CHUNK, left)):
            found.update(piece)
            left -= len(piece)
    if found.hexdigest() != expected or (whole and size != length):
        raise ValueError("it was changed since it was written: its content does not match its digest")


def _parts(mark: Mark) -> tuple[int, str | None]:
    return (mark, None) if isinstance(mark, int) else (mark[0], mark[1])


def _last_line_end(file: FileIO) -> int:
    """The offset after the last end of line, looked for from the back."""
    stop = file.seek(0, os.SEEK_END)
    while stop:
        start = max(0, stop - _CHUNK)
        file.seek(start)
        found = (file.read(stop - start) or b"").rfind(b"\n")
        if found >= 0:
            return start + found + 1
        stop = start
    return 0
