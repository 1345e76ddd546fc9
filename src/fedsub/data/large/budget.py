"""How much at a time, so that the process stays within the memory that it was given.

    free = memory − what the process holds already
    bytes of text     = free / TEXT, a power of two, so that another process cuts a file alike
    rows of a piece   = free / (workers · PIECE · bytes of a row)
    bytes of a part   = free / (workers · PART)
    ids of a block    = free / (runs · BLOCK · bytes of an id)

The factors count the copies that a step makes at its worst moment; they were measured (docs/scale.md).
"""

from __future__ import annotations

import os
import re
import resource
import sys
from dataclasses import dataclass
from typing import Any

from fedsub.checks import is_whole
from fedsub.data.problems import short
from fedsub.errors import DataError

TEXT, PIECE, PART, BLOCK = 24, 10, 8, 12
MOST_TEXT = 1 << 26  # bytes of a text file that are read at a time
MOST_ROWS = 2_000_000  # of a piece: larger ones are not faster
MOST_BYTES = 1 << 27  # of a part
LEAST = 96 << 20  # bytes beside what the process holds
UNITS = {"": 1, "B": 1} | {
    f"{letter}{i}B": (1024 if i else 1000) ** power for power, letter in enumerate("KMGT", 1) for i in ("", "i")
}


@dataclass(frozen=True)
class Budget:
    """What is held at a time. ``piece`` is in rows, ``part`` in bytes, ``block`` in bytes over all runs."""

    piece: int
    part: int
    block: int
    workers: int = 1
    text: int = 0

    @classmethod
    def of(cls, memory: int, workers: int, row: float) -> Budget:
        """For a memory in bytes and rows of so many bytes."""
        held = resident()
        free = memory - held
        if free < LEAST:
            raise DataError(
                f"memory is {shown(memory)}, and the process holds {shown(held)} already; give it at least "
                f"{shown(held + LEAST)} (memory=…, --memory)."
            )
        piece = int(min(max(free / (workers * PIECE * row), 1), MOST_ROWS))
        return cls(piece, int(min(free / (workers * PART), MOST_BYTES)), int(free / BLOCK), workers, text_of(memory))

    def ids(self, runs: int, each: float) -> int:
        """Ids of every run that are held while their vocabulary is made."""
        return max(int(self.block / (max(runs, 1) * max(each, 8.0))), 1)


def text_of(memory: int) -> int:
    """Bytes of text that are read at a time."""
    free = max(memory - resident(), LEAST)
    return min(1 << (int(free / TEXT).bit_length() - 1), MOST_TEXT)


def bytes_of(memory: Any) -> int:
    """A size in bytes: a whole number, or a text such as "2 GB" or "512 MiB"."""
    if is_whole(memory) and int(memory) > 0:
        return int(memory)
    found = (
        re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?i?B?)\s*", memory, re.IGNORECASE)
        if isinstance(memory, str)
        else None
    )
    unit = (found[2].upper().replace("I", "i") if found else "?") or ""
    unit = unit + "B" if unit in tuple("KMGT") else unit
    if found is None or unit not in UNITS or float(found[1]) <= 0:
        raise DataError(f"memory is {short.repr(memory)}, expected bytes or a text such as '2GB' or '512MiB'.")
    return int(float(found[1]) * UNITS[unit])


def default_memory() -> int:
    """A quarter of the computer's memory."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
    except (ValueError, OSError, AttributeError):
        return 4 << 30


def resident() -> int:
    """Bytes of memory that this process holds."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # no Linux
        return most_resident()


def most_resident() -> int:
    """Bytes of memory that this process has held at most."""
    try:  # what getrusage says begins with what the process that started this one held
        with open("/proc/self/status", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def shown(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB"
