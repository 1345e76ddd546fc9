"""What attacks found: a row by protection and seed, and how such rows are shown."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

import numpy as np

Row = dict[str, Any]


@dataclass(frozen=True)
class Attacked:
    """One row per protection and seed: "protection", "seed", and a number for every attack that had something to do.

    ``metric`` is what the task is measured by, "" where it is not.
    """

    rows: tuple[Row, ...]
    metric: str
    settings: Mapping[str, Any]

    def protections(self) -> list[str]:
        return list(dict.fromkeys(row["protection"] for row in self.rows))

    def of(self, protection: str, what: str) -> list[float]:
        """The values of the seeds; empty where there are none, such as attacks on nobody."""
        return [row[what] for row in self.rows if row["protection"] == protection and what in row]

    def plain(self) -> dict[str, Any]:
        return {"metric": self.metric, "settings": dict(self.settings), "rows": list(self.rows)}

    def table(self, columns: Sequence[str], *, spread: bool = True) -> list[list[str]]:
        """Cells by protection: means over seeds, ± the standard deviation; "–" where there is nothing to attack."""
        return [[name, *[_cell(self.of(name, what), spread) for what in columns]] for name in self.protections()]

    def csv(self, columns: Sequence[str]) -> str:
        """A line per protection and seed."""
        text = StringIO(newline="")
        writer = csv.DictWriter(text, ["protection", "seed", *columns])
        writer.writeheader()
        writer.writerows(self.rows)
        return text.getvalue()

    def draw(self, axes: Any, places: np.ndarray, what: str, **look: Any) -> None:
        """A mark by protection at these places; a bar reaches from the lowest to the highest seed."""
        some = [
            (y, values) for y, name in zip(places, self.protections(), strict=True) if (values := self.of(name, what))
        ]
        if not some:
            return
        middle = np.array([np.mean(values) for _, values in some])
        ends = np.array([[np.mean(v) - min(v), max(v) - np.mean(v)] for _, v in some]).T
        axes.errorbar(middle, [y for y, _ in some], xerr=ends, fmt="o", ms=4.5, lw=1.2, capsize=0, **look)


def _cell(values: list[float], spread: bool) -> str:
    if not values:
        return "–"
    mean = f"{np.mean(values):.3f}"
    return mean if len(values) == 1 or not spread else f"{mean} ± {np.std(values, ddof=1):.3f}"
