"""One self-contained HTML page about a comparison: it asks for nothing from elsewhere, and is whole without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedsub.study.report import clients, facts
from fedsub.study.report import words as w
from fedsub.study.report.charts import by_metric
from fedsub.study.report.columns import columns, folds, mark, notes
from fedsub.study.report.figures import Figures
from fedsub.study.report.html import e, link, table
from fedsub.study.report.table import COMMANDS, labels, remarks, row_names

if TYPE_CHECKING:
    from fedsub.study.comparing import Comparison

GENERATOR = '<meta name="generator" content="fedsub">'
ABREAST = 11  # columns that a window of 1300 pixels shows side by side; further ones stand beneath
TABLES = ("table.csv", "table.md", "table.tex")
Section = tuple[str, str, str]  # its id, its heading, its HTML


def render(comparison: Comparison, folder: Path | None = None) -> str:
    """The page as text. With the ``folder`` that it will be in, plots are written there and files are linked."""
    title = f"Comparison of {w.named(labels(comparison), 'methods')}"
    figures = Figures(folder)
    found = sections(comparison, figures)
    found.append(("made", "how this was made", _made(comparison)))
    return document(title, lead(comparison), found, figures)


def sections(comparison: Comparison, figures: Figures, group: str = "", store: Path | None = None) -> list[Section]:
    """All about one comparison; ``group`` tells it from others on the page, ``store`` has its files."""
    found = facts.runs(comparison)
    out = [("table", "results", results(comparison) + _files(figures, store))]
    for metric, charts in by_metric(comparison).items():
        out.append((f"metric-{len(out)}", w.words(metric), figures.views(charts, group, store)))
    out += _clients(comparison, figures, group, store)
    out.append(("settings", "settings", settings(comparison, found)))
    out.append(("runs", "runs, data and versions", runs(found, figures.folder)))
    if said := facts.events(found):
        out.append(("events", "events", _events(said)))
    return out


def document(title: str, lead: str, sections: Sequence[Section], figures: Figures | None = None) -> str:
    """A whole page from its sections."""
    figures = figures or Figures()
    links = "".join(f'<li><a href="#{name}">{e(heading)}</a></li>' for name, heading, _ in sections)
    body = "".join(f'<section id="{n}"><h2>{e(h)}</h2>\n{text}</section>\n' for n, h, text in sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n{GENERATOR}\n'
        f'<meta http-equiv="Content-Security-Policy" content="{figures.policy}">\n'
        f"<title>{e(title)}</title>\n<style>\n{figures.style()}\n</style>\n</head>\n<body>\n<main>\n"
        f'<header><h1>{e(title)}</h1>\n<p>{e(lead)}</p>\n<nav aria-label="contents"><ul>{links}</ul></nav>'
        f"</header>\n{body}</main>\n{figures.data()}</body>\n</html>\n"
    )


def lead(comparison: Comparison) -> str:
    runs = list(comparison.results.values())
    seeds = sorted({len(results) for results in runs})
    last = max((r.history[-1]["round"] for results in runs for r in results if r.history), default=0)
    many = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    plural = lambda n, word: word if str(n) == "1" else f"{word}s"  # noqa: E731
    text = f"{len(runs)} {plural(len(runs), 'method')}, {many} {plural(many, 'seed')} each, "
    text += f"up to {last:,} {plural(last, 'round')} on the same data."
    if comparison.target is not None:
        text += f" Target: {w.target_words(comparison.target)}."
    return text


def results(comparison: Comparison) -> str:
    body, names = columns(comparison), row_names(comparison)
    bold = f"Bold: {mark(comparison)}. " if any(col.best for col in body) else ""
    shown = ""
    tables = -(-len(body) // ABREAST)
    room = min(ABREAST, -(-len(body) // tables) + 1)  # about as many in each
    for some in folds(body, [1 for _ in body], room):
        head = ["method", *(body[j].heading for j in some)]
        rows = [[name, *(body[j].cells[i] for j in some)] for i, name in enumerate(names)]
        shown += table(head, rows, "results", kind="result", best=[body[j].best for j in some])
    said = "".join(f"<p>{e(note)}</p>\n" for note in remarks(comparison))
    return f'{shown}{said}<p class="small">{e(bold + " ".join(notes(comparison)))}</p>\n'


def _files(figures: Figures, store: Path | None) -> str:
    """Links to the table as files; beside the page they are written with it."""
    if figures.folder is None:
        return ""
    where = [(store or figures.folder) / name for name in TABLES]
    links = [link(file, figures.folder, file.name) for file in where if store is None or file.exists()]
    return f'<p class="files">The table as files: {", ".join(links)}</p>\n' if links else ""


def _clients(comparison: Comparison, figures: Figures, group: str, store: Path | None) -> list[Section]:
    """How clients fare with models of their own; nothing if no method has such."""
    charts = clients.charts(comparison)
    if not charts:
        return []
    head, body = clients.rows(comparison)
    text = table(head, body, "means over clients", kind="result")
    text += (
        '<p class="small">Every client counts once, whatever its number of samples. Without own parameters: the shared '
        "ones in their place, on the same samples. Worst tenth: the mean over the tenth of the clients that fares "
        "worst.</p>\n"
    )
    return [("clients", "by client", text + figures.views(charts, group, store))]


def settings(comparison: Comparison, found: list[facts.Run]) -> str:
    same, other = facts.settings(found)
    if not same and not other:
        return "<p>Not known: the runs were not kept in directories.</p>\n"
    names = list(comparison.results)
    text = ""
    if other:
        rows = [[key, *(values.get(n, facts.ABSENT) for n in names)] for key, values in other.items()]
        head = ["setting", *map(w.one_line, names)]
        text += f"<h3>By method</h3>\n{table(head, rows, 'settings by method')}"
    if same:
        listed = table(["setting", "value"], same.items(), "settings of all runs")
        text += f"<details><summary>The same in all runs ({len(same)})</summary>\n{listed}</details>\n"
    return text


def runs(found: list[facts.Run], folder: Path | None = None) -> str:
    """``folder``: of the page, to link the runs' directories from."""
    rows = []
    for run in found:
        r = run.result
        last = r.history[-1]["round"] if r.history else 0
        name: str = w.one_line(run.label)
        if folder is not None and run.folder is not None and run.folder.is_dir():
            name = link(run.folder, folder, name)
        rows.append([name, str(r.seed), r.engine, f"{last:,}", w.seconds(r.seconds), w.size(r.peak_bytes)])
    text: str = table(["method", "seed", "engine", "rounds", "seconds", "peak memory"], rows, "runs")
    if lines := facts.commands(found):
        text += f"<h3>Command</h3>\n<pre><code>{e(chr(10).join(lines))}</code></pre>\n"
    if rows := facts.data(found):
        text += f"<h3>Data</h3>\n{table(['use', 'path', 'fingerprint'], rows, 'data')}"
    if rows := facts.code(found):
        text += f"<h3>Code</h3>\n{table(['file', 'commit', 'digest'], rows, 'code')}"
    known = any(run.versions for run in found)
    text += f"<h3>Versions{'' if known else ' when this page was written'}</h3>\n"
    return text + table(["name", "version"], facts.versions(found).items(), "versions")


def _events(said: dict[str, list[str]]) -> str:
    items = "".join(f'<li>{e(s)} <span class="small">({e("; ".join(w_))})</span></li>' for s, w_ in said.items())
    listed = f"<ul>{items}</ul>\n"
    return listed if len(said) <= 8 else f"<details><summary>{len(said)} events</summary>{listed}</details>\n"


def _made(comparison: Comparison) -> str:
    text = "<p>Written by fedsub. Every seed of a method is a run of its own; all were evaluated on "
    text += "the same samples.</p>\n"
    for note in comparison.notes:
        if note.startswith(COMMANDS):
            text += f"<pre><code>{e(note)}</code></pre>\n"
    return text
