"""Text of the user's, such as the names of methods, where it could be more than text.

In a terminal a control character moves the cursor, and a right-to-left mark turns the writing; a cell of a CSV file
that begins with "=" is a formula to programs that calculate.
"""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # as OWASP lists them


def visible(text: str) -> str:
    """Control and format characters, and halves of surrogate pairs, by their codes; spaces stay."""
    if text.isprintable():
        return text
    shown = (
        c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs") else f"\\u{ord(c):04x}" for c in text
    )
    return "".join(shown)


def cell(value: Any) -> Any:
    """A cell of a CSV file: a text that a program would take for a formula gets a ' in front; numbers stay."""
    if not isinstance(value, str):
        return value
    shown = visible(value)
    return f"'{shown}" if shown.startswith(FORMULA) and not _number(shown) else shown


def csv_bytes(rows: Iterable[Sequence[Any]]) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([cell(value) for value in row] for row in rows)
    return out.getvalue().encode()


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
