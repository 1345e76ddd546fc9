"""A figure as SVG to stand inside a page: real text, the page's colours, no references to elsewhere."""

from __future__ import annotations

import re
from html import escape
from io import StringIO

import matplotlib
from matplotlib.figure import Figure

from fedsub.study.report.drawing import COLOURS, GRID, INK, MUTED

VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--line", "#ffffff": "--paper"}
VARIABLES |= {colour: f"--c{i}" for i, colour in enumerate(COLOURS)}
_COLOUR = re.compile("|".join(VARIABLES), re.IGNORECASE)
_SKIP = re.compile(r"<metadata>.*?</metadata>|<style\b.*?</style>|<!--.*?-->", re.DOTALL)
_SIZE = re.compile(r'\s(?:width|height|version|xmlns:xlink)="[^"]*"')
_FONT = re.compile(r"'DejaVu Sans'[^;\"]*")
_ID = re.compile(r'(\bid="|url\(#|xlink:href="#|href="#)')


def inline(figure: Figure, name: str, description: str, kind: str) -> str:
    """The figure as an <svg> element; ``name``, unique on the page, keeps its ids apart from others."""
    out = StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "fedsub"}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    text = out.getvalue()
    head, body = _SKIP.sub("", text[text.index("<svg") :]).split(">", 1)
    body = re.sub(r"<[^>]*>", lambda m: _tag(m[0], name), body)  # tags only: a label may hold anything
    aria = f' class="{kind}" role="img" aria-label="{escape(description)}"'
    return f"{_SIZE.sub('', head)}{aria}>{body.strip()}"


def _tag(text: str, name: str) -> str:
    text = _COLOUR.sub(lambda m: f"var({VARIABLES[m[0].lower()]})", text)
    text = _FONT.sub("var(--font)", text)
    return _ID.sub(lambda m: m[1].replace("xlink:", "") + f"{name}-", text)
