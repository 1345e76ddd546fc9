"""How the clients of a comparison fare one by one, for methods with personal models: columns, a table, plots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fedsub.running.result import Result, mean_std
from fedsub.study.report import words as w
from fedsub.study.report.drawing import MUTED, canvas, finish, key, nothing, style

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


def clients_plot(comparison: Comparison, *, narrow: bool = False) -> Figure:
    """The metric of the clients, sorted: of their own models and, thin, without own parameters.

    The mean of the seeds' quantiles, and a band from lowest to highest.
    """
    figure, axes = canvas(narrow)
    split = split_of(comparison)
    if split is None:
        return nothing(figure, axes, "no method has personal models")
    kind, order = kind_of(comparison, split), list(comparison.results)
    handles, labels = [], []
    for label, results in comparison.results.items():
        look = style(order.index(label))
        for path, name in ((("by_client",), label), (("shared", "by_client"), f"{label}, without own parameters")):
            curves = _curves(results, split, *path, f"{kind}_quantiles")
            if curves:
                shared = path[0] == "shared"
                handles.append(_draw(axes, curves, look | (_thin(look) if shared else {})))
                labels.append(name)
    if not handles:
        return nothing(figure, axes, "no metric was measured by client")
    if kind == "auc":
        axes.axhline(0.5, color=MUTED, linestyle=":", lw=1.0, zorder=1.5)
    side = w.words(f"{split}.{kind}")
    axes.set(xlabel="clients, from the least to the largest", ylabel=f"{side},\none client each")
    _finish(axes)
    key(figure, handles, labels, narrow)
    return figure


def gains_plot(comparison: Comparison, *, narrow: bool = False) -> Figure:
    """By how much the clients' losses are lower with own parameters than without, from the least to the largest."""
    figure, axes = canvas(narrow)
    split, order = split_of(comparison), list(comparison.results)
    handles, labels = [], []
    for label, results in comparison.results.items() if split is not None else ():
        if curves := _curves(results, str(split), "gain", "quantiles"):
            handles.append(_draw(axes, curves, style(order.index(label))))
            labels.append(label)
    if not handles:
        return nothing(figure, axes, "no method has personal models")
    axes.axhline(0.0, color=MUTED, linestyle=":", lw=1.3, zorder=1.5)
    where = w.words(f"{split}.loss").partition(" on ")[2]
    axes.set(
        xlabel="clients, from the least to the largest gain", ylabel=f"loss without − with own parameters,\n{where}"
    )
    _finish(axes)
    key(figure, handles, labels, narrow)
    return figure


def _curves(results: Sequence[Result], split: str, *path: str) -> list[list[float]]:
    """Quantiles of every seed that has them."""
    out = []
    for result in results:
        found: Any = result.final.get(split, {})
        for name in path:
            found = found.get(name, {}) if isinstance(found, dict) else {}
        values = [w.value(v) for v in found] if isinstance(found, list) else []
        if len(values) == len(SHARES) and all(map(math.isfinite, values)):
            out.append(values)
    return out


def _thin(look: dict[str, Any]) -> dict[str, Any]:
    return {"linestyle": ":" if look["linestyle"] == "-" else "-", "lw": 1.0}


def _draw(axes: Any, curves: list[list[float]], look: dict[str, Any]) -> Any:
    each = list(zip(*curves, strict=True))
    (line,) = axes.plot(SHARES, [sum(v) / len(v) for v in each], **look | {"marker": None, "zorder": 3})
    if len(curves) > 1:
        low, high = [min(v) for v in each], [max(v) for v in each]
        axes.fill_between(SHARES, low, high, color=look["color"], alpha=0.15, lw=0, zorder=2)
    return line


def _finish(axes: Any) -> None:
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.margins(x=0.02)
    finish(axes)
