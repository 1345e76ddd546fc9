"""The files of a release as they were downloaded: a folder, an archive, or one file, packed or not.

    with Source("ml-1m.zip") as source:
        ratings = source.get("ratings.dat")       # a plain file on disk, unpacked for as long as the block lasts

A folder may hold the archive itself. Whatever is truncated or no archive at all is a `DataError`.
"""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, cast

from fedsub.errors import DataError

MOST = 1000  # files looked at: a folder with more is not a release
PEEK = 1 << 16  # bytes of a first line at most
BROKEN = (zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)


@dataclass(frozen=True)
class Member:
    """One file: on disk, or an entry of a .zip on disk; `name` is without folders and without .gz."""

    name: str
    path: Path
    entry: str | None = None

    @property
    def packed(self) -> bool:
        return self.entry is not None or self.path.suffix.lower() == ".gz"

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Its content, unpacked as it is read."""
        with reading(self.path):
            if self.entry is None:
                with gzip.open(self.path) if self.packed else open(self.path, "rb") as file:
                    yield cast(IO[bytes], file)
                return
            with zipfile.ZipFile(self.path) as archive, archive.open(self.entry) as inside:
                if not self.entry.lower().endswith(".gz"):
                    yield inside
                    return
                with gzip.open(inside) as file:
                    yield cast(IO[bytes], file)

    def first_line(self) -> bytes:
        with self.open() as file:
            return file.readline(PEEK).rstrip(b"\r\n")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what goes wrong with a file or an archive into a `DataError` that says so."""
    try:
        yield
    except BROKEN as error:
        kind = "gzip file" if path.suffix.lower() == ".gz" else "zip archive"
        raise DataError(f"{path} is truncated or damaged, or no {kind} at all: {error}. Download it again.") from error
    except OSError as error:
        raise DataError(
            f"{path} cannot be read or unpacked: {error.strerror or error}. Check its rights and the disk."
        ) from error


class Source:
    """Every file of a release, found by name; what is packed is unpacked into a temporary folder."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.exists():
            raise DataError(f"There is nothing at {self.path}; check the path.")
        self._unpacked: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        if self._unpacked is not None:
            self._unpacked.cleanup()
            self._unpacked = None

    @cached_property
    def members(self) -> list[Member]:
        """The files of the source; those next to a single plain file count too (ratings.dat needs users.dat)."""
        if self.path.is_file():
            here = _members(self.path)
            return here if here[:1] != [Member(self.path.name, self.path)] else here + _beside(self.path)
        with reading(self.path):
            inside = sorted(p for p in self.path.iterdir() if not p.name.startswith("."))
            folders = [p for p in inside if p.is_dir()]
            if len(folders) == 1:  # a release unpacked into a folder of its own
                inside += sorted(p for p in folders[0].iterdir() if not p.name.startswith("."))
        return [m for p in inside[:MOST] if p.is_file() for m in _members(p)]

    def find(self, *names: str) -> Member | None:
        """The first of the names that is there, whatever the case of its letters."""
        for name in names:
            for member in self.members:
                if member.name.lower() == name.lower():
                    return member
        return None

    def need(self, *names: str, home: str, kinds: tuple[str, ...] = ()) -> Path:
        """`find`, as a plain file on disk; without the name the only file of one of ``kinds`` (.csv, ...) will do."""
        member = self.find(*names)
        if member is None:
            fitting = [m for m in self.members if Path(m.name).suffix.lower() in kinds]
            if len(fitting) != 1:
                wanted = f"neither {' nor '.join(names)}" if len(names) > 1 else f"no {' '.join(names)}"
                raise DataError(f"{self.path} has {wanted} (there is {self.seen}). Get the release from {home}")
            member = fitting[0]
        return self.get(member)

    def get(self, member: Member) -> Path:
        """A member as a plain file on disk."""
        if not member.packed:
            return member.path
        if self._unpacked is None:
            self._unpacked = tempfile.TemporaryDirectory(prefix="fedsub-")
        target = Path(self._unpacked.name) / member.name
        if not target.exists():
            with member.open() as packed, open(target, "wb") as plain:
                shutil.copyfileobj(packed, plain, 1 << 20)
        return target

    @property
    def seen(self) -> str:
        """What is there, for a message."""
        names = [m.name for m in self.members]
        return (", ".join(names[:6]) + (", …" if len(names) > 6 else "")) or "nothing"


def _members(file: Path) -> list[Member]:
    kind = file.suffix.lower()
    if kind == ".gz":
        return [Member(file.stem, file)]
    if kind != ".zip":
        return [Member(file.name, file)]
    with reading(file), zipfile.ZipFile(file) as archive:
        entries = [e.filename for e in archive.infolist() if not e.is_dir()][:MOST]
    plain = [e for e in entries if not e.startswith("__MACOSX/") and not Path(e).name.startswith(".")]
    return [Member(Path(e).name.removesuffix(".gz"), file, e) for e in plain]


def _beside(file: Path) -> list[Member]:
    others = [file.with_name(f"{stem}{file.suffix}") for stem in ("users", "buy.train", "buy.test", "cart")]
    return [Member(p.name, p) for p in others if p != file and p.is_file()]
