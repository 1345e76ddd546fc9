"""Processes of this machine that share the groups of a cohort: threads would wait for the interpreter's lock.

They are forked when they are first needed, so they have data, method and traced steps without a copy of anything.
What the server sends and what comes back crosses in shared memory. One that dies is forked anew.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import pickle
import signal
import sys
import time
import traceback
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from fedsub.errors import RunError
from fedsub.round.client import ClientHalf
from fedsub.round.crew.base import Crew, Done, Scene
from fedsub.round.crew.parcels import Job, job, opened, perform, shared_of, size_of, to_arrays, to_tree
from fedsub.round.crew.schedule import AHEAD, Event, Schedule
from fedsub.round.crew.slab import Slab
from fedsub.round.crew.threads import Threads
from fedsub.round.engines.base import Engine

SHORT = 0.004  # seconds of a group's work below which other processes are not worth their messages


def can_fork() -> bool:
    """Whether workers can be forked here: on Linux, and not by a process that may have no children."""
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


class Processes(Crew):
    """``count`` processes; groups that are too small or too few for them are trained in this one."""

    def __init__(self, count: int):
        super().__init__()
        self.count = count
        self._here = Threads(1)
        self._pool: Forked | None = None
        self._seconds: dict[int, float] = {}  # of a group's work, by batch size

    def train(self, scene: Scene, engine: Engine, groups: Sequence[slice]) -> Iterator[Done]:
        if scene.narrowed or len(groups) < 2:
            yield from self._here.train(scene, engine, groups)
            return
        width = scene.batches.samples.shape[2]
        if width not in self._seconds:  # what it takes is found out by doing it
            begin = time.process_time()
            yield scene.train(engine, groups[0])
            self._seconds[width], groups = time.process_time() - begin, groups[1:]
        if self._seconds[width] < SHORT:
            yield from self._here.train(scene, engine, groups)
            return
        yield from self._pool_for(scene.half, engine).train(scene, engine, groups)

    def _pool_for(self, half: ClientHalf, engine: Engine) -> Forked:
        if self._pool is None or self._pool.half is not half or engine.name not in self._pool.engines:
            self.close()
            self._pool = Forked(half, {engine.name: engine}, self.count)
        return self._pool

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None


class Forked:
    """The processes, as a `Pool` of a schedule."""

    steals = False  # they are alike, and share this machine's cores

    def __init__(self, half: ClientHalf, engines: dict[str, Engine], count: int):
        self.half, self.engines, self.count = half, engines, count
        self._workers = [_Worker(half, engines) for _ in range(count)]
        self._end = weakref.finalize(self, _end, self._workers)  # also where nobody says `close`
        self._scene: Any = None

    def train(self, scene: Scene, engine: Engine, groups: Sequence[slice]) -> Iterator[Done]:
        shared = shared_of(scene, groups[0])
        self._scene = scene, engine, groups, shared
        for worker in self._workers:
            worker.settle()
            worker.told = False
        for group, (uplink, kept) in Schedule(self, groups):
            yield groups[group], uplink, kept

    def holds(self, worker: int, group: int) -> bool:
        return True

    def send(self, worker: int, group: int) -> None:
        scene, engine, groups, shared = self._scene
        self._workers[worker].send(group, job(scene, engine, groups[group], shared), shared)

    def wait(self, seconds: float | None) -> list[Event]:
        scene, _, groups, _ = self._scene
        by = {w.pipe: n for n, w in enumerate(self._workers) if w.sent}
        found = []
        for pipe in wait(list(by), seconds):
            number = by[pipe]  # type: ignore[index]
            worker = self._workers[number]
            try:
                group, reply, error = worker.receive()
            except (EOFError, OSError):
                worker.close()
                self._workers[number] = _Worker(self.half, self.engines)
                found.append(Event(number))
                continue
            if error is not None:
                found.append(Event(number, group, error=error))
                continue
            size = size_of(reply)
            found.append(Event(number, group, opened(reply, scene.who.take(groups[group])), size=size))
        return found

    def close(self) -> None:
        self._end()


def _end(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.close()


class _Worker:
    """One process, and the shared memory of what goes there and comes back."""

    def __init__(self, half: ClientHalf, engines: dict[str, Engine]):
        self.round, self.jobs, self.replies = Slab(), [Slab() for _ in range(AHEAD)], [Slab() for _ in range(AHEAD)]
        self.sent, self.turn, self.told = 0, 0, False
        context = multiprocessing.get_context("fork")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(self, other, half, engines), daemon=True)
        with warnings.catch_warnings():  # Python warns of threads: of torch's none is at work now
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        other.close()

    def send(self, group: int, work: Job, shared: dict[str, Any]) -> None:
        common = None
        if not self.told:  # nothing of the round before is at work any more
            common, self.told = self.round.put({tree: to_arrays(values) for tree, values in shared.items()}), True
        turn, self.turn, self.sent = self.turn, (self.turn + 1) % AHEAD, self.sent + 1
        with suppress(BrokenPipeError):  # its end is seen where its answer is waited for
            self.pipe.send((group, turn, common, self.jobs[turn].put(work)))

    def receive(self) -> tuple[int, Any, BaseException | None]:
        group, turn, letter, error = self.pipe.recv()
        self.sent -= 1
        return group, None if letter is None else self.replies[turn].get(*letter), error

    def settle(self) -> None:
        """Take back what nobody waited for."""
        with suppress(EOFError, OSError):
            while self.sent:
                self.pipe.recv()
                self.sent -= 1

    def close(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.join()
        for slab in (self.round, *self.jobs, *self.replies):
            slab.close()


def _serve(worker: _Worker, pipe: Connection, half: ClientHalf, engines: dict[str, Engine]) -> None:
    """A worker's life, until the process that forked it ends or ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is answered there
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: not to outlive it
    torch.set_num_threads(1)
    gc.freeze()
    worker.pipe.close()
    shared: dict[str, Any] = {}
    while True:
        try:
            group, turn, common, letter = pipe.recv()
        except EOFError:
            return
        try:
            if common is not None:
                shared = {tree: to_tree(values) for tree, values in worker.round.get(*common).items()}
            reply = worker.replies[turn].put(perform(half, engines, worker.jobs[turn].get(*letter), shared))
            pipe.send((group, turn, reply, None))
        except Exception as error:
            pipe.send((group, turn, None, _portable(error)))


def _portable(error: Exception) -> BaseException:
    """The error, or one that says the same, if it cannot be pickled."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RunError(f"{type(error).__name__}: {error}")
    return error
