"""What a reproduction leaves: table.md, table.csv, curves.png, accuracy.png and page.html."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedsub.disk.files import make_folder, write_atomic
from fedsub.study.report import facts, page
from fedsub.study.report.charts import rounds_chart
from fedsub.study.report.figures import Figures
from fedsub.study.report.html import e
from fedsub.study.report.plots import panels_plot, png
from fedsub.study.reproduce.tables import records_as_csv

if TYPE_CHECKING:
    from fedsub.study.comparing import Comparison
    from fedsub.study.reproduce.make import Outcome, Request

ACCURACY = "test.accuracy"
PAPER = (
    "Published numbers: Ding et al., Federated Submodel Optimization for Hot and Cold Data Features, NeurIPS 2022 "
    "(one run each)."
)


def write(request: Request, outcome: Outcome) -> Path:
    """Write the files; returns their directory."""
    folder = request.out / request.name
    make_folder(folder)
    notes = [PAPER, *outcome.notes, f"Made by: {command(request)}"]
    text = "\n".join([*(table.markdown() for table in outcome.tables), *notes]) + "\n"
    write_atomic(folder / "table.md", text.encode())
    write_atomic(folder / "table.csv", records_as_csv([record for table in outcome.tables for record in table.exact]))
    if outcome.panels:
        write_atomic(folder / "curves.png", png(panels_plot(outcome.panels)))
    if measured := _with_accuracy(outcome):
        write_atomic(folder / "accuracy.png", png(panels_plot(measured, metric=ACCURACY)))
    write_atomic(folder / "page.html", _page(request, outcome, notes).encode())
    return folder


def command(request: Request) -> str:
    """The command line that makes this again."""
    words = ["fedsub", "reproduce", request.what, "--task", request.task]
    if request.compares_methods:
        words += ["--protocol", request.protocol]
    seeds = request.seeds if isinstance(request.seeds, int) else ",".join(map(str, request.seeds))
    words += [] if request.what == "table1" else ["--seeds", str(seeds)]
    words += ["--twin"] if request.twin else []
    words += ["--scale", f"{request.scale:g}"] if request.scale is not None else []
    words += ["--rounds", str(request.rounds)] if request.rounds is not None else []
    words += ["--methods", ",".join(request.methods)] if request.methods else []
    return " ".join(words + (["--data", "DIR"] if request.data is not None else []))


def _page(request: Request, outcome: Outcome, notes: list[str]) -> str:
    title = f"{request.what.capitalize()[:-1]} {request.what[-1]} of the FedSubAvg paper, reproduced"
    tables = "".join(f"<h3>{e(table.title)}</h3>\n{table.html()}" for table in outcome.tables)
    sections, figures = [("table", "published beside ours", tables)], Figures()
    if outcome.panels:
        curves = [("curves", "curves", _curves(outcome.panels, None, figures))]
        if measured := _with_accuracy(outcome):
            curves.append(("accuracy", "test accuracy", _curves(measured, ACCURACY, figures)))
        at = 1 if request.what.startswith("table") else 0
        sections[at:at] = curves
    for number, (name, found) in enumerate(outcome.panels.items(), 1):
        known = facts.runs(found)
        html = f"{page.settings(found, known)}<details><summary>Runs</summary>{page.runs(known)}</details>\n"
        sections.append((f"settings-{number}", f"settings: {name}", html))
    said = "".join(f"<p>{e(note)}</p>\n" for note in notes)
    return page.document(title, PAPER, [*sections, ("made", "how this was made", said)], figures)


def _with_accuracy(outcome: Outcome) -> dict[str, Comparison]:
    """The panels whose accuracy on test samples was measured: the second metric of the manuscript's figures."""
    return {title: found for title, found in outcome.panels.items() if ACCURACY in found.metrics()}


def _curves(panels: dict[str, Comparison], metric: str | None, figures: Figures) -> str:
    order = list(dict.fromkeys(label for found in panels.values() for label in found.results))
    text = ""
    for title, found in panels.items():
        chart = rounds_chart(found, metric or found.metric, order)
        text += f"<h3>{e(title)}</h3>\n{figures.views([chart], 'panels')}"
    return text
