"""The comparison as a table: plain text, rich, Markdown and CSV, from the same columns."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from fedsub.running.result import Result, Target, better, mean_std
from fedsub.study.report import clients
from fedsub.study.report import words as w

if TYPE_CHECKING:
    from fedsub.study.comparing import Comparison

HEADING_WIDTH = 13
COMMANDS = ("fedsub ", "$ ", "python ", "python3 ", "uv ")


@dataclass(frozen=True)
class Column:
    """A heading in words, one cell per method, and which of them hold the best value."""

    heading: str
    cells: list[str]
    best: frozenset[int] = frozenset()
    keep: int = 0  # in a narrow terminal the column with the least goes first


def columns(comparison: Comparison) -> list[Column]:
    """The columns behind the methods' names."""
    runs = list(comparison.results.values())
    out = []
    if comparison.target is not None:
        out.append(replace(_rounds(runs, comparison.target), keep=9))
    for metric in w.chosen(comparison):
        keep = 8 if metric == comparison.metric else 4 if metric.endswith((".ce", ".auc", ".loss")) else 2
        out.append(replace(_metric(runs, metric), keep=keep - metric.startswith("train.")))
    out += _by_client(comparison)
    out += _communications(runs)
    sizes = [mean_std([r.bytes_per_client() for r in results])[0] for results in runs]
    # No bytes is not a saving: the centralised baseline has no clients to send anything to.
    out.append(
        _column("bytes per client and round", [w.size(s) for s in sizes], [s or math.nan for s in sizes], keep=5)
    )
    if comparison.timed:
        out.append(replace(_time(comparison), keep=3))
    times = [mean_std([r.seconds for r in results])[0] for results in runs]
    out.append(_column("seconds per run", [w.seconds(t) for t in times], times, keep=1))
    gone = {i for i, label in enumerate(comparison.results) if label in comparison.diverged}
    return [replace(col, best=col.best - gone) for col in out]


def notes(comparison: Comparison) -> list[str]:
    """Sentences that explain the table."""
    runs = comparison.results.values()
    several = max(map(len, runs), default=0) > 1
    out = []
    if comparison.target is not None:
        found = "the first evaluated round at which the target holds"
        out.append(f"Rounds: {found}; “300+” means not within 300 rounds.")
        if several:
            out[-1] += " “(2 of 3)” is the mean over the seeds that got there."
    if comparison.timed:
        out.append(
            f"Time {w.on_devices(comparison)}: estimated from assumed bandwidths, latencies and speeds, not measured; "
            "a round lasts as long as its slowest client."
        )
    out.append("Metrics: the best value of all evaluated rounds, hence a little optimistic.")
    if several:
        out.append("With several seeds: mean ± sample standard deviation over the seeds; bytes and seconds: mean.")
    return out


def remarks(comparison: Comparison) -> list[str]:
    """The comparison's own notes as lines, without the commands among them, which belong to the page."""
    return [w.one_line(note) for note in comparison.notes if not note.startswith(COMMANDS)]


def _rounds(runs: Sequence[list[Result]], target: Target) -> Column:
    cells, values = [], []
    for results in runs:
        first = [r.first_round(target) for r in results]
        reached = [float(f) for f in first if f is not None]
        mean, std = mean_std(reached)
        whole = mean.is_integer() or mean >= 20
        text = f"{mean:.0f}" if whole else f"{mean:.1f}"
        if not reached:
            last = max((r.history[-1]["round"] for r in results if r.history), default=0)
            text = f"{last}+"
        elif len(reached) < len(first):
            text += f" ({len(reached)} of {len(first)})"
        elif len(first) > 1:
            text += f" ± {std:.0f}" if whole else f" ± {std:.1f}"
        cells.append(text)
        values.append(mean if len(reached) == len(first) else math.nan)
    return _column(f"rounds to {w.target_words(target)}", cells, values)


def _time(comparison: Comparison) -> Column:
    """Estimated time on the devices: to the target if there is one, else of a round."""
    cells, values, target = [], [], comparison.target
    for results in comparison.results.values():
        known = [(r, clock) for r in results if (clock := comparison.clock(r))]
        whole = mean_std([max(clock.values()) for _, clock in known])[0]
        if target is None:
            value = mean_std([max(clock.values()) / max(1, *clock) for _, clock in known])[0]
            text = w.duration(value)
        else:
            reached = comparison.times_to_target(results)
            value = mean_std(reached)[0]
            text = w.duration(value) if reached or not known else f"{w.duration(whole)}+"
            if 0 < len(reached) < len(results):
                text, value = f"{text} ({len(reached)} of {len(results)})", math.nan
        cells.append(text)
        values.append(value)
    what = "time of a round" if target is None else "time to the target"
    return _column(f"estimated {what} {w.on_devices(comparison)}", cells, values)


def _metric(runs: Sequence[list[Result]], metric: str) -> Column:
    cells, values = [], []
    for results in runs:
        found = [v for r in results if not math.isnan(v := r.best(metric))]
        mean, std = mean_std(found)
        text = w.number(mean, std if len(found) > 1 else None)
        if 0 < len(found) < len(results):
            text += f" ({len(found)} of {len(results)})"
        cells.append(text)
        values.append(mean if len(found) == len(results) else math.nan)
    return _column(f"best {w.short(metric)}", cells, values, max if _better(runs, metric) == "higher" else min)


def _better(runs: Sequence[list[Result]], metric: str) -> str:
    return next((r.better(metric) for results in runs for r in results), better(metric))


def _communications(runs: Sequence[list[Result]]) -> list[Column]:
    """Of methods that do not communicate in every round: how often they did."""
    counts = [mean_std(_at_the_end(results, f"{w.COUNTS}communications"))[0] for results in runs]
    if all(math.isnan(count) for count in counts):
        return []
    return [Column("times averaged", [w.DASH if math.isnan(c) else f"{c:,.0f}" for c in counts], keep=5)]


def _at_the_end(results: Sequence[Result], metric: str) -> list[float]:
    """The last value that each run measured, where it did."""
    return [values[-1] for r in results if (values := r.series(metric)[1])]


def _by_client(comparison: Comparison) -> list[Column]:
    """Where methods have personal models: the mean over clients, each counted once, at the end."""
    split = clients.split_of(comparison)
    if split is None:
        return []
    kind = clients.kind_of(comparison, split)
    cells, values = [], []
    for results in comparison.results.values():
        mean, std = mean_std(found := clients.means(results, split, "by_client", kind))
        cells.append(w.number(mean, std if len(found) > 1 else None))
        values.append(mean)
    where = "training" if split == "train" else split
    heading = f"last {where} {'AUC' if kind == 'auc' else 'loss'}, mean over clients"
    return [_column(heading, cells, values, max if kind == "auc" else min, keep=6)]


def _column(
    heading: str, cells: list[str], values: Sequence[float], best: Callable[..., float] = min, keep: int = 0
) -> Column:
    """Cells that print like the best value are marked with it; nan takes no part, nor does a single method."""
    able = [v for v in values if not math.isnan(v)]
    if len(cells) < 2 or not able:
        return Column(heading, cells, keep=keep)
    top = cells[values.index(best(able))]
    same = {i for i, v in enumerate(values) if not math.isnan(v) and cells[i] == top}
    return Column(heading, cells, frozenset(same) if len(same) < len(cells) else frozenset(), keep)


def labels(comparison: Comparison) -> list[str]:
    return [w.one_line(label) for label in comparison.results]


def row_names(comparison: Comparison) -> list[str]:
    """The labels, those of methods that diverged with a mark: "FedAvg (diverged)", "FedAvg (2 of 3 diverged)"."""
    names = []
    for label, results in comparison.results.items():
        count = len(comparison.diverged.get(label, []))
        mark = "" if not count else " (diverged)" if count == len(results) else f" ({count} of {len(results)} diverged)"
        names.append(w.one_line(label) + mark)
    return names


def text_table(comparison: Comparison) -> str:
    """Plain text, aligned, with * behind the best value of each column."""
    names, body = row_names(comparison), columns(comparison)
    marked = [[c + ("*" if i in col.best else " ") for i, c in enumerate(col.cells)] for col in body]
    heads = [wrap(col.heading, HEADING_WIDTH, break_on_hyphens=False) for col in body]
    height = max(map(len, heads))
    lines = [[""] * (height - 1) + ["method"], *([""] * (height - len(h)) + h for h in heads)]
    widths = [max(map(cell_len, [*head, *cells])) for head, cells in zip(lines, [names, *marked], strict=True)]
    rows = [*zip(*lines, strict=True), ["-" * width for width in widths], *zip(names, *marked, strict=True)]
    out = ["  ".join(_pad(cell, width, j > 0) for j, (cell, width) in enumerate(zip(row, widths, strict=True)))
           for row in rows]  # fmt: skip
    if any(col.best for col in body):
        out += ["", "* best of its column"]
    if said := remarks(comparison):
        out += ["", *said]
    return "\n".join(line.rstrip() for line in out) + "\n"


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
    names = [*(f"best {metric}" for metric in metrics), "bytes per client and round", "seconds"]
    if comparison.timed:
        names.append(f"estimated seconds {w.on_devices(comparison)}")
    if comparison.timed and target is not None:
        names.append(f"{names[-1]} to {target}")
    measured = _last_by_client(comparison)
    for name in [*names, *(f"last {'.'.join(path)}" for path in measured), *(f"last {count}" for count in counts)]:
        head += [f"{name}: mean", f"{name}: std"]
    rows = [head]
    for label, results in comparison.results.items():
        last = max((r.history[-1]["round"] for r in results if r.history), default=0)
        row = [w.one_line(label), str(len(results)), str(len(comparison.diverged.get(label, []))), str(last)]
        if target is not None:
            reached = [f for r in results if (f := r.first_round(target)) is not None]
            row += [str(len(reached)), *_pair(reached)]
        for metric in metrics:
            row += _pair([r.best(metric) for r in results])
        row += [*_pair([r.bytes_per_client() for r in results]), *_pair([r.seconds for r in results])]
        if comparison.timed:
            row += _pair([max(clock.values()) for r in results if (clock := comparison.clock(r))])
        if comparison.timed and target is not None:
            row += _pair(comparison.times_to_target(results))
        for path in measured:
            row += _pair(clients.means(results, *path))
        for count in counts:
            row += _pair(_at_the_end(results, count))
        rows.append(row)
    return rows


def _last_by_client(comparison: Comparison) -> list[tuple[str, ...]]:
    """The means over clients, and gains of personal models, of which some run has a number."""
    runs = [r for results in comparison.results.values() for r in results]
    splits = dict.fromkeys(split for r in runs for split in r.final)
    kinds = ("loss", "worst_decile_loss", "auc", "worst_decile_auc")
    paths = [("by_client", kind) for kind in kinds] + [("gain", "mean"), ("gain", "better_off")]
    return [(split, *path) for split in splits for path in paths if clients.means(runs, split, *path)]


def _pair(values: Sequence[float]) -> list[str]:
    """Mean and sample standard deviation; empty where there is none, as with a single value."""
    kept = [v for v in values if not math.isnan(v)]
    mean, std = mean_std(kept)
    return [repr(mean) if kept else "", repr(std) if len(kept) > 1 else ""]
