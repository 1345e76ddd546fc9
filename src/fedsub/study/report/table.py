"""The comparison as a table: plain text, rich, Markdown and CSV, from the same columns."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from fedsub.running.result import mean_std
from fedsub.study.paired import Interval
from fedsub.study.report import clients
from fedsub.study.report import words as w
from fedsub.study.report.columns import Column, at_the_end, columns, folds, mark

if TYPE_CHECKING:
    from fedsub.study.comparing import Comparison

HEADING_WIDTH = 13
WIDTH = 150  # of plain text, which is folded beyond
COMMANDS = ("fedsub ", "$ ", "python ", "python3 ", "uv ")


def remarks(comparison: Comparison) -> list[str]:
    """The comparison's own notes as lines, without the commands among them, which belong to the page."""
    return [w.one_line(note) for note in comparison.notes if not note.startswith(COMMANDS)]


def labels(comparison: Comparison) -> list[str]:
    return [w.one_line(label) for label in comparison.results]


def row_names(comparison: Comparison) -> list[str]:
    """The labels, those of methods that diverged with a mark: "FedAvg (diverged)", "FedAvg (2 of 3 diverged)"."""
    names, diverged = [], comparison.diverged
    for label, results in comparison.results.items():
        count = len(diverged.get(label, []))
        mark = "" if not count else " (diverged)" if count == len(results) else f" ({count} of {len(results)} diverged)"
        names.append(w.one_line(label) + mark)
    return names


def text_table(comparison: Comparison) -> str:
    """Plain text, aligned, with * behind the best value of each column; wide tables are folded, names in every fold."""
    names, body = row_names(comparison), columns(comparison)
    marked = [[c + ("*" if i in col.best else " ") for i, c in enumerate(col.cells)] for col in body]
    heads = [wrap(col.heading, HEADING_WIDTH, break_on_hyphens=False) for col in body]
    width = [max(map(cell_len, [*head, *cells])) for head, cells in zip(heads, marked, strict=True)]
    out: list[str] = []
    room = WIDTH - max(map(cell_len, ["method", *names]))
    for some in folds(body, [len("  ") + n for n in width], room):
        out += [*_aligned(names, [heads[i] for i in some], [marked[i] for i in some]), ""]
    if any(col.best for col in body):
        out += [*wrap(f"* {mark(comparison)}", WIDTH), ""]
    return "\n".join([*out, *remarks(comparison)]).rstrip() + "\n"


def _aligned(names: Sequence[str], heads: Sequence[list[str]], cells: Sequence[list[str]]) -> list[str]:
    height = max(map(len, heads))
    lines = [[""] * (height - 1) + ["method"], *([""] * (height - len(h)) + h for h in heads)]
    widths = [max(map(cell_len, [*head, *column])) for head, column in zip(lines, [names, *cells], strict=True)]
    rows = [*zip(*lines, strict=True), ["-" * width for width in widths], *zip(names, *cells, strict=True)]
    out = ["  ".join(_pad(cell, width, j > 0) for j, (cell, width) in enumerate(zip(row, widths, strict=True)))
           for row in rows]  # fmt: skip
    return [line.rstrip() for line in out]


def _pad(cell: str, width: int, right: bool) -> str:
    space = " " * (width - cell_len(cell))
    return space + cell if right else cell + space


def rich_table(comparison: Comparison, width: int | None = None) -> Table:
    """For a terminal, the best values in bold. Columns that do not fit into ``width`` are left out, and named."""
    body = columns(comparison)
    table = _rich(comparison, body)
    left_out: list[str] = []
    while width is not None and len(body) > 1 and _width(table) > width:
        least = min(range(len(body)), key=lambda i: body[i].keep)
        left_out.append(body.pop(least).heading)
        table = _rich(comparison, body)
    captions = [f"Narrow terminal: without {', '.join(left_out)} (see table.csv)."] if left_out else []
    if captions := captions + remarks(comparison):
        table.caption = Text("\n".join(captions))
    return table


def _width(table: Table) -> int:
    wide = Console(width=1000)
    return Measurement.get(wide, wide.options, table).minimum


def _rich(comparison: Comparison, body: list[Column]) -> Table:
    table = Table(box=SIMPLE_HEAD, header_style="", pad_edge=False, caption_justify="left")
    names = row_names(comparison)
    table.add_column(Text("method"), no_wrap=True, min_width=max(map(cell_len, ["method", *names])))
    for col in body:
        head = wrap(col.heading, HEADING_WIDTH, break_on_hyphens=False)
        exact = max(map(cell_len, [*head, *col.cells]))
        table.add_column(Text("\n".join(head)), justify="right", no_wrap=True, min_width=exact, max_width=exact)
    for i, name in enumerate(names):
        cells = [Text(col.cells[i], style="bold" if i in col.best else "") for col in body]
        table.add_row(Text(name), *cells)
    return table


def markdown_table(comparison: Comparison) -> str:
    """A Markdown table, the best values in bold."""
    body = columns(comparison)
    rows = [["method", *(_escape(col.heading) for col in body)], ["---", *["---:"] * len(body)]]
    for i, name in enumerate(row_names(comparison)):
        cells = [f"**{col.cells[i]}**" if i in col.best else col.cells[i] for col in body]
        rows.append([_escape(name), *cells])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows) + "".join(
        f"\n{_escape(note)}\n" for note in remarks(comparison)
    )


def _escape(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([\\`*_\[\]{}|#~$])", r"\\\1", html.escape(text, quote=False))


def csv_rows(comparison: Comparison) -> list[list[str]]:
    """A heading and one row per method, for programs: every metric, means and deviations, exact numbers."""
    target, known = comparison.target, w.measured(comparison)
    metrics, counts = ([m for m in known if m.startswith(w.COUNTS) == c] for c in (False, True))
    head = ["method", "seeds", "diverged seeds", "rounds"]
    if target is not None:
        head += [f"rounds to {target}: {part}" for part in ("seeds that reached it", "mean", "std")]
    rounds = ("best", "last", "chosen") if comparison.chosen_by else ("best", "last")
    names = ["chosen round"] if comparison.chosen_by else []
    names += [f"{at} {metric}" for metric in metrics for at in rounds]
    names += ["bytes per client and round", "seconds"]
    if comparison.timed:
        names.append(f"estimated seconds {w.on_devices(comparison)}")
    if comparison.timed and target is not None:
        names.append(f"{names[-1]} to {target}")
    measured = _last_by_client(comparison)
    for name in [*names, *(f"last {'.'.join(path)}" for path in measured), *(f"last {count}" for count in counts)]:
        head += [f"{name}: mean", f"{name}: std"]
    for metric in metrics:
        name = f"{rounds[-1]} {metric} minus {w.one_line(comparison.reference)}"
        head += [f"{name}: {part}" for part in ("mean", "low", "high", "seeds")]
    rows, diverged, by = [head], comparison.diverged, comparison.chosen_by
    for label, results in comparison.results.items():
        last = max((r.history[-1]["round"] for r in results if r.history), default=0)
        row = [w.one_line(label), str(len(results)), str(len(diverged.get(label, []))), str(last)]
        if target is not None:
            reached = [f for r in results if (f := r.first_round(target)) is not None]
            row += [str(len(reached)), *_pair(reached)]
        if by:
            row += _pair([n for r in results if (n := r.best_round(by)) is not None])
        for metric in metrics:
            for at in rounds:
                row += _pair([*comparison.by_seed(label, metric, at).values()])
        row += [*_pair([r.bytes_per_client() for r in results]), *_pair([r.seconds for r in results])]
        if comparison.timed:
            row += _pair([max(clock.values()) for r in results if (clock := comparison.clock(r))])
        if comparison.timed and target is not None:
            row += _pair(comparison.times_to_target(results))
        for path in measured:
            row += _pair(clients.means(results, *path))
        for count in counts:
            row += _pair(at_the_end(results, count))
        for metric in metrics:
            row += _ends(comparison.difference(label, metric, rounds[-1]))
        rows.append(row)
    return rows


def _last_by_client(comparison: Comparison) -> list[tuple[str, ...]]:
    """The means over clients, and gains of personal models, of which some run has a number."""
    runs = [r for results in comparison.results.values() for r in results]
    splits = dict.fromkeys(split for r in runs for split in r.final)
    kinds = ("loss", "worst_decile_loss", "auc", "worst_decile_auc")
    paths = [("by_client", kind) for kind in kinds] + [("gain", "mean"), ("gain", "better_off")]
    return [(split, *path) for split in splits for path in paths if clients.means(runs, split, *path)]


def _ends(found: Interval | None) -> list[str]:
    """A paired interval; empty where there is none, as for the reference itself."""
    return [*map(repr, (found.mean, found.low, found.high)), str(found.seeds)] if found else [""] * 4


def _pair(values: Sequence[float]) -> list[str]:
    """Mean and sample standard deviation; empty where there is none, as with a single value."""
    kept = [v for v in values if not math.isnan(v)]
    mean, std = mean_std(kept)
    return [repr(mean) if kept else "", repr(std) if len(kept) > 1 else ""]
