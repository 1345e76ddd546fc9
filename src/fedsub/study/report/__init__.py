"""Reports of a comparison: tables, plots, and one page that holds everything.

page = write_report(comparison, "out/report")       # table.csv, table.md, *.png, report.html
"""

from __future__ import annotations

import csv
import os
import re
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from fedsub.disk.files import write_atomic, writing
from fedsub.study.report.clients import clients_plot, gains_plot, split_of
from fedsub.study.report.curves import decile_metric
from fedsub.study.report.page import moves_bytes, render, shown_metrics
from fedsub.study.report.plots import bytes_plot, deciles_plot, png, rounds_plot, time_plot
from fedsub.study.report.table import csv_rows, markdown_table, rich_table, text_table

if TYPE_CHECKING:
    from fedsub.study.comparing import Comparison

__all__ = [
    "bytes_plot",
    "clients_plot",
    "csv_rows",
    "deciles_plot",
    "gains_plot",
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
    """Write table.csv, table.md, the plots of every shown metric and report.html; returns the page.

    Plots are rounds-<metric>.png, bytes-<metric>.png (if bytes were moved), time-<metric>.png (if the runs were
    kept in directories, which know the bytes by client) and deciles-<metric>.png (if measured), where <metric>
    is what the plot shows: by decile it is of the test split, if there is one. Where methods have personal models,
    clients.png and gains.png show how the clients fare one by one.
    """
    folder = Path(folder)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    lines = StringIO()
    csv.writer(lines, lineterminator="\n").writerows(csv_rows(comparison))
    write_atomic(folder / "table.csv", lines.getvalue().encode())
    write_atomic(folder / "table.md", markdown_table(comparison).encode())
    for metric in shown_metrics(comparison):
        write_atomic(folder / f"rounds-{_name(metric)}.png", png(rounds_plot(comparison, metric)))
        if moves_bytes(comparison):
            write_atomic(folder / f"bytes-{_name(metric)}.png", png(bytes_plot(comparison, metric)))
        if comparison.timed:
            write_atomic(folder / f"time-{_name(metric)}.png", png(time_plot(comparison, metric)))
    shown = {decile_metric(comparison, metric) for metric in shown_metrics(comparison)} - {None}
    for metric in sorted(m for m in shown if m is not None):
        write_atomic(folder / f"deciles-{_name(metric)}.png", png(deciles_plot(comparison, metric)))
    if split_of(comparison) is not None:
        write_atomic(folder / "clients.png", png(clients_plot(comparison)))
        write_atomic(folder / "gains.png", png(gains_plot(comparison)))
    page = folder / "report.html"
    write_atomic(page, render(comparison).encode())
    return page


def _name(metric: str) -> str:
    """A metric as part of a file name."""
    return re.sub(r"[^\w.-]+", "-", metric)
