"""The comparison's table for a paper: LaTeX that needs no package."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

from fedsub.disk.text import visible
from fedsub.study.report.columns import columns, mark, notes
from fedsub.study.report.table import HEADING_WIDTH, remarks, row_names

if TYPE_CHECKING:
    from fedsub.study.comparing import Comparison

_SIGNS = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "±": r"$\pm$", "≤": r"$\le$",
    "≥": r"$\ge$", "−": "$-$", "∞": r"$\infty$", "–": "--", "×": r"$\times$", "λ": r"$\lambda$", "τ": r"$\tau$",
    "|": r"\textbar{}", "“": "``", "”": "''", "’": "'", "…": r"\dots{}", "†": r"$\dagger$", "½": r"$\frac12$",
}  # fmt: skip


def escaped(text: str) -> str:
    """Text that LaTeX sets as it is."""
    return "".join(_SIGNS.get(c, c) for c in " ".join(visible(text).split()))


def latex_table(comparison: Comparison) -> str:
    """A tabular, the best values in bold; what explains it stands above it as comments."""
    body = columns(comparison)
    lines = [
        f"% {' '.join(visible(said).split())}"
        for said in (f"Bold: {mark(comparison)}.", *notes(comparison), *remarks(comparison))
    ]
    heads = [_stacked("method", "l"), *(_stacked(col.heading, "r") for col in body)]
    lines += [rf"\begin{{tabular}}{{l{'r' * len(body)}}}", r"\hline", " & ".join(heads) + r" \\", r"\hline"]
    for i, name in enumerate(row_names(comparison)):
        cells = (escaped(col.cells[i]) for col in body)
        bold = (rf"\textbf{{{c}}}" if i in col.best else c for c, col in zip(cells, body, strict=True))
        lines.append(" & ".join([escaped(name), *bold]) + r" \\")
    return "\n".join([*lines, r"\hline", r"\end{tabular}"]) + "\n"


def _stacked(heading: str, side: str) -> str:
    parts = [escaped(part) for part in wrap(heading, HEADING_WIDTH, break_on_hyphens=False)]
    return " ".join(parts) if len(parts) < 2 else rf"\shortstack[{side}]{{" + r" \\ ".join(parts) + "}"
