"""A table of a reproduction, as Markdown, text and HTML for people and as CSV for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.cells import cell_len

from fedsub.disk.text import csv_bytes
from fedsub.study.report import html
from fedsub.study.report.table import _escape as escape


@dataclass
class Table:
    """``rows`` are the cells to show; ``exact`` has one flat record per row, with all digits."""

    title: str
    head: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    exact: list[dict[str, Any]] = field(default_factory=list)

    def markdown(self) -> str:
        lines = [f"## {escape(self.title)}\n"] if self.title else []
        body = [[escape(h) for h in self.head], ["---", *["---:"] * (len(self.head) - 1)]]
        body += [[escape(cell) for cell in row] for row in self.rows]
        lines.append("\n".join(f"| {' | '.join(row)} |" for row in body) + "\n")
        lines += [f"{escape(note)}\n" for note in self.notes]
        return "\n".join(lines)

    def text(self) -> str:
        """Aligned, for a terminal or a pipe."""
        head = [h.split("\n") for h in _folded(self.head)]
        deep = max(map(len, head))
        tops = [[(h[i] if i < len(h) else "") for h in head] for i in range(deep)]
        widths = [max(cell_len(row[j]) for row in [*tops, *self.rows]) for j in range(len(self.head))]
        lines = [self.title, ""] if self.title else []
        for row in [*tops, ["-" * width for width in widths], *self.rows]:
            cells = [(" " * (n - cell_len(c)), c) for c, n in zip(row, widths, strict=True)]
            lines.append("  ".join(c + pad if j == 0 else pad + c for j, (pad, c) in enumerate(cells)).rstrip())
        return "\n".join([*lines, *(["", *self.notes] if self.notes else [])]) + "\n"

    def html(self) -> str:
        notes = "".join(f"<p>{html.e(note)}</p>\n" for note in self.notes)
        return html.table(self.head, self.rows, self.title, kind="result") + notes


def records_as_csv(records: Sequence[Mapping[str, Any]]) -> bytes:
    """Records under the union of their names."""
    names = list(dict.fromkeys(name for record in records for name in record))
    cells = ([record.get(name, "") for name in names] for record in records)
    return csv_bytes([names, *(["" if v is None or v != v else v for v in row] for row in cells)])


def _folded(head: Sequence[str], width: int = 12) -> list[str]:
    from textwrap import wrap

    return ["\n".join(wrap(h, width, break_on_hyphens=False, break_long_words=False)) for h in head]
