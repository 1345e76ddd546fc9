"""One self-contained HTML page about a comparison: it asks for nothing from elsewhere and runs no script."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from itertools import count
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from fedsub.running.result import mean_std
from fedsub.study.report import clients, facts, plots
from fedsub.study.report import words as w
from fedsub.study.report.css import CSS
from fedsub.study.report.curves import by_decile, decile_groups, decile_metric
from fedsub.study.report.svg import inline
from fedsub.study.report.table import COMMANDS, columns, labels, notes, remarks

if TYPE_CHECKING:
    from fedsub.study.comparing import Comparison

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def e(text: str) -> str:
    """Text as HTML shows it; a limit like "≤ 0.65" is not broken between sign and number."""
    return escape(text).replace("≤ ", "≤&nbsp;").replace("≥ ", "≥&nbsp;")


def shown_metrics(comparison: Comparison) -> list[str]:
    """The metrics with plots: the main one first, then the table's other columns."""
    known = w.measured(comparison)
    main = [comparison.metric] if comparison.metric in known else []
    return list(dict.fromkeys(main + w.chosen(comparison)))


def render(comparison: Comparison) -> str:
    """The page as text."""
    found = facts.runs(comparison)
    title = f"Comparison of {w.listed(labels(comparison))}"
    sections = [("table", "results", _results(comparison))]
    sections += _metrics(comparison)
    sections += _clients(comparison)
    sections.append(("settings", "settings", settings(comparison, found)))
    sections.append(("runs", "runs, data and versions", runs(found)))
    if said := facts.events(found):
        sections.append(("events", "events", _events(said)))
    sections.append(("made", "how this was made", _made(comparison)))
    return document(title, _lead(comparison), sections)


def document(title: str, lead: str, sections: Sequence[tuple[str, str, str]]) -> str:
    """A whole page from its sections: (id, heading, HTML)."""
    links = "".join(f'<li><a href="#{name}">{e(heading)}</a></li>' for name, heading, _ in sections)
    body = "".join(f'<section id="{n}"><h2>{e(h)}</h2>\n{text}</section>\n' for n, h, text in sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{e(title)}</title>\n<style>\n{CSS}\n</style>\n</head>\n<body>\n<main>\n"
        f'<header><h1>{e(title)}</h1>\n<p>{e(lead)}</p>\n<nav aria-label="contents"><ul>{links}</ul></nav>'
        f"</header>\n{body}</main>\n</body>\n</html>\n"
    )


def _lead(comparison: Comparison) -> str:
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


def _results(comparison: Comparison) -> str:
    body = columns(comparison)
    head = "".join(f'<th scope="col">{e(h)}</th>' for h in ["method", *(col.heading for col in body)])
    rows = []
    for i, name in enumerate(labels(comparison)):
        cells = "".join(
            f'<td class="best">{e(c.cells[i])}</td>' if i in c.best else f"<td>{e(c.cells[i])}</td>" for c in body
        )
        rows.append(f'<tr><th scope="row">{e(name)}</th>{cells}</tr>')
    bold = "The best value of each column is bold. " if any(col.best for col in body) else ""
    results = f'<table class="result"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    said = "".join(f"<p>{e(note)}</p>\n" for note in remarks(comparison))
    return f'{_scroll(results, "results")}{said}<p class="small">{e(bold + " ".join(notes(comparison)))}</p>\n'


def _metrics(comparison: Comparison) -> list[tuple[str, str, str]]:
    """A section per metric: against rounds, bytes and time, by heat. A decile plot appears once."""
    several = any(len(results) > 1 for results in comparison.results.values())
    band = " Lines are means over the seeds, bands reach from the lowest to the highest." if several else ""
    bars = " Points are means over the seeds, bars reach from the lowest to the highest." if several else ""
    ids, drawn, out = count(1), set(), []

    def figure(plot: Callable[..., Figure], caption: str, description: str, metric: str) -> str:
        sizes = [("wide", plot(comparison, metric)), ("narrow", plot(comparison, metric, narrow=True))]
        svg = "".join(inline(fig, f"f{next(ids)}", description, kind) for kind, fig in sizes)
        return f"<figure>{svg}<figcaption>{e(caption)}</figcaption></figure>\n"

    for metric in shown_metrics(comparison):
        name = w.words(metric)
        last = _last_values(comparison, metric)
        text = figure(
            plots.rounds_plot, f"{name} against rounds.{band}", f"Line chart: {name} against rounds. {last}", metric
        )
        if moves_bytes(comparison):
            caption = f"{name} against the data that a client in every round would have moved, down and up."
            text += figure(plots.bytes_plot, caption + band, f"Line chart: {caption} {last}", metric)
        if comparison.timed:
            caption = (
                f"{name} against the time that the rounds would take {w.on_devices(comparison)}: an estimate from "
                "assumed bandwidths, latencies and speeds, in which a round lasts as long as its slowest client."
            )
            text += figure(plots.time_plot, caption + band, f"Line chart: {caption} {last}", metric)
        shown = decile_metric(comparison, metric)
        if shown is not None and shown not in drawn:
            drawn.add(shown)
            caption = (
                f"{w.words(shown)} at the end, by the heat of the coldest feature of each sample: "
                f"the number of clients that hold it.{_left_out(comparison, shown)}"
            )
            text += figure(plots.deciles_plot, caption + bars, f"Chart: {caption} {_ends(comparison, shown)}", metric)
        out.append((f"metric-{len(out) + 1}", name, text))
    return out


def _clients(comparison: Comparison) -> list[tuple[str, str, str]]:
    """How clients fare with models of their own; nothing if no method has such."""
    split = clients.split_of(comparison)
    if split is None:
        return []
    head, body = clients.rows(comparison)
    text = table(head, body, "means over clients", kind="result")
    text += (
        '<p class="small">Every client counts once, whatever its number of samples. Without own parameters: the shared '
        "ones in their place, on the same samples. Worst tenth: the mean over the tenth of the clients that fares "
        "worst.</p>\n"
    )
    told = "; ".join(
        f"{row[0]}: " + ", ".join(f"{h} {c}" for h, c in zip(head[1:], row[1:], strict=True)) for row in body
    )
    name = w.words(f"{split}.{clients.kind_of(comparison, split)}")
    pictures = (
        (clients.clients_plot, f"{name} of the clients one by one, sorted; thin: without own parameters."),
        (clients.gains_plot, "By how much the clients’ losses are lower with own parameters than without, sorted."),
    )
    for i, (plot, caption) in enumerate(pictures):
        sizes = [("wide", plot(comparison)), ("narrow", plot(comparison, narrow=True))]
        described = f"Line chart: {caption} {told}."
        svg = "".join(inline(fig, f"c{i}{kind}", described, kind) for kind, fig in sizes)
        text += f"<figure>{svg}<figcaption>{e(caption)}</figcaption></figure>\n"
    return [("clients", "by client", text)]


def moves_bytes(comparison: Comparison) -> bool:
    return any(r.bytes_per_client() for results in comparison.results.values() for r in results)


def _last_values(comparison: Comparison, metric: str) -> str:
    """For those who cannot see the picture."""
    parts = []
    for label, results in comparison.results.items():
        last = [values[-1] for r in results if (values := r.series(metric)[1])]
        parts.append(f"{w.one_line(label)} {w.number(mean_std(last)[0])}")
    return f"Last values: {', '.join(parts)}."


def _ends(comparison: Comparison, metric: str) -> str:
    every = decile_groups(comparison, metric)
    groups = [g.group for g in every if g.group >= 0]
    parts = []
    for label, results in comparison.results.items():
        found = by_decile(results, metric, every)
        cold, hot = (mean_std(found.get(g, []))[0] for g in (groups[0], groups[-1])) if groups else (math.nan,) * 2
        parts.append(f"{w.one_line(label)} {w.number(cold)} and {w.number(hot)}")
    return f"Coldest and hottest group: {', '.join(parts)}."


def _left_out(comparison: Comparison, metric: str) -> str:
    """Methods missing in a decile plot, so that nobody looks for them."""
    groups, runs = decile_groups(comparison, metric), comparison.results.items()
    names = [w.one_line(label) for label, results in runs if not by_decile(results, metric, groups)]
    return f" Without {w.listed(names)}, whose samples are not grouped in the same way." if names else ""


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


def runs(found: list[facts.Run]) -> str:
    rows = []
    for run in found:
        r = run.result
        last = r.history[-1]["round"] if r.history else 0
        peak = w.size(r.peak_bytes)
        rows.append([w.one_line(run.label), str(r.seed), r.engine, f"{last:,}", w.seconds(r.seconds), peak])
    text = table(["method", "seed", "engine", "rounds", "seconds", "peak memory"], rows, "runs")
    prints = {(k, v): None for run in found for k, v in run.fingerprints.items()}
    if prints:
        rows = [["training" if k == "data" else f"evaluated: {k}", v] for k, v in prints]
        text += f"<h3>Data</h3>\n{table(['use', 'fingerprint'], rows, 'fingerprints of the data')}"
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


def table(head: Sequence[str], rows: Iterable[Sequence[str]], name: str, *, kind: str = "settings") -> str:
    """``kind`` "result" for numbers, "settings" for texts that may be broken."""
    top = "".join(f'<th scope="col">{e(h)}</th>' for h in head)
    lines = "".join(
        f'<tr><th scope="row">{_breakable(row[0])}</th>{"".join(f"<td>{e(c)}</td>" for c in row[1:])}</tr>'
        for row in rows
    )
    body = f'<table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table>'
    return _scroll(body, name)


def _breakable(name: str) -> str:
    """A dotted name that may be broken behind its dots and underscores."""
    return e(name).replace(".", ".<wbr>").replace("_", "_<wbr>")


def _scroll(table: str, name: str) -> str:
    """Wide tables move within themselves on a narrow screen, also with the keyboard."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{e(name)}">{table}</div>\n'
