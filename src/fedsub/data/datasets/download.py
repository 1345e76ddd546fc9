"""Fetching a file of a release: into NAME.part, which a later call goes on with, then checked and renamed."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from fedsub.data.datasets.registry import File
from fedsub.errors import DownloadError

CHUNK = 1 << 18
TIMEOUT = 30  # seconds without a byte
ATTEMPTS = 5  # connections in a row; each goes on where the last was cut
CUT = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError)

Progress = Callable[[int, int | None], None]  # bytes on disk, bytes in all if the site says so


def fetch(file: File, folder: Path, progress: Progress = lambda done, total: None) -> Path:
    """The file in ``folder``, downloaded unless it is there already. A wrong size or digest is never kept."""
    target, part = folder / file.name, folder / f"{file.name}.part"
    if target.is_file() and not fault(file, target):
        return target
    if file.url is None:
        raise DownloadError(
            f"{file.name} cannot be fetched by a program: its site asks for a login or an unpacked folder."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _complete(file.url, part, progress)
        if problem := fault(file, part):
            part.unlink()
            raise DownloadError(f"{file.url} gave {problem}. It was deleted; the site may have changed the file.")
        os.replace(part, target)
    except CUT as error:
        raise DownloadError(f"{file.url} could not be fetched: {_reason(error)}.{_kept(part)}") from error
    except OSError as error:
        raise DownloadError(f"{target} could not be written: {error.strerror or error}.{_kept(part)}") from error
    return target


def fault(file: File, path: Path) -> str:
    """How a file on disk differs from what is known of it, or ""."""
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        return f"{size:,} bytes for {file.name}, expected {file.size:,}"
    for kind, expected in (("sha256", file.sha256), ("md5", file.md5)):
        if expected is not None:
            with open(path, "rb") as opened:
                seen = hashlib.file_digest(opened, kind).hexdigest()
            return "" if seen == expected else f"a {file.name} with {kind} {seen}, expected {expected}"
    return "" if size else f"an empty {file.name}"


def _complete(url: str, part: Path, progress: Progress) -> None:
    """Connect until the part is whole; a connection that brings nothing new ends the patience early."""
    for attempt in range(1, ATTEMPTS + 1):
        before = _size(part)
        try:
            if _receive(url, part, progress):
                return
        except urllib.error.HTTPError:
            raise
        except CUT:
            if attempt == ATTEMPTS or _size(part) == before:
                raise
    raise ConnectionError("the connection was cut again and again")


def _receive(url: str, part: Path, progress: Progress) -> bool:
    """One connection, from where the part ends; whether all of the file is there now."""
    have = _size(part)
    ask = urllib.request.Request(url, headers={"User-Agent": "fedsub", "Accept-Encoding": "identity"})
    if have:
        ask.add_header("Range", f"bytes={have}-")
    try:
        answer = urllib.request.urlopen(ask, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:
            raise
        error.close()
        if error.headers.get("Content-Range", "").endswith(f"/{have}"):  # nothing was missing
            return True
        part.unlink()  # longer than the file: it belongs to an older one
        return False
    with answer:
        goes_on = answer.status == 206 and (answer.headers.get("Content-Range") or "").startswith(f"bytes {have}-")
        if not goes_on:
            have = 0  # the site sends the whole file
        length = answer.headers.get("Content-Length", "")
        total = have + int(length) if re.fullmatch(r"\d+", length) else None
        with open(part, "ab" if goes_on else "wb") as file:
            progress(have, total)
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                have += len(chunk)
                progress(have, total)
    return total is None or have == total


def _size(part: Path) -> int:
    return part.stat().st_size if part.is_file() else 0


def _kept(part: Path) -> str:
    return f" {_size(part):,} bytes are kept in {part}; the next call goes on from there." if _size(part) else ""


def _reason(error: BaseException) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the site answered {error.code} {error.reason}"
    return f"{getattr(error, 'reason', '') or error or type(error).__name__}"
