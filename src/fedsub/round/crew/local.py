"""The crew of a run on this machine."""

from __future__ import annotations

from fedsub.round.crew.base import Crew
from fedsub.round.crew.processes import Processes, can_fork
from fedsub.round.crew.threads import Threads
from fedsub.round.engines.base import Plan
from fedsub.trees import Tree


def crew_of(workers: int, plan: Plan, params: Tree, *, compiled: bool) -> Crew:
    """Processes where they can be forked and what is trained lies in memory that they share; else threads.

    A process would compile every step for itself.
    """
    if workers == 1:
        return Threads(1)
    if not compiled and can_fork() and all(value.device.type == "cpu" for value in params.values()):
        return Processes(workers)
    # Torch's own generator belongs to the process: threads would draw from it in any order.
    return Threads(1 if plan.random else workers)
