"""Reports of a comparison: tables, plots, and one page that holds everything.

page = write_report(comparison, "out/report")       # table.csv, table.md, table.tex, *.png, report.html
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from fedsub.disk.files import make_folder, output_folder, write_atomic
from fedsub.disk.text import csv_bytes
from fedsub.study.report.latex import latex_table
from fedsub.study.report.page import render
from fedsub.study.report.plots import bytes_plot, clients_plot, deciles_plot, gains_plot, png, rounds_plot, time_plot
from fedsub.study.report.table import csv_rows, markdown_table, rich_table, text_table

if TYPE_CHECKING:
    from fedsub.study.comparing import Comparison

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
    "rich_table",
    "rounds_plot",
    "text_table",
    "time_plot",
    "write_report",
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
