"""Where a result comes from: the command line, commits of fedsub and of the user's own files, versions of packages."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from pathlib import Path
from typing import Any

from fedsub.disk.files import digest

HERE = Path(__file__).resolve().parents[1]
GIT_SECONDS = 5  # a repository on a slow disk must not hold a run up


def provenance(files: Iterable[Path] = ()) -> dict[str, Any]:
    """What is kept beside a run's versions; ``files`` are those of the user's own that it is made of."""
    return {
        "command": command_line(),
        "folder": str(Path.cwd()),
        "commit": fedsub_commit(),
        "files": {str(file): {"digest": digest(file)[:16], "commit": commit_of(file)} for file in files},
        "packages": packages(),
    }


SECRET = "token", "password", "secret"  # of an option's name


def command_line() -> str:
    """What this process was started with, as a shell reads it; what it must keep to itself is left out."""
    first = Path(sys.argv[0]) if sys.argv and sys.argv[0] else None
    if first is None or not first.is_file():  # an interpreter, or -c
        return shlex.join([Path(sys.executable).name, *_shown(sys.orig_argv[1:])])
    if first.name.partition(".")[0] == "fedsub" or first.parts[-2:] == ("fedsub", "__main__.py"):
        return shlex.join(["fedsub", *_shown(sys.argv[1:])])
    return shlex.join(["python", *_shown(sys.argv)])


def _shown(words: list[str]) -> list[str]:
    """Without the values of options that are tokens, passwords or secrets: launchers hand them over like this."""
    out, hidden = [], False
    for word in words:
        name, equals, _ = word.partition("=")
        secret = name.startswith("-") and any(part in name.lower() for part in SECRET)
        hidden = hidden and not word.startswith("env:")  # the name of a variable says nothing
        out.append("…" if hidden else f"{name}=…" if secret and equals else word)
        hidden = secret and not equals
    return out


@cache
def packages() -> dict[str, str]:
    """The installed versions of all that fedsub is built on, extras included."""
    try:
        wanted = requires("fedsub") or []
    except PackageNotFoundError:  # run from a source tree
        wanted = ["torch", "numpy", "polars", "safetensors", "pydantic", "typer", "rich", "matplotlib"]
    found = {}
    for name in sorted({re.split(r"[^\w.-]", text, maxsplit=1)[0] for text in wanted}):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


@cache
def fedsub_commit() -> str:
    """The commit of this fedsub: of the checkout it runs from, or of the one it was installed from; "" if unknown."""
    if commit := commit_of(HERE):
        return commit
    try:
        known = json.loads(distribution("fedsub").read_text("direct_url.json") or "{}")
        return str(known.get("vcs_info", {}).get("commit_id", ""))
    except (PackageNotFoundError, ValueError, AttributeError):
        return ""


def commit_of(path: Path) -> str:
    """The commit of a file or folder under git, with " and changes" if it is not as committed; "" if it is in none."""
    stamp = path.stat().st_mtime_ns if path.is_file() else 0  # a notebook's process outlives edits
    return _commit(path, stamp)


@cache
def _commit(path: Path, stamp: int) -> str:
    folder, name = (path, ".") if path.is_dir() else (path.parent, path.name)
    if not _git(folder, "ls-files", "--", name):  # not in git, or ignored by the repository around it
        return ""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:  # nothing was committed yet
        return ""
    return f"{commit} and changes" if _git(folder, "status", "--porcelain", "--", name) else commit


def _git(folder: Path, *words: str) -> str:
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-c", "core.fsmonitor=false", "--no-optional-locks", *words]
    try:
        done = subprocess.run(command, cwd=folder, env=own, capture_output=True, timeout=GIT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):  # no git, no repository, no time
        return ""
    return done.stdout.decode(errors="replace").strip()
