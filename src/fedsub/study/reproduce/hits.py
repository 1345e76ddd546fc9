"""When a run reaches its target: at the first evaluation that holds, and on a smoothed curve."""

from __future__ import annotations

from collections.abc import Sequence

from fedsub.running.result import Result, Target, mean_std

WINDOW = 5


def first(result: Result, target: Target) -> int | None:
    """The first evaluated round at which the target holds."""
    return result.first_round(target)


def smoothed(result: Result, target: Target, window: int = WINDOW) -> int | None:
    """The first evaluated round at which the mean of the last ``window`` evaluations meets the target."""
    rounds, values = result.series(target.metric)
    for end in range(window, len(values) + 1):
        mean = sum(values[end - window : end]) / window
        if target.reached({target.metric: mean}):
            return rounds[end - 1]
    return None


def text(found: Sequence[int | None], last: int) -> str:
    """``110 ± 6`` over the seeds; ``200+`` if none got there; ``110 (2 of 3)`` is the mean of those that did."""
    reached = [float(f) for f in found if f is not None]
    if not reached:
        return f"{last}+"
    mean, std = mean_std(reached)
    shown = f"{mean:.0f}" if mean.is_integer() or mean >= 20 else f"{mean:.1f}"
    if len(reached) < len(found):
        return f"{shown} ({len(reached)} of {len(found)})"
    return f"{shown} ± {std:.0f}" if len(found) > 1 else shown
