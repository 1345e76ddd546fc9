"""One page about several comparisons and searches: a chapter each, and before them all methods in one table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedsub.study.report import facts
from fedsub.study.report import words as w
from fedsub.study.report.columns import columns
from fedsub.study.report.figures import Figures
from fedsub.study.report.html import Html, e, table
from fedsub.study.report.page import ABREAST, Section, document, lead, sections
from fedsub.study.report.search import search_lead, search_sections
from fedsub.study.report.table import row_names

if TYPE_CHECKING:
    from fedsub.study.comparing import Comparison
    from fedsub.study.tuning import Tuning


def render_book(parts: Mapping[str, Comparison | Tuning], folder: Path | None = None) -> str:
    """The page as text; ``parts`` by the titles of their chapters. With the ``folder`` that it will be in, files are
    linked: each chapter's own, where its report has written them."""
    figures = Figures(folder)
    compared = {title: part for title, part in parts.items() if not _searched(part)}
    found: list[Section] = []
    if len(compared) > 1:
        found.append(("together", "all methods", _together(compared) + _other_data(compared)))  # type: ignore[arg-type]
    for i, (title, part) in enumerate(parts.items(), 1):
        heading = Html(f'<span class="own">{e(w.one_line(title))}</span>')
        found.append((f"c{i}", heading, _chapter(part, figures, f"c{i}")))
    titles = [w.one_line(title) for title in parts]
    told = f"{len(titles)} chapters: {w.listed(titles)}. A method is switched on and off within its chapter."
    return document(w.named(titles, "comparisons"), told, found, figures)


def _searched(part: Comparison | Tuning) -> bool:
    from fedsub.study.tuning import Tuning

    return isinstance(part, Tuning)


def _chapter(part: Comparison | Tuning, figures: Figures, name: str) -> str:
    """A page's sections, each heading a step smaller, every id with the chapter's."""
    store = part.path or Path()  # what no report has drawn is not linked
    if _searched(part):
        told, found = search_lead(part), search_sections(part, figures, name, store)  # type: ignore[arg-type]
    else:
        told, found = lead(part), sections(part, figures, name, store)  # type: ignore[arg-type]
    body = "".join(
        f'<div id="{name}-{inner}"><h3>{e(heading)}</h3>\n{_smaller(text)}</div>\n' for inner, heading, text in found
    )
    return f'<p>{e(told)}</p>\n<div class="chapter">\n{body}</div>\n'


def _smaller(text: str) -> str:
    """Names are escaped, so every <h3> here is one of ours."""
    return text.replace("<h3>", "<h4>").replace("</h3>", "</h4>")


def _together(compared: Mapping[str, Comparison]) -> str:
    """Every method of every comparison; a column for each heading that one of them has, in their order."""
    rows: list[tuple[str, str, dict[str, str]]] = []
    heads: list[str] = []
    targets = {str(comparison.target) for comparison in compared.values()}
    for title, comparison in compared.items():
        found = {col.heading: col.cells for col in columns(comparison)}
        if comparison.target is not None and len(targets) > 1:  # times to two targets are two columns
            to = w.target_words(comparison.target)
            found = {head.replace("time to the target", f"time to {to}"): cells for head, cells in found.items()}
        at = 0
        for head in found:
            if head not in heads:  # of two targets, the columns stand side by side
                like = [i for i, known in enumerate(heads) if known.split()[:3] == head.split()[:3]]
                heads.insert(like[-1] + 1 if like else at, head)
            at = heads.index(head) + 1
        for i, name in enumerate(row_names(comparison)):
            rows.append((w.one_line(title), name, {head: cells[i] for head, cells in found.items()}))
    shown = ""
    count = -(-len(heads) // (ABREAST - 1))
    for i in range(count):  # about as many columns in each
        some = heads[i * len(heads) // count : (i + 1) * len(heads) // count]
        body = [[title, name, *(cells.get(head, w.DASH) for head in some)] for title, name, cells in rows]
        shown += table(["comparison", "method", *some], body, "all methods", kind="result together")
    return shown


def _other_data(compared: Mapping[str, Comparison]) -> str:
    """A sentence where numbers of two chapters are not of the same samples."""
    prints: dict[str, dict[str, list[str]]] = {}
    for title, comparison in compared.items():
        for use in ("data", "test", "validation"):
            known = {run.fingerprints[use] for run in facts.runs(comparison) if use in run.fingerprints}
            if known:
                prints.setdefault(use, {}).setdefault(" ".join(sorted(known)), []).append(w.one_line(title))
    names = {"data": "training", "test": "test", "validation": "validation"}
    told = [names[use] for use, groups in prints.items() if len(groups) > 1]
    if not told:
        return ""
    which = "; ".join(
        f"{names[use]} samples: {' | '.join(w.listed(titles) for titles in groups.values())}"
        for use, groups in prints.items()
        if len(groups) > 1
    )
    return (
        f"<p><strong>Not of the same samples.</strong> The {e(w.listed(told))} samples differ between the comparisons, "
        f"and values of other samples do not compare ({e(which)}).</p>\n"
    )
