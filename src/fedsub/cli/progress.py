"""Progress of a comparison: bars on a terminal, one line per evaluation elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from fedsub.cli.show import View, number
from fedsub.disk.text import visible
from fedsub.running.callbacks import Callback
from fedsub.study.comparing import slug


class Follow(Callback, AbstractContextManager):
    """Knows which of the runs is going on. Finished runs that are skipped never call a callback."""

    def __init__(self, view: View, labels: Sequence[str], seeds: Sequence[int], rounds: int, metric: str | None):
        self.view, self.rounds, self.metric = view, rounds, metric
        order = [(label, seed) for seed in seeds for label in labels]
        self.runs = {f"{slug(label)}-seed{seed}": (n, label, seed) for n, (label, seed) in enumerate(order, 1)}
        self.title, self.number, self.round, self.begin = "", 0, 0, 0.0
        self.shown: tuple[str, float] | None = None

    def on_start(self, info: dict[str, Any]) -> None:
        self.number, label, seed = self.runs[Path(info["out"]).name]
        one = len(self.runs) == 1
        self.title = visible(f"{label}, seed {seed}") + ("" if one else f", {self.number} of {len(self.runs)}")
        self.round, self.begin, self.shown = info["first"] - 1, time.perf_counter(), None

    def on_round(self, record: dict[str, Any]) -> None:
        self.round = record["round"]
        name = self.metric if self.metric in record else next((k for k in record if "." in k), None)
        if name is not None:
            self.shown = (name, record[name])

    def on_event(self, sentence: str) -> None:
        quiet = ("engine batched", "engine serial is", "engine serial,", "engine serial:", "batched agrees")
        if "because" in sentence or not sentence.startswith(quiet):  # an ordinary choice is in events.jsonl
            self.view.note(f"  {sentence}", "dim")

    @property
    def value(self) -> str:
        return f"{self.shown[0]} {number(self.shown[1])}" if self.shown else ""

    def __exit__(self, *_: object) -> None: ...


class Lines(Follow):
    """``FedSubAvg, seed 1, 3 of 8: round 20 of 200, train.ce 0.6712``"""

    def on_round(self, record: dict[str, Any]) -> None:
        super().on_round(record)
        if any("." in key for key in record):
            self.view.note(f"{self.title}: round {self.round} of {self.rounds}, {self.value}")


def bars(view: View) -> Progress:
    """Bars with what they are about, the time left and a current ``value``."""
    return Progress(
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
        BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=4, max_width=30)),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[value]}", style="cyan", markup=False, table_column=Column(no_wrap=True)),
        expand=True,
        console=view.console,
        transient=True,
        refresh_per_second=5,
    )


class Bars(Follow):
    """A bar for the run and, when there are several, one for all of them."""

    def __init__(self, view: View, *rest: Any):
        super().__init__(view, *rest)
        self.bars = bars(view)
        self.all = None
        if len(self.runs) > 1:
            self.all = self.bars.add_task("All rounds", total=len(self.runs) * self.rounds, value="")
        self.one = self.bars.add_task("Preparing", total=self.rounds, value="")

    def __enter__(self) -> Bars:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def on_start(self, info: dict[str, Any]) -> None:
        super().on_start(info)
        self.bars.reset(self.one, description=self.title, total=self.rounds, completed=self.round, value="")
        self._all()

    def on_round(self, record: dict[str, Any]) -> None:
        super().on_round(record)
        self.bars.update(self.one, completed=self.round, value=self.value)
        self._all()

    def _all(self) -> None:
        if self.all is not None:
            self.bars.update(self.all, completed=(self.number - 1) * self.rounds + self.round)

    def on_end(self, summary: dict[str, Any]) -> None:
        seconds = time.perf_counter() - self.begin
        self.view.note(f"{self.title}: {self.value} after {self.round} rounds, {seconds:.1f} s")


class Silent(Follow):
    def on_event(self, sentence: str) -> None: ...


def follow(view: View, *rest: Any) -> Follow:
    """The right kind for where the output goes."""
    return (Silent if view.quiet else Bars if view.console.is_terminal else Lines)(view, *rest)
