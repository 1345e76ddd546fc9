"""Notebooks as pages: their cells as Markdown, with what they printed when they were run, and pictures as files."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from nbconvert import MarkdownExporter
from traitlets.config import Config

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"


@cache
def pages() -> dict[str, str | bytes]:
    """{file of the site: text of a page, or a picture}."""
    out: dict[str, str | bytes] = {}
    # What is printed as text and as HTML is shown as text, which follows the light and the dark page.
    plain = Config({"NbConvertBase": {"display_data_priority": ["image/png", "text/plain"]}})
    for file in sorted(FOLDER.glob("*.ipynb")):
        resources = {"output_files_dir": f"{file.stem}_files"}
        text, found = MarkdownExporter(config=plain).from_filename(str(file), resources=resources)
        text = re.sub(r"\n{3,}", "\n\n", text).replace("![png](", "![what the cell above drew](")
        note = f"\nThis page is a [notebook]({file.name}) that was run from the top; download it to run it yourself.\n"
        head, _, rest = text.lstrip().partition("\n")
        out[f"notebooks/{file.stem}.md"] = f"{head}\n{note}{rest}"
        out |= {f"notebooks/{name}": picture for name, picture in found["outputs"].items()}
    return out
