"""What the plots draw: curves over the seeds of a method, and values by heat decile."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedsub.running.result import Result
from fedsub.study.report.words import value

if TYPE_CHECKING:
    from fedsub.study.comparing import Comparison

Points = list[tuple[float, float]]


@dataclass
class Curve:
    """Mean, lowest and highest value of the seeds where all have one; ``tails`` are the seeds beyond."""

    x: list[float] = field(default_factory=list)
    mean: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    tails: list[Points] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.x or self.tails)

    def add(self, x: float, values: Sequence[float]) -> None:
        """The values of the seeds at one place."""
        self.x.append(x)
        self.mean.append(sum(values) / len(values))
        self.low.append(min(values))
        self.high.append(max(values))

    def values(self) -> list[float]:
        return [*self.low, *self.high, *(y for tail in self.tails for _, y in tail)]

    def trained(self) -> list[float]:
        """The values after the start, if there are enough: the jump from an untrained model hides what follows."""
        later = [*self.low[1:], *self.high[1:], *(y for tail in self.tails for _, y in tail)]
        return later if len(self.x) > 4 else self.values()


Position = Callable[[Result], Mapping[int, float]]


def rounds(result: Result) -> dict[int, float]:
    """The position of each round on an axis of rounds: itself."""
    return {r["round"]: float(r["round"]) for r in result.history}


def megabytes(result: Result) -> dict[int, float]:
    """Megabytes, down and up, that a client in every round would have moved after each round."""
    total, out = 0.0, {}
    for r in result.history:
        total += (r["down"] + r["up"]) / max(r["clients"], 1) / 1e6
        out[r["round"]] = total
    return out


def curve(results: Sequence[Result], metric: str, position: Position = rounds) -> Curve:
    """The seeds of one method together. NaN and infinity are gaps; a seed with nothing else is left out.

    A mean over those seeds that happen to last longest would jump where another one ends, so there each
    seed goes on alone.
    """
    seeds: list[dict[int, tuple[float, float]]] = []
    for result in results:
        at = position(result)
        pairs = zip(*result.series(metric), strict=True)
        if points := {n: (at[n], y) for n, y in pairs if math.isfinite(y) and n in at}:
            seeds.append(points)
    out = Curve()
    shared = sorted(set.intersection(*(set(points) for points in seeds))) if seeds else []
    for n in shared:
        xs, ys = zip(*(points[n] for points in seeds), strict=True)
        out.add(sum(xs) / len(xs), ys)
    last = shared[-1] if shared else -1
    for points in seeds:
        if any(n > last for n in points):
            out.tails.append([points[n] for n in sorted(points) if n >= last])
    return out


def positive(found: Curve) -> Curve:
    """Without the start at zero, which a logarithmic axis cannot show."""
    keep = [i for i, x in enumerate(found.x) if x > 0]
    parts = [[part[i] for i in keep] for part in (found.x, found.mean, found.low, found.high)]
    return Curve(*parts, tails=[[p for p in tail if p[0] > 0] for tail in found.tails])


@dataclass(frozen=True)
class Decile:
    """A group of samples by their coldest feature: −1 unseen in training, 0 coldest tenth … 9 hottest."""

    group: int
    samples: int


def decile_metric(comparison: Comparison, metric: str) -> str | None:
    """Which metric of the final evaluation stands for ``metric`` by decile; None if there is none.

    Of training metrics it is the one on test samples, if there are any: cold features are learned by
    heart on the samples that were trained on.
    """
    split, _, kind = metric.rpartition(".")
    order = [split] if split not in ("", "train") else []
    for name in dict.fromkeys([*order, "test", "train", split]):
        if any(_measured(r, name, kind) for results in comparison.results.values() for r in results):
            return f"{name}.{kind}"
    return None


def decile_groups(comparison: Comparison, metric: str) -> list[Decile]:
    """The groups with samples, unseen features first, then from coldest to hottest.

    Where runs group their samples differently, the finest grouping counts: to a centralised run, with all
    data at one client, every feature may have the same heat.
    """
    split, _, _ = metric.rpartition(".")
    every = [_deciles(r, split) for results in comparison.results.values() for r in results]
    return max(every, key=len, default=[])


def by_decile(results: Sequence[Result], metric: str, groups: list[Decile]) -> dict[int, list[float]]:
    """The finite values of each group, one per seed, of the runs that have just these groups."""
    split, _, kind = metric.rpartition(".")
    out: dict[int, list[float]] = {}
    for result in results:
        if _deciles(result, split) != groups:
            continue
        for group, y in _measured(result, split, kind).items():
            out.setdefault(group, []).append(y)
    return out


def _deciles(result: Result, split: str) -> list[Decile]:
    found = (Decile(g["group"], g.get("samples", 0)) for g in _groups(result, split))
    return sorted((d for d in found if d.samples), key=lambda d: d.group)


def _groups(result: Result, split: str) -> list[dict]:
    part = result.final.get(split)
    return (part.get("deciles") or []) if isinstance(part, dict) else []


def _measured(result: Result, split: str, kind: str) -> dict[int, float]:
    found = {g["group"]: value(g.get(kind)) for g in _groups(result, split)}
    return {group: y for group, y in found.items() if math.isfinite(y)}
