"""Trials in this process or in several, one torch thread each. Which of them trains what changes no number.

Workers are spawned, and leave the terminal's group: Ctrl-C reaches only this process, which ends them. If it is
killed itself, they notice and end.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any

from fedsub.disk.functions import import_file, loaded
from fedsub.errors import ConfigError, RunError
from fedsub.running.callbacks import Callback
from fedsub.study.tuning.trials import Bench, Job, Trial, perform, read


class Watch:
    """Follows a search; every hook is optional."""

    def on_phase(self, title: str, total: int, done: int) -> None: ...
    def on_jobs(self, jobs: Sequence[Job]) -> None: ...  # those that are to be trained now
    def on_round(self, name: str, round: int) -> None: ...  # of the job with this name; perhaps in another thread
    def on_trial(self, job: Job, trial: Trial) -> None: ...
    def on_note(self, sentence: str) -> None: ...


class Crew(AbstractContextManager):
    """Those who train: this process, or ``workers`` others that stay until the end of the phase."""

    def __init__(self, bench: Bench, workers: int, watch: Watch | None = None):
        """With ``watch`` its ``on_round`` is called for every round of every trial."""
        self.bench, self.workers, self.watch = bench, workers, watch
        self._pool: ProcessPoolExecutor | None = None
        self._said: Any = None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._pool is None:
            return
        if self._said is not None:
            self._said.put(None)
        processes = list((getattr(self._pool, "_processes", None) or {}).values())
        manager = getattr(self._pool, "_executor_manager_thread", None)
        self._pool.shutdown(wait=kind is None, cancel_futures=True)
        if kind is not None:  # Ctrl-C, or an error: what is being trained is trained again on resume
            for process in processes:
                process.terminate()
            for process in processes:
                process.join(10)
            if manager is not None:  # else it may close its pipe just when Python, at its end, writes to it
                manager.join(10)

    def perform(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Trial]]:
        """The trials as they are finished."""
        if self._pool is None and (self.workers == 1 or len(jobs) < 2):
            for job in jobs:
                yield job, perform(_told(self.bench, job, self.watch and self.watch.on_round), job)
            return
        _check_portable(self.bench, jobs)
        with _without_interrupt():
            if self._pool is None:
                context = get_context("spawn")
                if self.watch is not None:
                    self._said = context.Queue()
                    threading.Thread(target=self._listen, daemon=True).start()
                self._pool = ProcessPoolExecutor(
                    self.workers, context, _begin, (Files(loaded()), self.bench, self._said)
                )
            futures = {self._pool.submit(_work, job): job for job in jobs}
        for future in as_completed(futures):
            yield futures[future], future.result()

    def _listen(self) -> None:
        """Pass on what the workers say about their rounds."""
        assert self.watch is not None
        while (said := self._said.get()) is not None:
            self.watch.on_round(*said)


class _Rounds(Callback):
    """Tells the number of every round that is done, and where a resumed run begins."""

    def __init__(self, name: str, tell: Any):
        self.name, self.tell = name, tell

    def on_start(self, info: dict[str, Any]) -> None:
        self.tell(self.name, info["first"] - 1)

    def on_round(self, record: dict[str, Any]) -> None:
        self.tell(self.name, record["round"])


def _told(bench: Bench, job: Job, tell: Any) -> Bench:
    if tell is None:
        return bench
    return replace(bench, options={**bench.options, "callbacks": [_Rounds(job.name, tell)]})


def run_all(crew: Crew, jobs: Sequence[Job], watch: Watch, title: str) -> dict[str, Trial]:
    """The trials by name; those with a record are read, the others trained."""
    bench = crew.bench
    todo = {job.name: job for job in jobs}
    done: dict[str, Trial] = {}
    for name, job in todo.items():
        if (trial := read(bench, job)) is not None:
            done[name] = trial
    watch.on_phase(title, len(todo), len(done))
    open_jobs = [job for name, job in todo.items() if name not in done]
    watch.on_jobs(open_jobs)
    try:
        for job, trial in crew.perform(open_jobs):
            done[job.name] = trial
            watch.on_trial(job, trial)
    except BrokenProcessPool as error:
        kept = "Without an output directory nothing is kept; give one"
        if bench.folder is not None:
            kept = f"The finished trials are kept in {bench.folder}; go on with resume"
        raise RunError(
            f"A worker process ended before its trial did ({len(done)} of {len(todo)} were finished): it was killed, "
            f"memory ran out, or it could not start. {kept}, and with fewer workers if memory is short. A Python "
            'script must call tune under: if __name__ == "__main__":'
        ) from error
    return done


_bench: Bench | None = None
_said: Any = None


class Files:
    """Files of the user's own, imported where this is unpickled: before the objects of their classes behind it."""

    def __init__(self, files: Mapping[str, Path]):
        for name, file in files.items():
            with suppress(Exception):  # one that nothing needs must not end the worker
                import_file(file, name)
        self.files = files

    def __reduce__(self) -> Any:
        return Files, (self.files,)


def _begin(files: Files, bench: Bench, said: Any = None) -> None:
    """In a new worker process."""
    global _bench, _said
    import torch

    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _bench, _said = bench, said


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _work(job: Job) -> Trial:
    assert _bench is not None
    return perform(_told(_bench, job, _said and (lambda *said: _said.put(said))), job)


@contextmanager
def _without_interrupt() -> Iterator[None]:
    """Ctrl-C waits while workers start; they inherit that they ignore it, until they have left our group."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _Nowhere:
    def write(self, data: Any, /) -> int:
        return memoryview(data).nbytes


def _check_portable(bench: Bench, jobs: Sequence[Job]) -> None:
    for what, value in (("objective", bench.objective), ("methods", [job.method for job in jobs])):
        try:
            pickle.Pickler(_Nowhere(), pickle.HIGHEST_PROTOCOL).dump(value)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"The {what} cannot be sent to worker processes ({error}); define the classes and functions at the top "
                "of a module, not within a function or as a lambda, or use workers=1."
            ) from error
