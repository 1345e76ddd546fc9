"""Words and numbers of a report: what metrics are called, which ones are shown, how values are printed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from fedsub.disk.text import visible
from fedsub.objective.metrics import ELEMENTWISE, NORMS, SQUARED
from fedsub.running.result import Target

if TYPE_CHECKING:
    from fedsub.study.comparing import Comparison

DASH = "–"
_KINDS = {
    "ce": "cross-entropy",
    "half_ce": "half cross-entropy",
    "accuracy": "accuracy",
    "auc": "area under the ROC curve",
    "loss": "loss",
    "rmse": "root mean squared error",
    "mae": "mean absolute error",
    SQUARED: "‖∇f‖²",
    ELEMENTWISE: "∇fᵀD∇f",
}
_UNITS = {"ce": "nats", "half_ce": "nats"}
_SPLITS = {"train": "training samples", "test": "test samples"}
_SIGNS = {"<=": "≤", ">=": "≥"}
# Costs so far and the spread of models: told at the end, there is no best of them.
COUNTS = ("mixture.", "gossip.")


def words(metric: str) -> str:
    """A metric in words: "train.ce" is "cross-entropy on training samples"."""
    split, _, kind = metric.rpartition(".")
    name = _KINDS.get(kind, kind)
    return f"{name} on {_SPLITS.get(split, f'{split} samples')}" if split else name


def with_unit(metric: str) -> str:
    """A metric in words with its unit, for an axis."""
    unit = _UNITS.get(metric.rpartition(".")[2])
    return f"{words(metric)} ({unit})" if unit else words(metric)


def short(metric: str, unit: bool = True) -> str:
    """A metric in few words, for the heading of a column: "training cross-entropy (nats)"."""
    split, _, kind = metric.rpartition(".")
    name = {"auc": "ROC area (AUC)"}.get(kind) or _KINDS.get(kind, kind)
    ending = f" ({_UNITS[kind]})" if unit and kind in _UNITS else ""
    where = "training" if split == "train" else split
    return f"{where} {name}{ending}".strip()


def target_words(target: Target) -> str:
    """A target in words: "training cross-entropy ≤ 0.65"."""
    return f"{short(target.metric, unit=False)} {target_limit(target)}"


def target_limit(target: Target) -> str:
    return f"{_SIGNS.get(target.op, target.op)} {target.value:g}"


def on_devices(comparison: Comparison) -> str:
    """Where the estimated time would pass: "on phones"."""
    named = comparison.devices
    return f"on {'unknown devices' if named is None else getattr(named, 'name', named)}"


def measured(comparison: Comparison) -> list[str]:
    """Every metric that some run measured, in order."""
    seen: dict[str, None] = {}
    for results in comparison.results.values():
        for result in results:
            seen |= dict.fromkeys(result.metrics())
    return list(seen)


def chosen(comparison: Comparison) -> list[str]:
    """The metrics worth a column: all but counts; of "train" only losses and norms if there are other splits.

    So too of "validation", besides what a round is chosen by. ``half_ce`` is the cross-entropy again and has a column
    only if it is the metric or the target.
    """
    names = measured(comparison)
    asked = {comparison.metric} | ({comparison.target.metric} if comparison.target else set())
    asked |= {comparison.chosen_by} if comparison.chosen_by else set()
    plain = {"train"} if any(not name.startswith(("train.", *COUNTS)) for name in names) else set()
    plain |= {"validation"} if any(not name.startswith(("train.", "validation.", *COUNTS)) for name in names) else set()

    def wanted(name: str) -> bool:
        split, _, kind = name.rpartition(".")
        if name.startswith(COUNTS):
            return False
        return kind != "half_ce" and (split not in plain or kind in ("ce", "loss", *NORMS))

    return [name for name in names if name in asked or wanted(name)]


def judged(comparison: Comparison) -> list[str]:
    """The metrics of which the last round, the chosen one and the difference to the reference have columns, too.

    Of the samples that methods are judged by: neither training nor validation samples, if there are others. Accuracy
    beside the area under the curve, and a ranking by fewer items than another, have their best value alone; table.csv
    has them all.
    """
    names = chosen(comparison)
    asked = {comparison.metric} | ({comparison.target.metric} if comparison.target else set())
    other = any(not name.startswith(("train.", "validation.", *COUNTS)) for name in names)

    def wanted(name: str) -> bool:
        split, _, kind = name.rpartition(".")
        if name.startswith(COUNTS) or (other and split in ("train", "validation")):
            return False
        if name in asked:
            return True
        measure, at, depth = kind.partition("@")
        if at and any(n.startswith(f"{split}.{measure}@") and int(n.rpartition("@")[2]) > int(depth) for n in names):
            return False
        return kind != "accuracy" or f"{split}.auc" not in names

    return [name for name in names if wanted(name)]


def value(raw: Any) -> float:
    """A measured value as a float. Run directories keep NaN and infinity as text; a missing one is nan."""
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        return math.nan
    try:
        return float(raw)
    except ValueError:
        return math.nan


def number(mean: float, std: float | None = None) -> str:
    """A value, and its spread over seeds if there is one, with as many digits as help."""
    if math.isnan(mean):
        return DASH
    if math.isinf(mean):
        return "∞" if mean > 0 else "−∞"
    fixed = mean == 0 or 1e-3 <= abs(mean) < 100
    text = f"{mean:.4f}" if fixed else f"{mean:.4g}"
    if std is None or math.isnan(std):
        return text
    return f"{text} ± {std:.4f}" if fixed else f"{text} ± {std:.2g}"


def span(low: float, high: float) -> str:
    """An interval as its ends, with their signs: "+0.0510 to +0.0690"."""
    most = max(abs(low), abs(high))
    style = ".4f" if 1e-3 <= most < 100 else ".3g"
    return " to ".join(f"{'−' if end < 0 else '+' if end else ''}{abs(end):{style}}" for end in (low, high))


def size(count: float) -> str:
    """Bytes in decimal units; nothing moved is a dash."""
    if not count or math.isnan(count):
        return DASH
    unit, *larger = "B", "kB", "MB", "GB", "TB"
    while count >= 999.5 and larger:
        count, unit = count / 1000, larger.pop(0)
    return f"{count:.0f} {unit}" if unit == "B" or count >= 99.5 else f"{count:.3g} {unit}"


def seconds(count: float) -> str:
    return DASH if math.isnan(count) else f"{count:.3g}" if count < 99.5 else f"{count:,.0f}"


DURATIONS = (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))
_SHORT = {"days": "d", "hours": "h", "minutes": "min", "seconds": "s"}


def duration_unit(time: float) -> tuple[str, float]:
    """The unit for a time of about so many seconds, and its seconds: minutes from two of them on, and so on."""
    return next((unit for unit in DURATIONS if time >= 2 * unit[1]), DURATIONS[-1])


def duration(time: float) -> str:
    """So many seconds in a fitting unit: "35.2 s", "4.1 h"; an unknown time is a dash."""
    if math.isnan(time):
        return DASH
    name, length = duration_unit(time)
    return f"{seconds(time / length)} {_SHORT[name]}"


def compact(count: int) -> str:
    """A number of samples in at most four characters or so: 950, 12k, 1.2M."""
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if count >= 0.9995 * limit:
            return f"{count / limit:.2g}{unit}" if count < 9.95 * limit else f"{count / limit:.0f}{unit}"
    return str(count)


def one_line(label: object) -> str:
    """A label without line breaks, which no table can hold, and without what a terminal would obey."""
    return visible(" ".join(str(label).split()))


def cut(label: object, most: int) -> str:
    """A label of at most so many characters, for a plot."""
    name = one_line(label) or "(no name)"
    return name if len(name) <= most else name[: most - 1] + "…"


def listed(names: list[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def named(names: list[str], kind: str, most: int = 6) -> str:
    """Names in a title: "a, b and c", long ones cut, or "34 methods" where they are many."""
    return f"{len(names)} {kind}" if len(names) > most else listed([cut(name, 40) for name in names])
