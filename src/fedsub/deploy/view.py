"""What is shown of a deployment: read from the run's directory, the server app's `live.json` and the supervisor's roll.

The page, /metrics and `fedsub deploy status` show this and nothing else.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from fedsub.deploy.outcome import Outcome, live, outcome, roll
from fedsub.deploy.site import Site
from fedsub.disk.files import JsonLines
from fedsub.errors import FedsubError

SPREAD = (1.0, 0.9, 0.5, 0.1, 0.0)  # quantiles of heat that are shown


@dataclass(frozen=True)
class Node:
    """What is known of a client's node. ``lost``: rounds that it was drawn for and brought nothing to."""

    client: str
    name: str = ""
    online: bool = False
    joined: bool = False
    left_out: str = ""
    accepted: int = 0
    rounds: int = 0
    lost: int = 0
    down: int = 0
    up: int = 0


@dataclass(frozen=True)
class Heat:
    """How many clients hold a row: quantiles over the rows that somebody holds, and those rows by rank."""

    space: str
    rows: int
    held: int
    quantiles: tuple[float, ...]
    ranked: np.ndarray = field(repr=False)


@dataclass(frozen=True)
class View:
    name: str
    outcome: Outcome
    now: float
    told: float | None  # when the server app wrote of itself last
    entrance: str
    proxied: bool
    history: list[dict[str, Any]]
    seconds: list[float]  # that rounds took
    cohort: list[int]
    nodes: list[Node]
    counts: dict[str, int]
    refused: list[str]
    heat: list[Heat]
    children: list[dict[str, Any]]
    events: list[tuple[float, str]]  # when, in seconds since 1970, and what

    @property
    def down(self) -> int:
        return sum(int(row.get("down", 0)) for row in self.history)

    @property
    def up(self) -> int:
        return sum(int(row.get("up", 0)) for row in self.history)

    @property
    def metrics(self) -> dict[str, list[tuple[int, float]]]:
        """Every metric by round: the training loss, and what was evaluated."""
        out: dict[str, list[tuple[int, float]]] = {}
        for row in self.history:
            for key, value in row.items():
                if isinstance(value, int | float) and not isinstance(value, bool) and (key == "loss" or "." in key):
                    out.setdefault(key, []).append((int(row.get("round", 0)), float(value)))
        return out

    def latest(self) -> dict[str, float]:
        return {name: points[-1][1] for name, points in self.metrics.items()}

    def left(self) -> float | None:
        """Seconds to the end, at the pace of the last rounds."""
        if not self.seconds or self.outcome.state != "running":
            return None
        return float(np.mean(self.seconds[-10:])) * (self.outcome.rounds - self.outcome.round)


class Watcher:
    """Reads views; a file that did not change is not read again."""

    def __init__(self, site: Site):
        self.site = site
        self._kept: dict[tuple[Path, Callable[[Path], Any]], tuple[Any, Any]] = {}

    def look(self) -> View:
        out, told = self.site.out, roll(self.site).read()
        mine = told.get("out") == str(out)
        said = live(out)
        traffic = self._read(out / "traffic.jsonl", _traffic)
        cohort, by_client = traffic or ([], {})
        clients = said.get("clients")
        events = [(float(e["time"]), str(e["event"])) for e in told.get("events", []) if mine]
        events += [(_seconds(row.get("time")), str(row.get("event", ""))) for row in self._lines(out / "events.jsonl")]
        counts = said.get("counts")
        return View(
            name=self.site.name, outcome=outcome(self.site), now=time.time(), told=_number(said.get("time")),
            entrance=str(told.get("entrance", "")), proxied=bool(told.get("proxied")),
            history=self._lines(out / "metrics.jsonl"),
            seconds=[float(row.get("seconds", 0.0)) for row in self._lines(out / "timing.jsonl")], cohort=cohort,
            nodes=_nodes(clients if isinstance(clients, dict) else {}, by_client),
            counts={str(key): int(n) for key, n in counts.items()} if isinstance(counts, dict) else {},
            refused=[str(text) for text in said.get("refused", [])][-10:],
            heat=self._read(out / "population.safetensors", _heat) or [],
            children=list(told.get("children", [])) if mine and not told.get("ended") else [],
            events=sorted(events)[-30:],
        )  # fmt: skip

    def _lines(self, path: Path) -> list[dict[str, Any]]:
        return self._read(path, JsonLines.read) or []

    def _read(self, path: Path, read: Callable[[Path], Any]) -> Any:
        """None where there is no such file, or only half of it."""
        try:
            found = path.stat()
            mark = (found.st_mtime_ns, found.st_size)
            kept = self._kept.get((path, read))
            if kept is None or kept[0] != mark:
                self._kept[path, read] = kept = (mark, read(path))
            return kept[1]
        except (OSError, FedsubError, ValueError, KeyError, TypeError):
            return None


def _seconds(text: Any) -> float:
    """A time as run directories write it, in seconds since 1970."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError):
        return 0.0


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _traffic(path: Path) -> tuple[list[int], dict[str, Counter[str]]]:
    """(the last cohort, by client: rounds, lost, down, up)."""
    rows, out = JsonLines.read(path), {}
    for row in rows:
        lost = set(row.get("lost", ()))
        for place, client in enumerate(row.get("clients", ())):
            kept = out.setdefault(str(client), Counter())
            kept["rounds"] += 1
            kept["lost"] += client in lost
            kept["down"] += _at(row.get("down"), place)
            kept["up"] += _at(row.get("up"), place)
        for place, client in enumerate(row.get("probed", ())):
            kept = out.setdefault(str(client), Counter())
            kept["down"] += _at(row.get("probe_down"), place)
            kept["up"] += _at(row.get("probe_up"), place)
    return (list(rows[-1].get("clients", [])) if rows else []), out


def _at(values: Any, place: int) -> int:
    return int(values[place]) if isinstance(values, list) and place < len(values) else 0


def _nodes(clients: dict[str, Any], traffic: dict[str, Counter[str]]) -> list[Node]:
    out = []
    for number in sorted({*clients, *traffic}, key=lambda text: (len(text), text)):
        said = clients.get(number)
        said = said if isinstance(said, dict) else {}
        moved = traffic.get(number, Counter())
        out.append(Node(
            number, str(said.get("name", "")), bool(said.get("online")), bool(said.get("joined")),
            str(said.get("left_out") or ""), int(said.get("accepted") or 0), moved["rounds"], moved["lost"],
            moved["down"], moved["up"],
        ))  # fmt: skip
    return out


def _heat(path: Path) -> list[Heat]:
    from fedsub.objective.population import Population

    population, out = Population.open(path), []
    for space, rows in population.rows.items():
        heat = np.asarray(population.heat(space), np.float64)
        held = np.sort(heat[heat > 0])[::-1]
        if len(held):
            spread = tuple(float(q) for q in np.quantile(held, SPREAD))
            out.append(Heat(space, rows, len(held), spread, held))
    return out
