"""The faster engine, found by trying both."""

from __future__ import annotations

import time
from collections.abc import Callable

from fedsub.round.engines.base import Engine

Groups = Callable[[Engine], list[slice]]
Run = Callable[[Engine, slice], object]


class Auto:
    """Times serial and batched on the first cohort and keeps the faster; ``chosen`` records which."""

    def __init__(self, serial: Engine, batched: Engine):
        self.serial, self.batched = serial, batched
        self.chosen: Engine | None = None
        self.on_choice: Callable[[str], None] = lambda sentence: None

    @property
    def name(self) -> str:
        return "auto" if self.chosen is None else self.chosen.name

    def keep(self, name: str) -> None:
        """Use the engine that was chosen before (by an earlier session of the same run)."""
        self.chosen = self.serial if name == "serial" else self.batched

    def settle(self, clients: int, groups: Groups, run: Run) -> None:
        """Choose, if that is not done yet: ``run`` does the work of one of an engine's groups."""
        if self.chosen is not None:
            return
        cost = {
            "batched": _seconds(self.batched, groups(self.batched), run) / clients,
            "serial": _seconds(self.serial, groups(self.serial)[:8], run) / min(clients, 8),
        }
        best = min(cost, key=lambda name: cost[name])
        self.keep(best)
        listed = ", ".join(f"{name} {1e3 * seconds:.3g} ms" for name, seconds in cost.items())
        self.on_choice(f"engine {best} is the faster one (a client's round: {listed})")


def _seconds(engine: Engine, groups: list[slice], run: Run) -> float:
    """CPU seconds, after a first use that traces and warms up."""
    spent = 0.0
    for _ in range(2):
        start = time.process_time()
        for where in groups:
            run(engine, where)
        spent = time.process_time() - start
    return spent
