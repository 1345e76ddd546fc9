"""The columns of a comparison's table: what they are called, what stands in them, which values are marked as best.

With several seeds a mark is a claim: it stands only where the paired interval of the difference to the reference
method excludes zero (`fedsub.study.paired`); at the reference itself, where that to the second best does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from fedsub.running.result import Result, Target, better, mean_std
from fedsub.study.paired import paired
from fedsub.study.report import clients
from fedsub.study.report import words as w

if TYPE_CHECKING:
    from fedsub.study.comparing import Comparison

BySeed = Mapping[int, float]
Better = Literal["higher", "lower"]


@dataclass(frozen=True)
class Column:
    """A heading in words, one cell per method, and which of them hold the best value."""

    heading: str
    cells: list[str]
    best: frozenset[int] = frozenset()
    keep: int = 0  # in a narrow terminal the column with the least goes first
    group: str = ""  # columns about the same metric stay together where a wide table is folded


def columns(comparison: Comparison) -> list[Column]:
    """The columns behind the methods' names."""
    runs = [*comparison.results.values()]
    out = [] if comparison.target is None else [replace(_rounds(comparison, comparison.target), keep=10)]
    judged = w.judged(comparison)
    for metric in w.chosen(comparison):
        keep = 8 if metric == comparison.metric else 4 if metric.endswith((".ce", ".auc", ".loss")) else 2
        keep -= metric.startswith("train.")
        about = [_metric(comparison, metric, "best"), *(_honest(comparison, metric) if metric in judged else ())]
        out += [replace(found, keep=keep, group=metric) for found in about]
    out += _by_client(comparison)
    out += _communications(runs)
    sent = [{r.seed: r.bytes_per_client() or math.nan for r in results} for results in runs]
    # No bytes is not a saving: the centralised baseline has no clients to send anything to.
    cells = [w.size(mean_std([r.bytes_per_client() for r in results])[0]) for results in runs]
    out.append(_column(comparison, "bytes per client and round", cells, sent, keep=5))
    if comparison.timed:
        out.append(replace(_time(comparison), keep=3))
    times = [{r.seed: r.seconds for r in results} for results in runs]
    cells = [w.seconds(mean_std([*found.values()])[0]) for found in times]
    out.append(_column(comparison, "seconds per run", cells, times, keep=1))
    diverged = comparison.diverged
    gone = {i for i, label in enumerate(comparison.results) if label in diverged}
    return [replace(col, best=col.best - gone) for col in out]


def folds(body: Sequence[Column], widths: Sequence[float], room: float) -> list[list[int]]:
    """Which columns stand side by side, as many as have room; those of a group together, if it has room at all."""
    out: list[list[int]] = [[]]
    for i, width in enumerate(widths):
        if out[-1] and sum(widths[j] for j in out[-1]) + width > room:
            same = [j for j in out[-1] if body[i].group and body[j].group == body[i].group]
            if len(same) == len(out[-1]):
                same = []
            out[-1] = [j for j in out[-1] if j not in same]
            out.append(same)
        out[-1].append(i)
    return out


def several(comparison: Comparison) -> bool:
    """Whether a method was trained with more than one seed."""
    return max(map(len, comparison.results.values()), default=0) > 1


def notes(comparison: Comparison) -> list[str]:
    """Sentences that explain the table."""
    many, by = several(comparison), comparison.chosen_by
    out = []
    if comparison.target is not None:
        found = "the first evaluated round at which the target holds"
        out.append(f"Rounds: {found}; “300+” means not within 300 rounds.")
        if many:
            out[-1] += " “(2 of 3)” is the mean over the seeds that got there."
    if comparison.timed:
        out.append(
            f"Time {w.on_devices(comparison)}: estimated from assumed bandwidths, latencies and speeds, not measured; "
            "a round lasts as long as its slowest client, an asynchronous step until enough have answered."
        )
    out.append("Best: the best value of all evaluated rounds, hence a little optimistic. Last: after the last round.")
    if by is not None:
        out.append(f"Chosen: in the round with the best {w.words(by)}, a round for each run.")
    if many:
        out.append("With several seeds: mean ± sample standard deviation over the seeds; bytes and seconds: mean.")
        reference = w.one_line(comparison.reference)
        if len(comparison.results) > 1 and comparison.reference in comparison.results:
            out.append(
                f"Minus {reference}: the 95 % interval of the mean difference, paired seed by seed (Student's t)."
            )
    elif len(comparison.results) > 1:
        out.append("One seed: which differences are more than chance, it cannot tell.")
    return out


def mark(comparison: Comparison) -> str:
    """What a marked value is, as the end of a sentence."""
    if not several(comparison):
        return "best of its column"
    reference = w.one_line(comparison.reference)
    return (
        f"best of its column, and the 95 % interval of its difference to {reference} (of {reference}'s to the second "
        "best) excludes zero"
    )


def _rounds(comparison: Comparison, target: Target) -> Column:
    cells, values, least = [], [], []
    for results in comparison.results.values():
        first = {r.seed: r.first_round(target) for r in results}
        reached = [float(f) for f in first.values() if f is not None]
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
        values.append({seed: math.nan if f is None else float(f) for seed, f in first.items()})
        ends = {r.seed: float(r.history[-1]["round"]) for r in results if r.history}
        least.append(ends | {seed: float(f) for seed, f in first.items() if f is not None})
    return _column(comparison, f"rounds to {w.target_words(target)}", cells, values, least=least)


def _time(comparison: Comparison) -> Column:
    """Estimated time on the devices: to the target if there is one, else of a round."""
    cells, values, target = [], [], comparison.target
    for results in comparison.results.values():
        known = {r.seed: (r, clock) for r in results if (clock := comparison.clock(r))}
        whole = mean_std([max(clock.values()) for _, clock in known.values()])[0]
        if target is None:
            found = {seed: max(clock.values()) / max(1, *clock) for seed, (_, clock) in known.items()}
            text = w.duration(mean_std([*found.values()])[0])
        else:
            first = {seed: clock.get(r.first_round(target) or -1) for seed, (r, clock) in known.items()}
            found = {seed: time for seed, time in first.items() if time is not None}
            text = w.duration(mean_std([*found.values()])[0]) if found or not known else f"{w.duration(whole)}+"
            if 0 < len(found) < len(results):
                text = f"{text} ({len(found)} of {len(results)})"
        cells.append(text)
        values.append({r.seed: math.nan for r in results} | found)
    what = "time of a round" if target is None else "time to the target"
    return _column(comparison, f"estimated {what} {w.on_devices(comparison)}", cells, values)


def direction(comparison: Comparison, metric: str) -> Better:
    """Whether "higher" or "lower" values of a metric are better."""
    runs = (r for results in comparison.results.values() for r in results)
    return "higher" if next((r.better(metric) for r in runs), better(metric)) == "higher" else "lower"


def _metric(comparison: Comparison, metric: str, at: str) -> Column:
    values = [comparison.by_seed(label, metric, at) for label in comparison.results]
    cells = []
    for found in values:
        kept = [v for v in found.values() if not math.isnan(v)]
        mean, std = mean_std(kept)
        text = w.number(mean, std if len(kept) > 1 else None)
        cells.append(f"{text} ({len(kept)} of {len(found)})" if 0 < len(kept) < len(found) else text)
    return _column(
        comparison, f"{at} {w.short(metric, unit=at == 'best')}", cells, values, direction(comparison, metric)
    )


def _honest(comparison: Comparison, metric: str) -> list[Column]:
    """Beside the best value that of the last round, of the chosen one, and how far it is from the reference."""
    at = ("last", "chosen") if comparison.chosen_by else ("last",)
    out = [_metric(comparison, metric, name) for name in at]
    found = {label: comparison.difference(label, metric, at[-1]) for label in comparison.results}
    if any(found.values()):
        heading = f"{at[-1]} {w.short(metric, unit=False)} minus {w.cut(comparison.reference, 24)}, 95\u00a0%"
        out.append(Column(heading, [w.DASH if i is None else w.span(i.low, i.high) for i in found.values()]))
    return out


def _communications(runs: Sequence[list[Result]]) -> list[Column]:
    """Of methods that do not communicate in every round: how often they did."""
    counts = [mean_std(at_the_end(results, "mixture.communications"))[0] for results in runs]
    if all(math.isnan(count) for count in counts):
        return []
    return [Column("times averaged", [w.DASH if math.isnan(c) else f"{c:,.0f}" for c in counts], keep=5)]


def at_the_end(results: Sequence[Result], metric: str) -> list[float]:
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
        found = {r.seed: mean_std(clients.means([r], split, "by_client", kind))[0] for r in results}
        kept = [v for v in found.values() if not math.isnan(v)]
        mean, std = mean_std(kept)
        cells.append(w.number(mean, std if len(kept) > 1 else None))
        values.append(found)
    where = "training" if split == "train" else split
    heading = f"last {where} {'AUC' if kind == 'auc' else 'loss'}, mean over clients"
    return [_column(comparison, heading, cells, values, "higher" if kind == "auc" else "lower", keep=6)]


def _column(
    comparison: Comparison,
    heading: str,
    cells: list[str],
    values: Sequence[BySeed],
    best: Better = "lower",
    keep: int = 0,
    least: Sequence[BySeed] | None = None,
) -> Column:
    """With the best value marked. A method of which a seed has no value takes no part, nor does a single method.

    ``least``: what is known of those without a value, as of a run that had not reached its target in its last round.
    """
    means = [math.nan if any(map(math.isnan, v.values())) else mean_std([*v.values()])[0] for v in values]
    able = sorted((i for i, m in enumerate(means) if not math.isnan(m)), key=means.__getitem__)
    if best == "higher":
        able.reverse()
    if len(cells) < 2 or not able:
        return Column(heading, cells, keep=keep)
    same = {i for i in able if cells[i] == cells[able[0]]}  # what prints alike is marked alike
    if len(same) == len(cells):
        return Column(heading, cells, keep=keep)
    if several(comparison):
        same = {i for i in same if _more_than_chance(comparison, i, best, least or values)}
    return Column(heading, cells, frozenset(same), keep)


def _more_than_chance(comparison: Comparison, which: int, best: Better, values: Sequence[BySeed]) -> bool:
    labels = [*comparison.results]
    if comparison.reference not in labels:
        return False
    other = labels.index(comparison.reference)
    if which == other:
        sign = -1 if best == "higher" else 1
        able = {
            i: sign * mean_std([*found.values()])[0]
            for i, found in enumerate(values)
            if i != which and not any(map(math.isnan, found.values()))
        }
        if not able:
            return False
        other = min(able, key=able.__getitem__)
    found = paired(values[which], values[other])
    return found is not None and found.excludes_zero
