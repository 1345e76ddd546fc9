"""Threads that share the groups of a cohort."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Workers:
    """Threads that take tasks in order; results come back in order, so nothing depends on their number.

    Torch releases the interpreter lock inside operations. Each thread should own its module copies, because swapping
    parameters changes a module while it runs.
    """

    def __init__(self, count: int):
        self.count = max(1, count)
        self._pool = ThreadPoolExecutor(self.count) if self.count > 1 else None

    def map(self, work: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        if self._pool is None:
            yield from map(work, tasks)
            return
        waiting: deque[Future[R]] = deque()
        for task in tasks:  # bounded: at most two finished results per worker wait in memory
            waiting.append(self._pool.submit(work, task))
            if len(waiting) > 2 * self.count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
