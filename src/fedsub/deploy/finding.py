"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """``level``: "fine", "note" or "refused"."""

    level: str
    about: str
    sentence: str
