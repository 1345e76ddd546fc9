"""Heat: how many clients hold each row, and how unequal that is.

    n_m = |{i : m in S(i)}|            heat of row m
    W_m = sum of w_i over those i      heat weighted by samples
    dispersion = max n_m / min n_m     over rows that somebody holds

(Ding et al., "Federated Submodel Optimization for Hot and Cold Data Features", NeurIPS 2022.)

Everything is counted from the list of held rows, in O(nnz + size): no clients x rows matrix. A
client without samples trains nothing, so it counts neither in N nor in any heat; a padding row is
held by everybody and says nothing about the data, so statistics leave it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsub.data.clients import Array, Clients, Space
from fedsub.data.intact import stretch
from fedsub.disk.files import plain
from fedsub.errors import DataError

_BLOCK = 4_000_000  # rows counted at a time


def row_heat(space: Space, sizes: Array | None = None) -> Array:
    """n_m, the number of clients that hold each row; int64 [size].

    With ``sizes`` (samples of every client) only clients that have samples are counted. A padding
    row has heat N.

        S(0) = [3, 7], S(1) = [3]    ->    n_3 = 2, n_7 = 1, all others 0
    """
    present = np.ones(len(space.counts)) if sizes is None else np.asarray(sizes > 0, np.float64)
    heat = _count(space, present).astype(np.int64)
    if space.padding:
        heat[0] = np.count_nonzero(present)
    return heat


def weighted_heat(space: Space, sizes: Array) -> Array:
    """W_m, the samples w_i of all clients that hold each row; float64 [size]. A padding row has W."""
    weights = np.asarray(sizes, np.float64)
    heat = _count(space, weights)
    if space.padding:
        heat[0] = weights.sum()
    return heat


def _count(space: Space, weights: Array) -> Array:
    """Σ of a client's weight over the clients that hold each row, in blocks of clients: memory stays bounded."""
    heat = np.zeros(space.size)
    into, edges = torch.from_numpy(heat), space.row_offsets
    low = 0
    while low < len(weights):
        high = max(low + 1, int(np.searchsorted(edges, edges[low] + _BLOCK, side="right")) - 1)
        rows = np.array(stretch(space.rows, int(edges[low]), int(edges[high])))
        if len(rows) and int(rows.max()) >= space.size:
            raise DataError(
                f"Space {space.name!r} has {space.size:,} rows, but a client holds row {int(rows.max()):,}; "
                "give the space a larger size."
            )
        into.index_add_(
            0, torch.from_numpy(rows), torch.from_numpy(np.repeat(weights[low:high], space.counts[low:high]))
        )
        low = high
    return heat


@dataclass(frozen=True)
class HeatSummary:
    """Heat of one space, or of all spaces together. Padding rows are left out.

    ``min`` to ``dispersion`` and everything weighted are over *held* rows (heat > 0). When nobody
    holds any row the counts are 0 and the ratios nan.
    """

    name: str
    rows: int
    unheld: int  # rows that no client holds
    single: int  # rows that exactly one client holds
    min: int
    median: float
    mean: float
    max: int
    dispersion: float  # max / min
    sparsity_held: float  # mean of n_m / N over held rows
    sparsity_all: float  # mean of n_m / N over all rows
    weighted_min: float
    weighted_max: float
    weighted_dispersion: float
    hottest: str  # the row with the largest heat, such as "gender=M"
    burst: float | None = None  # N / (n_min K): the multiplier on an update of the coldest row


@dataclass(frozen=True)
class HeatReport:
    """What `summarise` returns: one summary per space and one over all of them."""

    clients: int  # N: clients that have samples
    clients_per_round: int | None
    spaces: tuple[HeatSummary, ...]
    overall: HeatSummary

    @property
    def parameter_dispersion(self) -> float:
        """Dispersion over all parameters of a model with dense layers: N / n_min; see `parameter_heat`."""
        return _ratio(self.clients, self.overall.min)


def summarise(clients: Clients, clients_per_round: int | None = None) -> HeatReport:
    """Heat statistics of every space and of all features together.

    A feature is a row of any space, so the overall dispersion is the hottest row of all spaces over
    the coldest of all: 4,331 on MovieLens-1M, where the hottest feature is "gender=M" and not a movie.
    With ``clients_per_round`` = K also the burst factor N / (n_min K): a row with a single holder
    stands still for about N / K rounds and then takes that many local updates at once.
    """
    population = int(np.count_nonzero(clients.sizes))
    parts: list[tuple[str, Array, Array, str]] = []
    for space in clients.spaces.values():
        skip = int(space.padding)
        heat = row_heat(space, clients.sizes)[skip:]
        label = _label(space, int(heat.argmax()) + skip) if heat.any() else ""
        parts.append((space.name, heat, weighted_heat(space, clients.sizes)[skip:], label))
    each = tuple(_summary(name, heat, mass, label, population, clients_per_round) for name, heat, mass, label in parts)
    label = max(each, key=lambda s: s.max).hottest if each else ""
    heat = np.concatenate([part[1] for part in parts] or [np.zeros(0, np.int64)])
    weighted = np.concatenate([part[2] for part in parts] or [np.zeros(0)])
    overall = _summary("all", heat, weighted, label, population, clients_per_round)
    return HeatReport(population, clients_per_round, each, overall)


def said(report: HeatReport) -> dict[str, Any]:
    """A report as JSON can hold it; `kept` reads it."""
    parts = [asdict(one) for one in (*report.spaces, report.overall)]
    return {"clients": report.clients, "summaries": plain(parts, special=lambda _: None)}


def kept(made: Mapping[str, Any]) -> HeatReport | None:
    """The report that was saved with data (``made`` of their manifest), or None."""
    try:
        found = made["statistics"]["heat"]
        summaries: list[dict[str, Any]] = [
            {k: float("nan") if v is None and k != "burst" else v for k, v in one.items()} for one in found["summaries"]
        ]
        each = [HeatSummary(**one) for one in summaries]
        return HeatReport(int(found["clients"]), None, tuple(each[:-1]), each[-1])
    except (KeyError, TypeError, ValueError, IndexError):
        return None


def _summary(name: str, heat: Array, weighted: Array, label: str, n: int, k: int | None) -> HeatSummary:
    held = heat[heat > 0]
    mass = weighted[heat > 0]
    some = len(held) > 0
    low, high = (int(held.min()), int(held.max())) if some else (0, 0)
    light, heavy = (float(mass.min()), float(mass.max())) if some else (0.0, 0.0)
    return HeatSummary(
        name=name,
        rows=len(heat),
        unheld=len(heat) - len(held),
        single=int(np.count_nonzero(held == 1)),
        min=low,
        median=float(np.median(held)) if some else 0.0,
        mean=float(held.mean()) if some else 0.0,
        max=high,
        dispersion=_ratio(high, low),
        sparsity_held=_ratio(float(held.sum()), len(held) * n),
        sparsity_all=_ratio(float(held.sum()), len(heat) * n),
        weighted_min=light,
        weighted_max=heavy,
        weighted_dispersion=_ratio(heavy, light),
        hottest=label,
        burst=None if k is None else _ratio(n, low * k),
    )


def _ratio(above: float, below: float) -> float:
    return above / below if below else float("nan")


def _label(space: Space, row: int) -> str:
    return f"{space.name}={row if space.vocabulary is None else space.vocabulary[row]}"


@dataclass(frozen=True)
class ParameterHeat:
    """Coldest and hottest parameter of a model."""

    min: int
    max: int

    @property
    def dispersion(self) -> float:
        return _ratio(self.max, self.min)


def parameter_heat(clients: Clients, *, dense: bool = True) -> ParameterHeat:
    """Range of parameter heat of a model whose tables are indexed by these spaces.

    A table's parameters have the heat of their row. Dense parameters (hidden layers, biases) are in
    every submodel: heat N, aggregation coefficient N/n_m = 1. With ``dense`` the hottest parameter
    therefore has heat N and the dispersion is N / n_min, at least the feature dispersion.
    """
    report = summarise(clients)
    low, high = report.overall.min, report.overall.max
    return ParameterHeat(low or report.clients, report.clients) if dense else ParameterHeat(low, high)


def histogram(heat: Array, bins: int = 30, *, padding: bool = False) -> tuple[Array, Array]:
    """(edges [b + 1], counts [b]) of the held rows, in bins of equal width in log(heat).

    Bin j counts ``edges[j] <= heat < edges[j + 1]``. Whole-numbered heat gets whole-numbered edges,
    so that no bin falls between two possible values and stays empty by construction; there may then
    be fewer than ``bins``. ``padding`` leaves row 0 out.
    """
    held = heat[int(padding) :]
    held = held[held > 0]
    if len(held) == 0:
        return np.array([1.0, 2.0]), np.zeros(1, np.int64)
    low, high = float(held.min()), float(held.max())
    if np.issubdtype(heat.dtype, np.integer):
        edges = np.unique(np.round(np.geomspace(low, high + 1, bins + 1)))
    else:
        edges = np.geomspace(low, max(high, low) * (1 + 1e-9), bins + 1)
        edges[0] = low  # geomspace may round the ends inwards
    return edges, np.histogram(held, edges)[0]


def deciles(heat: Array, *, padding: bool = False) -> Array:
    """Tenth of the held rows each row falls in: 0 (coldest) to 9 (hottest), -1 if unheld; int8 [size].

    Rows of equal heat share a decile, that of the middle of their ranks: when 60 % of rows have
    heat 1 they are all in decile 3. Deciles may therefore be empty. ``padding`` gives row 0 a -1.
    """
    out = np.full(len(heat), -1, np.int8)
    held = heat > 0
    held[: int(padding)] = False
    if held.any():
        value = heat[held]
        if np.issubdtype(value.dtype, np.integer) and int(value.max()) <= max(len(value), 1 << 16):
            count = np.bincount(value)  # sorting all rows would take many times as long
        else:
            _, value, count = np.unique(value, return_inverse=True, return_counts=True)
        end = np.cumsum(count)
        # floor(10 * (begin + end) / 2 / total) in whole numbers: no row changes decile by rounding.
        out[held] = (5 * (2 * end - count) // end[-1])[value]
    return out


def plot(clients: Clients, path: str | Path) -> None:
    """Write a PNG: left, rows ranked by heat on log-log axes; right, how many rows have which heat.

    One line per space. With more than seven spaces the smallest ones share the last line.
    """
    from fedsub.data import heatplot  # which builds on this module

    heatplot.plot(clients, path)
