"""Reports of a comparison: tables, plots, and one page that holds everything; of a search, and of several together.

page = write_report(comparison, "out/report")       # table.csv, table.md, table.tex, *.png, report.html
page = write_search(tuning, "runs/tuned")           # *.png, report.html
page = write_book({"lr 0.1": a, "lr 1": b}, "both.html")
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedsub.disk.files import make_folder, output_folder, write_atomic
from fedsub.disk.text import csv_bytes
from fedsub.study.report.book import render_book
from fedsub.study.report.latex import latex_table
from fedsub.study.report.page import render
from fedsub.study.report.plots import bytes_plot, clients_plot, deciles_plot, gains_plot, png, rounds_plot, time_plot
from fedsub.study.report.search import render_search
from fedsub.study.report.table import csv_rows, markdown_table, rich_table, text_table

if TYPE_CHECKING:
    from fedsub.study.comparing import Comparison
    from fedsub.study.tuning import Tuning

__all__ = [
    "bytes_plot",
    "clients_plot",
    "csv_rows",
    "deciles_plot",
    "gains_plot",
    "latex_table",
    "markdown_table",
    "png",
    "render",
    "render_book",
    "render_search",
    "rich_table",
    "rounds_plot",
    "text_table",
    "time_plot",
    "write_book",
    "write_report",
    "write_search",
]


def write_report(comparison: Comparison, folder: str | os.PathLike[str]) -> Path:
    """Write table.csv, table.md, table.tex, the plots of every shown metric and report.html; returns the page.

    Plots are rounds-<metric>.png, bytes-<metric>.png (if bytes were moved), time-<metric>.png (if the runs were
    kept in directories, which know the bytes by client) and deciles-<metric>.png (if measured), where <metric>
    is what the plot shows: by decile it is of the test split, if there is one. Where methods have personal models,
    clients.png and gains.png show how the clients fare one by one.
    """
    folder = output_folder(folder)
    make_folder(folder)
    write_atomic(folder / "table.csv", csv_bytes(csv_rows(comparison)))
    write_atomic(folder / "table.md", markdown_table(comparison).encode())
    write_atomic(folder / "table.tex", latex_table(comparison).encode())
    page = folder / "report.html"
    write_atomic(page, render(comparison, folder).encode())
    return page


def write_search(tuning: Tuning, folder: str | os.PathLike[str]) -> Path:
    """Write report.html about a search, and its charts as PNG beside it; returns the page."""
    folder = output_folder(folder)
    make_folder(folder)
    page = folder / "report.html"
    write_atomic(page, render_search(tuning, folder).encode())
    return page


def write_book(parts: Mapping[str, Comparison | Tuning], page: str | os.PathLike[str]) -> Path:
    """Write one page about several comparisons and searches, by the titles of their chapters; returns the page.

    Each chapter's files are linked where its own report has written them.
    """
    page = Path(page)
    make_folder(output_folder(page.parent))
    write_atomic(page, render_book(parts, page.parent).encode())
    return page
