"""Threads of this process that share the groups of a cohort."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from fedsub.round.crew.base import Crew, Done, Scene
from fedsub.round.engines.base import Engine


class Threads(Crew):
    """Torch releases the interpreter lock inside operations. Each thread owns its module copies, because swapping
    parameters changes a module while it runs.
    """

    def __init__(self, count: int):
        super().__init__()
        self.count = max(1, count)
        self._pool = ThreadPoolExecutor(self.count) if self.count > 1 else None

    def train(self, scene: Scene, engine: Engine, groups: Sequence[slice]) -> Iterator[Done]:
        if self._pool is None:
            yield from (scene.train(engine, where) for where in groups)
            return
        waiting: deque[Future[Done]] = deque()
        for where in groups:  # bounded: at most two finished results per worker wait in memory
            waiting.append(self._pool.submit(scene.train, engine, where))
            if len(waiting) > 2 * self.count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
