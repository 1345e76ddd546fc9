"""All trials and the winners: CSV for programs, aligned text for people.

No times are in them, so that the same search makes the same files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len

from fedsub.running.result import mean_std
from fedsub.study.paired import Interval, paired
from fedsub.study.report import words as w
from fedsub.study.tuning.choose import show

if TYPE_CHECKING:
    from fedsub.study.tuning.search import Tuning
    from fedsub.study.tuning.trials import Trial

Rows = list[list[str]]
KINDS = ("ce", "loss", "auc", "accuracy")  # half_ce is ce again


def trial_rows(tuning: Tuning) -> Rows:
    """A heading and one row per method, setting and seed, in the order of the search."""
    trials = [t for s in tuning.settings for t in s.trials]
    measured = [f"{split}.{kind}" for split in ("train", "validation") for kind in _kinds(tuning, trials, split)]
    head = ["method", "trial", *tuning.axes, "seed", "rounds", "status", tuning.criterion.title]
    rows = [[*head, *(f"final {name}" for name in measured), "best validation loss", "at round", "chosen", "note"]]
    for setting in tuning.settings:
        axes = [_exact(setting.values.get(name)) for name in tuning.axes]
        chosen = "yes" if tuning.chosen.get(setting.label) is setting else "no"
        start = [setting.label, str(setting.number), *axes]
        if setting.refused is not None:
            rows.append([*start, "", "", "refused", *[""] * (len(measured) + 3), chosen, w.one_line(setting.refused)])
        for t in setting.trials:
            number, best = t.best("validation")
            rows.append([
                *start, str(t.seed), str(t.rounds), t.status, _exact(tuning.criterion.value(t)),
                *(_exact(t.metric(*name.split("."))) for name in measured),
                _exact(best), str(number) if math.isfinite(best) else "", chosen, w.one_line(t.failure or ""),
            ])  # fmt: skip
    return rows


def setting_rows(tuning: Tuning) -> Rows:
    """A row per method and setting: the mean over the seeds."""
    rows = [["", "method", "trial", *tuning.axes, tuning.criterion.title, "train loss", "seeds that ended"]]
    for s in tuning.settings:
        ended = [t for t in s.trials if t.status == "finished"]
        values = [tuning.criterion.value(t) for t in s.trials]
        rows.append([
            "*" if tuning.chosen.get(s.label) is s else "", s.label, str(s.number),
            *(show(s.values[name]) if name in s.values else w.DASH for name in tuning.axes),
            _pm(values, tuning.criterion.title), _pm([t.loss("train") for t in ended]),
            "refused" if s.refused else f"{len(ended)} of {len(s.trials)}",
        ])  # fmt: skip
    return rows


def winner_rows(tuning: Tuning, cell: Callable[[str, Sequence[float]], list[str]], heads: tuple[str, ...]) -> Rows:
    """A row per method; ``cell`` makes the cells of one named quantity, which ``heads`` tell apart."""
    tested = [t for trials in tuning.tested.values() for t in trials]
    kinds = _kinds(tuning, tested, "test")
    criterion = tuning.criterion
    columns = [criterion.title]
    if criterion.select == "rounds":
        columns.append("validation loss")
    elif criterion.target is not None:
        columns.append(f"rounds to {criterion.target}")
    columns += [f"test {kind}" for kind in kinds]
    rows = [["method", "trials", "seeds", *tuning.axes, *(f"{c}{h}" for c in columns for h in heads)]]
    for label, count in tuning.counts.items():
        winner = tuning.chosen.get(label)
        if winner is None:
            rows.append([label, str(count), "0", *[w.DASH] * (len(rows[0]) - 3)])
            continue
        values = [[criterion.value(t) for t in winner.trials]]
        if criterion.select == "rounds":
            values.append([t.loss("validation") for t in winner.trials])
        elif criterion.target is not None:
            values.append([t.first(criterion.target) for t in winner.trials])
        values += [[t.metric("test", kind) for t in tuning.tested.get(label, [])] for kind in kinds]
        axes = [show(winner.values[name]) if name in winner.values else w.DASH for name in tuning.axes]
        cells = [c for name, v in zip(columns, values, strict=True) for c in cell(name, v)]
        rows.append([label, str(count), str(len(winner.trials)), *axes, *cells])
    return rows


def difference_rows(tuning: Tuning, cell: Callable[[Interval | None], list[str]], heads: tuple[str, ...]) -> Rows:
    """A row per method: the paired intervals of its test metrics' differences to the first method, seed by seed."""
    tested = tuning.tested
    reference = next((label for label in tuning.counts if label in tested), None)
    if reference is None or len(tested) < 2 or max(map(len, tested.values())) < 2:
        return []
    kinds = _kinds(tuning, [t for trials in tested.values() for t in trials], "test")
    by_seed = {
        label: {k: {t.seed: t.metric("test", k) for t in found} for k in kinds} for label, found in tested.items()
    }
    rows = [["", *(f"test {kind} minus {w.one_line(reference)}{head}" for kind in kinds for head in heads)]]
    for label in tuning.counts:
        found = by_seed.get(label) if label != reference else None
        intervals = [paired(found[kind], by_seed[reference][kind]) if found else None for kind in kinds]
        rows.append([label, *(text for interval in intervals for text in cell(interval))])
    return rows


def decile_rows(tuning: Tuning) -> Rows:
    """The test split by heat decile: a row per method, seed and decile."""
    tested = [t for trials in tuning.tested.values() for t in trials]
    kinds = _kinds(tuning, tested, "test")
    rows = [["method", "seed", "decile", "samples", *kinds]]
    for label, trials in tuning.tested.items():
        for t in trials:
            for group in t.final.get("test", {}).get("deciles", []):
                cells = [_exact(group.get(kind)) for kind in kinds]
                rows.append([label, str(t.seed), str(group["group"]), str(group["samples"]), *cells])
    return rows


def winners_csv(tuning: Tuning) -> Rows:
    def ends(found: Interval | None) -> list[str]:
        return ["", "", ""] if found is None else [_exact(x) for x in (found.mean, found.low, found.high)]

    rows = winner_rows(tuning, lambda _, v: [_exact(x) for x in mean_std([y for y in v if math.isfinite(y)])],
                       (": mean", ": std"))  # fmt: skip
    differences = difference_rows(tuning, ends, (": mean", ": low", ": high")) or [[]] * len(rows)
    return [row + more[1:] for row, more in zip(rows, differences, strict=True)]


def winners_cells(tuning: Tuning) -> Rows:
    """For people: mean ± standard deviation in one cell."""
    return winner_rows(tuning, lambda name, v: [_pm(v, name)], ("",))


def difference_cells(tuning: Tuning) -> Rows:
    """For people: a line per metric, for there are more of them than methods, and a column per method."""
    rows = difference_rows(tuning, lambda found: [w.DASH if found is None else w.span(found.low, found.high)], ("",))
    if not rows:
        return []
    others = [row for row in rows[1:] if any(cell != w.DASH for cell in row[1:])]  # without the reference
    return [["", *(row[0] for row in others)], *([n, *(r[i] for r in others)] for i, n in enumerate(rows[0]) if i)]


def winners_text(tuning: Tuning) -> str:
    text = aligned(winners_cells(tuning))
    apart = difference_cells(tuning)
    return f"{text}\n95 % intervals of differences, seed by seed\n\n{aligned(apart)}" if apart else text


def aligned(rows: Rows) -> str:
    """Rows as text, the heading underlined, numbers to the right."""
    widths = [max(cell_len(row[j]) for row in rows) for j in range(len(rows[0]))]
    texts = {j for j, head in enumerate(rows[0]) if head in ("", "method")}
    lines = []
    for row in [rows[0], ["-" * width for width in widths], *rows[1:]]:
        cells = [(" " * (n - cell_len(c)), c) for c, n in zip(row, widths, strict=True)]
        lines.append("  ".join(c + pad if j in texts else pad + c for j, (pad, c) in enumerate(cells)).rstrip())
    return "\n".join(lines) + "\n"


def _kinds(tuning: Tuning, trials: Sequence[Trial], split: str) -> list[str]:
    known = (*KINDS, *tuning.criterion.directions)
    return [kind for kind in known if any(kind in t.final.get(split, {}) for t in trials)]


def _pm(values: Sequence[float], name: str = "") -> str:
    """Mean ± standard deviation over the seeds; those without a value are counted, not averaged."""
    kept = [v for v in values if math.isfinite(v)]
    if not kept:
        return w.DASH
    mean, std = mean_std(kept)
    if name.startswith("rounds to "):
        text = f"{mean:.4g}" + (f" ± {std:.2g}" if len(kept) > 1 else "")
    else:
        text = w.number(mean, std if len(kept) > 1 else None)
    return text if len(kept) == len(values) else f"{text} ({len(kept)} of {len(values)})"


def _exact(value: Any) -> str:
    """A value for a program: all digits; empty where there is none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return repr(value) if isinstance(value, float) else str(value)
