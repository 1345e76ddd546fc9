"""Groups given to whoever is free, results taken in cohort order; what dies is done again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedsub.errors import RunError

BUFFER = 256 << 20  # bytes of results that may wait for those before them
AHEAD = 2  # groups that a worker is given at a time: the next one lies there when it is done
TRIES = 5  # how often a group may take its worker with it
SLOW = 2.0  # times a usual group's time, after which an idle worker does a group again


@dataclass(frozen=True)
class Event:
    """What a worker says: a group is done (``reply``), failed (``error``), or the worker is gone (neither)."""

    worker: int
    group: int = -1
    reply: Any = None
    error: BaseException | None = None
    size: int = 0  # bytes of the reply


class Pool(Protocol):
    """Workers in other processes."""

    count: int
    steals: bool  # whether an idle worker may do again what another one is slow with

    def holds(self, worker: int, group: int) -> bool:
        """Whether a worker has the data of a group."""
        ...

    def send(self, worker: int, group: int) -> None: ...

    def wait(self, seconds: float | None) -> list[Event]:
        """What has happened; at least one event, unless the time is up. One that was gone has been replaced."""
        ...


@dataclass
class Schedule:
    """The groups of one round on a pool."""

    pool: Pool
    groups: Sequence[slice]
    deadline: float | None = None  # seconds from the first group on; what is not there then is left out
    dropped: list[int] = field(default_factory=list)
    by: dict[int, int] = field(default_factory=dict)  # clients trained by worker, of those whose result was taken

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """(group, reply) in order."""
        pool, total = self.pool, len(self.groups)
        todo, done = deque(range(total)), dict[int, tuple[Any, int]]()
        busy: dict[int, dict[int, float]] = {worker: {} for worker in range(pool.count)}
        tries, spent, begin, next_out = [0] * total, list[float](), time.perf_counter(), 0
        while next_out < total:
            if next_out in done:
                reply, _ = done.pop(next_out)
                next_out += 1
                yield next_out - 1, reply
                continue
            if next_out in self.dropped:
                next_out += 1
                continue
            room = self._room(done)
            for worker in sorted(busy, key=lambda w: len(busy[w])):
                while len(busy[worker]) < AHEAD and todo:
                    group = next((g for g in todo if pool.holds(worker, g) and (room or g == next_out)), None)
                    if group is None or (busy[worker] and len(todo) < pool.count and not self._must(busy, group)):
                        break
                    todo.remove(group)
                    busy[worker][group] = time.perf_counter()
                    pool.send(worker, group)
            patience = self._steal(busy, todo, spent)
            if self.deadline is not None:
                left = begin + self.deadline - time.perf_counter()
                if left <= 0:
                    self.dropped = [g for g in range(next_out, total) if g not in done]
                    continue
                patience = left if patience is None else min(left, patience)
            for event in pool.wait(patience):
                if event.group < 0:
                    for group in busy[event.worker]:
                        tries[group] += 1
                        if tries[group] >= TRIES:
                            where = self.groups[group]
                            raise RunError(
                                f"The clients {where.start} to {where.stop - 1} of a cohort ended {TRIES} workers that "
                                "trained them, perhaps for want of memory; lower chunk, or look at their data."
                            )
                        if group not in done and group not in todo and not self._elsewhere(busy, event.worker, group):
                            todo.appendleft(group)
                    busy[event.worker] = {}
                    continue
                since = busy[event.worker].pop(event.group, None)
                if event.error is not None:
                    raise event.error
                if since is None or event.group in done or event.group < next_out:
                    continue  # another one was faster
                spent.append(time.perf_counter() - since)
                done[event.group] = event.reply, event.size
                where = self.groups[event.group]
                self.by[event.worker] = self.by.get(event.worker, 0) + where.stop - where.start

    def _room(self, done: dict[int, tuple[Any, int]]) -> bool:
        """Whether results that cannot be added yet may become more."""
        return len(done) < 2 * self.pool.count or sum(size for _, size in done.values()) < BUFFER

    def _must(self, busy: dict[int, dict[int, float]], group: int) -> bool:
        """Whether nobody who is free could take a group."""
        return not any(not own and self.pool.holds(worker, group) for worker, own in busy.items())

    @staticmethod
    def _elsewhere(busy: dict[int, dict[int, float]], worker: int, group: int) -> bool:
        return any(group in own for other, own in busy.items() if other != worker)

    def _steal(self, busy: dict[int, dict[int, float]], todo: deque[int], spent: list[float]) -> float | None:
        """Have an idle worker do again what takes another one long; returns when to look again."""
        if not self.pool.steals or todo or not spent:
            return None
        usual, now = SLOW * AHEAD * sorted(spent)[len(spent) // 2], time.perf_counter()
        late = sorted((since, group) for own in busy.values() for group, since in own.items())
        soonest = None
        for since, group in late:
            idle = [w for w, own in busy.items() if not own and self.pool.holds(w, group)]
            if not idle or sum(group in own for own in busy.values()) > 1:
                continue
            if now - since < usual:
                soonest = min(soonest or usual, usual - (now - since))
                continue
            busy[idle[0]][group] = now
            self.pool.send(idle[0], group)
        return soonest
