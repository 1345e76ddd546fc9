"""How the clients of a comparison fare one by one, for methods with personal models: columns, a table, charts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedsub.running.result import Result, mean_std
from fedsub.study.report import words as w
from fedsub.study.report.chart import Chart, Line, Mark
from fedsub.study.report.curves import Curve

if TYPE_CHECKING:
    from fedsub.study.comparing import Comparison

SHARES = [i / 20 for i in range(21)]  # of the clients, at which quantiles are kept


def split_of(comparison: Comparison) -> str | None:
    """The split whose clients are shown: "test" if there is one. None if no run has personal models."""
    found = [r.final for results in comparison.results.values() for r in results if _is_personal(r)]
    splits = [split for final in found for split, values in final.items() if _gained(values)]
    return "test" if "test" in splits else next(iter(splits), None)


def kind_of(comparison: Comparison, split: str) -> str:
    """What is compared by client: the AUC, or of other labels the loss."""
    every = [r.final.get(split, {}).get("by_client", {}) for results in comparison.results.values() for r in results]
    return "auc" if any("auc" in found for found in every) else "loss"


def _is_personal(result: Result) -> bool:
    return any(map(_gained, result.final.values()))


def _gained(values: Any) -> bool:
    return isinstance(values, dict) and "gain" in values


def means(results: Sequence[Result], split: str, *path: str) -> list[float]:
    """A number of the final evaluation, of every seed that has it: means(…, "test", "by_client", "auc")."""
    out = []
    for result in results:
        found: Any = result.final.get(split, {})
        for name in path:
            found = found.get(name, {}) if isinstance(found, dict) else {}
        if not math.isnan(value := w.value(found)):
            out.append(value)
    return out


def rows(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """A table: how the clients fare, each counted once. (headings, one row per method)."""
    split = split_of(comparison)
    assert split is not None
    wanted = [("by_client", "auc"), ("by_client", "worst_decile_auc"), ("shared", "by_client", "auc")]
    wanted += [("by_client", "loss"), ("by_client", "worst_decile_loss"), ("shared", "by_client", "loss")]
    wanted += [("gain", "mean"), ("gain", "better_off")]
    heads = ["AUC, mean over clients", "AUC, worst tenth of clients", "AUC without own parameters"]
    heads += ["loss, mean over clients", "loss, worst tenth of clients", "loss without own parameters"]
    heads += ["gain: loss lower by", "clients better off"]
    keep = range(3 if kind_of(comparison, split) == "loss" else 0, len(wanted))
    body = []
    for label, results in comparison.results.items():
        cells = [w.one_line(label)]
        for i in keep:
            mean, std = mean_std(found := means(results, split, *wanted[i]))
            percent = wanted[i][-1] == "better_off" and found
            cells.append(f"{mean:.0%}" if percent else w.number(mean, std if len(found) > 1 else None))
        body.append(cells)
    return ["method", *(heads[i] for i in keep)], body


def charts(comparison: Comparison) -> list[Chart]:
    """How the clients fare one by one; none if no method has personal models."""
    return [clients_chart(comparison), gains_chart(comparison)] if split_of(comparison) is not None else []


def clients_chart(comparison: Comparison) -> Chart:
    """The metric of the clients, sorted: of their own models and, thin, without own parameters.

    The mean of the seeds' quantiles, and a band from lowest to highest.
    """
    chart, split = Chart("clients", "clients, sorted", percent=True), split_of(comparison)
    if split is None:
        return replace(chart, empty="no method has personal models")
    kind, lines = kind_of(comparison, split), []
    for place, (label, results) in enumerate(comparison.results.items()):
        for path, name in ((("by_client",), label), (("shared", "by_client"), f"{label}, without own parameters")):
            found = _curve(results, split, *path, f"{kind}_quantiles")
            if found:
                lines.append(Line(name, place, (found,), thin=path[0] == "shared"))
    if not lines:
        return replace(chart, empty="no metric was measured by client")
    name = w.words(f"{split}.{kind}")
    caption = f"{name} of the clients one by one, sorted; thin: without own parameters."
    return replace(
        chart, lines=tuple(lines), marks=(Mark(0.5, ""),) if kind == "auc" else (),
        xlabel="clients, from the least to the largest", ylabel=f"{name}, one client each", caption=caption,
        description=f"Line chart: {caption} {_told(comparison)}",
    )  # fmt: skip


def gains_chart(comparison: Comparison) -> Chart:
    """By how much the clients' losses are lower with own parameters than without, from the least to the largest."""
    chart, split = Chart("gains", "gains, sorted", percent=True), split_of(comparison)
    runs = enumerate(comparison.results.items()) if split is not None else ()
    found = [(label, place, _curve(results, str(split), "gain", "quantiles")) for place, (label, results) in runs]
    lines = tuple(Line(label, place, (curve,)) for label, place, curve in found if curve)
    if not lines:
        return replace(chart, empty="no method has personal models")
    where = w.words(f"{split}.loss").partition(" on ")[2]
    caption = "By how much the clients’ losses are lower with own parameters than without, sorted."
    return replace(
        chart, lines=lines, marks=(Mark(0.0, ""),), xlabel="clients, from the least to the largest gain",
        ylabel=f"loss without − with own parameters, {where}", caption=caption,
        description=f"Line chart: {caption} {_told(comparison)}",
    )  # fmt: skip


def _told(comparison: Comparison) -> str:
    head, body = rows(comparison)
    each = (f"{row[0]}: " + ", ".join(f"{h} {c}" for h, c in zip(head[1:], row[1:], strict=True)) for row in body)
    return "; ".join(each) + "."


def _curve(results: Sequence[Result], split: str, *path: str) -> Curve:
    """Quantiles over the seeds that have them."""
    seeds = []
    for result in results:
        found: Any = result.final.get(split, {})
        for name in path:
            found = found.get(name, {}) if isinstance(found, dict) else {}
        values = [w.value(v) for v in found] if isinstance(found, list) else []
        if len(values) == len(SHARES) and all(map(math.isfinite, values)):
            seeds.append(values)
    out = Curve()
    for share, values in zip(SHARES, zip(*seeds, strict=True), strict=False):
        out.add(share, values)
    return out
