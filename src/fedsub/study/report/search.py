"""The page about a search for settings: what was searched, what was chosen, and how the winners learned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedsub.running.result import Result, better
from fedsub.study.report import facts
from fedsub.study.report import words as w
from fedsub.study.report.chart import Chart, Line, bounded, file_name
from fedsub.study.report.charts import LOG_FROM, deciles_chart, rounds_chart
from fedsub.study.report.curves import Curve, decile_metric
from fedsub.study.report.figures import Figures
from fedsub.study.report.html import e, link, table
from fedsub.study.report.page import Section, document, runs, settings

if TYPE_CHECKING:
    from fedsub.study.comparing import Comparison
    from fedsub.study.tuning.choose import Setting
    from fedsub.study.tuning.search import Tuning

FILES = ("trials.csv", "winners.csv", "deciles.csv", "winners.txt")
MANY = 30  # settings from which their table is folded


def render_search(tuning: Tuning, folder: Path | None = None) -> str:
    """The page as text. With the ``folder`` that it will be in, charts are written there and files are linked."""
    figures = Figures(folder)
    labels = w.named([w.one_line(label) for label in tuning.counts], "methods")
    return document(f"Search of settings for {labels}", search_lead(tuning), search_sections(tuning, figures), figures)


def search_lead(tuning: Tuning) -> str:
    counts, trials = tuning.counts, sum(len(s.trials) for s in tuning.settings)
    few, many = min(counts.values(), default=0), max(counts.values(), default=0)
    each = f"{many}" if few == many else f"{few} to {many}"
    text = f"{len(counts)} method{'' if len(counts) == 1 else 's'}, {each} settings each, {trials:,} trials. "
    text += f"Chosen by the {tuning.criterion.title}, on average over the seeds."
    if any(tuning.tested.values()):
        text += " The winners were trained again, and evaluated on the test samples once, when the choice was made."
    return text


def search_sections(tuning: Tuning, figures: Figures, group: str = "", store: Path | None = None) -> list[Section]:
    """All about one search; ``group`` tells it from others on the page, ``store`` has its files."""
    found = _winners(tuning)
    out = [("winners", "winners", winners(tuning) + _files(tuning, figures))]
    charts = [chart for name in tuning.axes if (chart := axis_chart(tuning, name)) is not None]
    if charts:
        out.append(("searched", "what was searched", figures.views(charts, group, store)))
    learned = _chosen(tuning)
    metrics = [m for m in ("validation.ce", "validation.loss", tuning_metric(tuning), "train.ce", "train.loss")
               if m in learned.metrics()]  # fmt: skip
    if metrics:
        charts = [replace(rounds_chart(learned, m), tab=w.short(m, unit=False)) for m in dict.fromkeys(metrics)]
        out.append(("learned", "how the winners learned", figures.views(charts, group, store)))
    tested = [f"test.{kind}" for kind in ("ce", "loss", "auc", "accuracy")]
    tested = [name for name in tested if decile_metric(found, name) == name]
    if tested:
        charts = [replace(deciles_chart(found, name), tab=w.short(name, unit=False)) for name in tested]
        out.append(("heat", "test samples by heat", figures.views(charts, group, store)))
    out.append(("tried", "all settings", tried(tuning)))
    known = facts.runs(found)
    if any(run.config for run in known):
        out.append(("settings", "settings of the winners", settings(found, known)))
        out.append(("runs", "runs of the winners, data and versions", runs(known, figures.folder)))
    return out


def winners(tuning: Tuning) -> str:
    """The table of the winners, and what its reader must know."""
    from fedsub.study.tuning.table import difference_cells, winners_cells

    head, *rows = winners_cells(tuning)
    shown = table(head, rows, "winners", kind="result")
    if apart := difference_cells(tuning):
        shown += "<h3>95 % intervals of differences, seed by seed</h3>\n"
        shown += table(["metric", *apart[0][1:]], apart[1:], "differences", kind="result")
    said = "".join(f"<p>{e(note)}</p>\n" for note in tuning.notes)
    small = "With several seeds: mean ± sample standard deviation over the seeds."
    return f'{shown}{said}<p class="small">{e(small)}</p>\n'


def tried(tuning: Tuning) -> str:
    """Every setting, the chosen ones in bold."""
    from fedsub.study.tuning.table import setting_rows

    (_, *head), *rows = setting_rows(tuning)
    marked = frozenset(i for i, row in enumerate(rows) if row[0])
    best = [marked] * (len(head) - 1)
    shown = table(head, [row[1:] for row in rows], "settings", kind="result", best=best)
    if len(rows) > MANY:
        return f"<details><summary>{len(rows)} settings</summary>\n{shown}</details>\n"
    return f'{shown}<p class="small">The chosen ones are bold.</p>\n'


def tuning_metric(tuning: Tuning) -> str:
    """The metric of the validation samples that settings were chosen by."""
    trials = [t for s in tuning.settings for t in s.trials if t.final]
    return f"validation.{tuning.criterion.metric or (trials[0].kind if trials else 'loss')}"


def axis_chart(tuning: Tuning, axis: str) -> Chart | None:
    """What settings were chosen by against one axis; None if nothing was searched on it, or nothing ended.

    Where there are other axes too, each value is shown with the best setting of the others.
    """
    metric, by_rounds = tuning_metric(tuning), tuning.criterion.select == "rounds"
    lines, lost = [], []
    for i, label in enumerate(tuning.counts):
        best: dict[float, Setting] = {}
        for s in (s for s in tuning.settings if s.label == label and axis in s.values):
            at = float(s.values[axis])
            if not any(math.isfinite(tuning.criterion.value(t)) for t in s.trials):
                lost.append(f"{w.one_line(label)} at {at:g}")
            elif at not in best or tuning.criterion.rank(s) < tuning.criterion.rank(best[at]):
                best[at] = s
        curve = Curve()
        for at in sorted(best):
            curve.add(at, [v for t in best[at].trials if math.isfinite(v := tuning.criterion.value(t))])
        if curve:
            lines.append(Line(label, i, (curve,)))
    xs = [x for line in lines for part in line.parts for x in part.x]
    if len(set(xs)) < 2:
        return None
    title = tuning.criterion.title
    caption = f"{title} against {axis}."
    if len(tuning.axes) > 1:
        caption += " Of the settings that share a value, the best is shown."
    several = any(len(s.trials) > 1 for s in tuning.settings)
    caption += " Lines are means over the seeds, bands reach from the lowest to the highest." if several else ""
    if shown := [name for name in dict.fromkeys(lost) if not _drawn(name, lines)]:
        caption += f" Not drawn, because no seed has a value: {w.listed(shown[:6])}{' and others' * (len(shown) > 6)}."
    chart = Chart(
        f"search-{file_name(axis)}", f"by {axis}", caption, f"Line chart: {caption}", axis,
        title if by_rounds else w.with_unit(metric), tuple(lines), log=min(xs) > 0 and max(xs) >= LOG_FROM * min(xs),
        start=None if by_rounds else _start(tuning, metric),
    )  # fmt: skip
    return bounded(chart, "rounds" if by_rounds else metric)


def _drawn(name: str, lines: Sequence[Line]) -> bool:
    """Whether a line has that place nevertheless, from another setting."""
    label, _, at = name.rpartition(" at ")
    return any(w.one_line(line.label) == label and float(at) in part.x for line in lines for part in line.parts)


def _start(tuning: Tuning, metric: str) -> float | None:
    """What the untrained models had, the worst of them; None if it was not measured or more is better."""
    if better(metric, tuning.criterion.directions) == "higher":
        return None
    every = [r[metric] for s in tuning.settings for t in s.trials for r in t.history if r["round"] == 0 and metric in r]
    able = [v for v in every if isinstance(v, int | float) and math.isfinite(v)]
    return max(able, default=None)


def _chosen(tuning: Tuning) -> Comparison:
    """The winners as they learned in the search, where validation samples were watched."""
    from fedsub.study.comparing import Comparison

    found = {
        label: [Result(label, t.seed, t.history, t.final, t.seconds, t.engine) for t in s.trials if t.history]
        for label, s in tuning.chosen.items()
    }
    return Comparison(found, tuning.criterion.target, tuning_metric(tuning), devices=None)


def _winners(tuning: Tuning) -> Comparison:
    """The winners as they were trained again, with their directories."""
    from fedsub.study.comparing import Comparison

    home = None if tuning.path is None else tuning.path / "winners"

    def folder(name: str) -> Path | None:
        return None if home is None or not name else home / name

    found = {
        label: [Result(label, t.seed, t.history, t.final, t.seconds, t.engine, path=folder(t.name)) for t in trials]
        for label, trials in tuning.tested.items()
    }
    return Comparison(found, None, "test.ce", devices=None)


def _files(tuning: Tuning, figures: Figures) -> str:
    """Links to the tables as files, which the search's own directory has."""
    if figures.folder is None or tuning.path is None:
        return ""
    links = [link(tuning.path / name, figures.folder, name) for name in FILES if (tuning.path / name).exists()]
    return f'<p class="files">The tables as files: {", ".join(links)}</p>\n' if links else ""
