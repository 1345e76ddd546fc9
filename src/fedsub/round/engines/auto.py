"""The faster engine, found by trying both."""

from __future__ import annotations

import time
from collections.abc import Callable

from fedsub.round.engines.base import Engine, Groups, Run


class Auto(Engine):
    """Times serial and batched on the first cohort and keeps the faster; ``chosen`` records which."""

    def __init__(self, serial: Engine, batched: Engine):
        self.serial, self.batched = serial, batched
        self.chosen: Engine | None = None
        self.on_choice: Callable[[str], None] = lambda sentence: None

    @property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return "auto" if self.chosen is None else self.chosen.name

    def keep(self, name: str) -> Engine:
        """Use the engine that was chosen before (by an earlier session of the same run)."""
        self.chosen = self.serial if name == "serial" else self.batched
        return self.chosen

    def recall(self, before: str, tell: Callable[[str], None]) -> None:
        self.on_choice = tell
        if before:
            self.keep(before)

    def settle(self, clients: int, groups: Groups, run: Run) -> Engine:
        """The faster one of both; the first cohort is trained by both to find out."""
        if self.chosen is not None:
            return self.chosen
        cost = {
            "batched": _seconds(self.batched, groups(self.batched), run) / clients,
            "serial": _seconds(self.serial, groups(self.serial)[:8], run) / min(clients, 8),
        }
        best = min(cost, key=lambda name: cost[name])
        chosen = self.keep(best)
        listed = ", ".join(f"{name} {1e3 * seconds:.3g} ms" for name, seconds in cost.items())
        self.on_choice(f"engine {best} is the faster one (a client's round: {listed})")
        return chosen


def _seconds(engine: Engine, groups: list[slice], run: Run) -> float:
    """CPU seconds, after a first use that traces and warms up."""
    spent = 0.0
    for _ in range(2):
        start = time.process_time()
        for where in groups:
            run(engine, where)
        spent = time.process_time() - start
    return spent
