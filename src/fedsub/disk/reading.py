"""Reading files that may be anything: endless, nested without end, edited since they were written.

What cannot be read is an OSError or a ValueError; who calls says what to do about it.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

DEEPEST = 100  # levels of nesting
MOST = 64 << 20  # bytes of a JSON or TOML file; what fedsub writes has far fewer


def check_plain(path: str | os.PathLike[str]) -> int:
    """The size of a file. What is no plain file (a pipe, /dev/zero, a link to either) may have no end."""
    seen = os.stat(path)
    if not stat.S_ISREG(seen.st_mode):
        what = "a directory" if stat.S_ISDIR(seen.st_mode) else "a device or a pipe"
        raise OSError(errno.EINVAL, f"it is {what}, not a plain file", os.fspath(path))
    return seen.st_size


def read_text(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a plain file of a size that a text written by people or by fedsub can have."""
    if (size := check_plain(path)) > MOST:
        raise ValueError(f"it has {size:,} bytes, expected at most {MOST:,}")
    return Path(path).read_bytes()


def parse_json(text: bytes | str) -> Any:
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    opened = (text.count(b"{") + text.count(b"[")) if isinstance(text, bytes) else text.count("{") + text.count("[")
    if opened > DEEPEST:
        check_depth(found)
    return found


def check_depth(value: Any) -> None:
    """Raise ValueError where lists and tables are nested deeper than any that is meant."""
    level, depth = [value], 0
    while level:
        level = [item for one in level if isinstance(one, dict | list)
                 for item in (one.values() if isinstance(one, dict) else one)]  # fmt: skip
        depth += 1
        if depth > DEEPEST:
            raise ValueError("it is nested too deeply")


def read_json(path: str | os.PathLike[str]) -> Any:
    return parse_json(read_text(path))
