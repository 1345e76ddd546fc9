"""Interleaved timing: contenders take turns, so that a busy machine slows all alike.

CPU time of the process is measured, with one torch thread. The minimum over rounds is the least disturbed
one and is what ratios are made of; the median says how noisy the machine was.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedsub.round.quiet import one_thread
from fedsub.study.bench.contenders import Contender


@dataclass
class Timing:
    """CPU seconds of single rounds. ``warm_up`` is what was not counted: first rounds, compiling."""

    name: str
    rounds: list[float] = field(default_factory=list)
    warm_up: float = 0.0

    @property
    def best(self) -> float:
        return min(self.rounds)

    @property
    def median(self) -> float:
        return float(np.median(self.rounds))


def interleave(
    contenders: Sequence[Contender],
    repetitions: int,
    *,
    burst: int = 1,
    warm_up: int = 2,
    sparing: dict[str, int] | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> dict[str, Timing]:
    """Time contenders in ``repetitions`` turns of ``burst`` rounds each.

    A burst of several lets short rounds find their data in the cache, as in real training. ``sparing``
    gives slow contenders fewer turns, of one round. All do the rounds 1, 2, 3, …, so that fedsub's
    engines train the same cohorts.
    """
    sparing = sparing or {}
    out = {c.name: Timing(c.name) for c in contenders}
    with one_thread():
        for contender in contenders:
            progress(f"{contender.name}: warm-up")
            for number in range(1, (1 if contender.name in sparing else warm_up) + 1):
                out[contender.name].warm_up += cpu_seconds(contender, number)
        for turn in range(repetitions):
            for contender in contenders:
                slow = contender.name in sparing
                if slow and turn >= sparing[contender.name]:
                    continue
                progress(f"{contender.name}: turn {turn + 1} of {repetitions}")
                first = warm_up + 1 + turn * burst
                with _no_collection():
                    spent = [cpu_seconds(contender, first + k) for k in range(1 if slow else burst)]
                out[contender.name].rounds += spent
    return out


def cpu_seconds(contender: Contender, number: int) -> float:
    start = time.process_time()
    contender.round(number)
    return time.process_time() - start


class _no_collection:
    """Nobody pays for the garbage of the one before."""

    def __enter__(self) -> None:
        gc.collect()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        gc.enable()
