"""The charts of a page: pictures that need no script, and the data and scripts that make them answer."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedsub.disk.files import write_atomic
from fedsub.study.report.chart import Chart
from fedsub.study.report.html import e, link
from fedsub.study.report.plots import plot, png
from fedsub.study.report.svg import picture

LIBRARY = "uPlot.iife.min.js"  # uPlot 1.6.32, as published; its licence is beside it


@dataclass
class Figures:
    """Collects the charts of a page.

    ``folder`` is where the page will be, from which links lead; without one there are none.
    """

    folder: Path | None = None
    charts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def views(self, charts: Sequence[Chart], group: str = "", store: Path | None = None) -> str:
        """Charts of one section, as tabs where scripts run. Those of a ``group`` switch methods together.

        With ``store``, a folder that has PNG files by the charts' names, these are linked; else they are written
        beside the page.
        """
        shown = "".join(self._figure(chart, store) for chart in charts)
        return f'<div class="views" data-group="{e(group)}">\n{shown}</div>\n'

    def _figure(self, chart: Chart, store: Path | None) -> str:
        name = f"f{len(self.charts) + 1}"
        self.charts[name] = chart.plain()
        caption = e(chart.caption)
        if self.folder is not None:
            file = (store or self.folder) / f"{chart.name}.png"
            if store is None:
                write_atomic(file, png(plot(chart)))
            if file.exists():
                caption += f" {link(file, self.folder, 'PNG')}"
        live = "" if chart.empty else f' data-chart="{name}"'
        return f"<figure{live}>{picture(chart, name)}<figcaption>{caption}</figcaption></figure>\n"

    @property
    def scripts(self) -> list[str]:
        return [asset(LIBRARY), asset("page.js")] if self.charts else []

    @property
    def policy(self) -> str:
        """Which scripts may run: these, by their digests, and nothing that a name could smuggle in."""
        digests = (base64.b64encode(sha256(text.encode()).digest()).decode() for text in self.scripts)
        allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
        return "default-src 'none'; style-src 'unsafe-inline'" + (f"; script-src {allowed}" if allowed else "")

    def style(self) -> str:
        return asset("page.css") + (asset("uPlot.min.css") if self.charts else "")

    def data(self) -> str:
        """Data and scripts, to stand at the end of the page."""
        if not self.charts:
            return ""
        text = json.dumps(self.charts, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
        for sign in "<>&":  # nothing in it can end the element
            text = text.replace(sign, f"\\u{ord(sign):04x}")
        scripts = "".join(f"<script>{script}</script>\n" for script in self.scripts)
        return f'<script type="application/json" id="charts">{text}</script>\n{scripts}'


@cache
def asset(name: str) -> str:
    return (files("fedsub.study.report") / "assets" / name).read_text(encoding="utf-8")
