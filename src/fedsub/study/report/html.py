"""Pieces of HTML: names and texts of the user's are shown as they are, whatever they hold."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from fedsub.disk.text import visible


class Html(str):
    """Text that is HTML already."""


def e(text: str) -> Html:
    """Text as HTML shows it; a limit like "≤ 0.65" is not broken between sign and number, nor "± 0.01".

    What would be invisible or turn the direction of writing (control characters, right-to-left marks) is shown by
    its code.
    """
    if isinstance(text, Html):
        return text
    out = escape(visible(text))
    for sign in "≤≥±":
        out = out.replace(f"{sign} ", f"{sign}&nbsp;")
    for sign in "+−":  # the further end of an interval
        out = out.replace(f" to {sign}", f" to&nbsp;{sign}")
    return Html(out)


def link(path: Path, page: Path, text: str) -> Html:
    """A relative link from the folder of the page, so that both can be moved together."""
    to = Path(os.path.relpath(path.absolute(), page.absolute())).as_posix()
    return Html(f'<a href="{escape(quote(to if "/" in to else f"./{to}"))}">{e(text)}</a>')


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    name: str,
    *,
    kind: str = "settings",
    best: Sequence[frozenset[int]] = (),
) -> Html:
    """``kind`` "result" for numbers, "settings" for texts that may be broken. ``best``: by column, which rows."""
    top = "".join(f'<th scope="col">{e(h)}</th>' for h in head)
    lines = []
    for i, row in enumerate(rows):
        marked = [' class="best"' if j < len(best) and i in best[j] else "" for j in range(len(row) - 1)]
        cells = "".join(f"<td{mark}>{e(cell)}</td>" for mark, cell in zip(marked, row[1:], strict=True))
        lines.append(f'<tr><th scope="row">{_breakable(row[0])}</th>{cells}</tr>')
    body = f'<table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{"".join(lines)}</tbody></table>'
    # Wide tables move within themselves on a narrow screen, also with the keyboard.
    return Html(f'<div class="scroll" role="region" tabindex="0" aria-label="{e(name)}">{body}</div>\n')


def _breakable(name: str) -> str:
    """A dotted name that may be broken behind its dots and underscores, but not within a number."""
    return name if isinstance(name, Html) else re.sub(r"(_|\.(?!\d))", r"\1<wbr>", e(name))
