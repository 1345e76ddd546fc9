"""`run`: train one method, with evaluation, a run directory, checkpoints and resume."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsub.callbacks import Callback
from fedsub.checkpoint import Checkpoints, Snapshot
from fedsub.core import Method
from fedsub.data.clients import Clients
from fedsub.engines.setup import Auto, choose
from fedsub.errors import CheckpointError, ConfigError, RunError
from fedsub.evaluate import Evaluate, Evaluator
from fedsub.files import JsonLines
from fedsub.objective import Objective
from fedsub.problem import Problem
from fedsub.result import Result, Target
from fedsub.rounds import RoundReport, Trainer
from fedsub.rundir import RunDir


class Interrupted(RunError):
    """The run was stopped by Ctrl-C after a checkpoint; it can be resumed."""


def run(
    method: Method,
    objective: Objective,
    clients: Clients,
    *,
    rounds: int,
    test: Clients | None = None,
    splits: dict[str, Clients] | None = None,
    seed: int = 0,
    engine: str = "auto",
    chunk: int | None = None,
    workers: int = 1,
    compile: bool = False,
    device: str | torch.device = "cpu",
    evaluate: Evaluate | None = None,
    target: str | Target | None = None,
    stop_at_target: bool = False,
    dropout: float = 0.0,
    on_bad_update: str = "skip",
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    checkpoint_every: int = 10,
    callbacks: Sequence[Callback] = (),
    copy: bool = True,
    settings: dict[str, Any] | None = None,
) -> Result:
    """Train ``objective`` with ``method`` on ``clients`` for ``rounds`` rounds.

    Evaluated are the splits "train" (``clients``) and, if given, "test"; or those in ``splits``. With
    ``out`` everything is written to a run directory, and ``resume=True`` goes on from its newest intact
    checkpoint, giving the same numbers as a run that was never interrupted. ``workers`` (threads, each
    with one torch thread) and ``chunk`` change the speed and no result. ``dropout`` is the chance that a
    sampled client never delivers. ``on_bad_update``: "skip" leaves out an update with NaN or infinity
    and counts it, "raise" stops. ``copy=False`` trains the module's own parameters, for tables so large
    that a second copy does not fit. ``settings`` is kept in the run's configuration as given.
    """
    _check_arguments(rounds, dropout, on_bad_update, checkpoint_every)
    _check_device(device)
    goal = Target.parse(target) if target is not None else None
    problem = Problem.bind(objective, clients.pooled() if method.pooled else clients)
    params = problem.params(torch.device(device), copy=copy)
    if splits is None:
        splits = {"train": clients} | ({"test": test} if test is not None else {})
    plan = evaluate or Evaluate()
    config = {
        "method": method.describe(),
        "seed": seed,
        "rounds": rounds,
        "engine": engine,
        "device": str(device),
        "evaluate": {"every": plan.every, "samples": plan.samples, "final_samples": plan.final_samples},
        "splits": {name: part.fingerprint for name, part in splits.items()},
        "data": clients.fingerprint,
        "parameters": {n: [list(p.shape), str(p.dtype).removeprefix("torch.")] for n, p in params.items()},
        "target": str(goal) if goal else None,
        "stop_at_target": stop_at_target,
        "dropout": dropout,
        "on_bad_update": on_bad_update,
        "settings": settings or {},
    }
    with one_thread():
        session = _Session(problem, method, params, config, callbacks, out, checkpoint_every, resume)
        try:
            choice = choose(
                problem,
                method,
                params,
                engine=engine,
                chunk=chunk,
                workers=workers,
                compile=compile,
                seed=seed,
            )
            session.event(choice.reason)
            if choice.fallback and engine == "batched":
                warnings.warn(choice.reason, stacklevel=2)
            trainer = Trainer(
                problem,
                method,
                params,
                choice.engine,
                seed=seed,
                dropout=dropout,
                on_bad_update=on_bad_update,
            )
            evaluator = Evaluator(problem, splits, plan, choice.columns, clients)
            return session.train(trainer, evaluator, rounds, goal, stop_at_target)
        finally:
            session.close()


def _check_arguments(rounds: int, dropout: float, on_bad_update: str, checkpoint_every: int) -> None:
    if rounds < 1:
        raise ConfigError(f"rounds must be at least 1, got {rounds}.")
    if not 0 <= dropout < 1:
        raise ConfigError(f"dropout is the chance that a client never delivers: 0 ≤ dropout < 1, got {dropout}.")
    if on_bad_update not in ("skip", "raise"):
        raise ConfigError(f'on_bad_update must be "skip" or "raise", got {on_bad_update!r}.')
    if checkpoint_every < 1:
        raise ConfigError(f"checkpoint_every must be at least 1, got {checkpoint_every}.")


def _check_device(device: str | torch.device) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as err:
        reason = str(err).splitlines()[0]
        raise ConfigError(
            f'Cannot use device "{device}": {reason}. Give "cpu", or one that torch can see here.'
        ) from err


class _Session:
    """One process's share of a run: files, checkpoints, callbacks and the loop over rounds."""

    def __init__(self, problem, method, params, config, callbacks, out, every: int, resume: bool):
        self.problem, self.method, self.params, self.config = problem, method, params, config
        self.callbacks, self.every = callbacks, every
        self.history: list[dict[str, Any]] = []
        self.events: list[str] = []
        self.first, self.spent, self.engine_name = 1, 0.0, ""
        self.moved: dict[str, list[torch.Tensor]] = {name: [] for name in problem.tables}
        self.dir = RunDir(out) if out is not None else None
        self.saved: Checkpoints | None = None
        self.restored: Snapshot | None = None
        if self.dir is None:
            return
        if self.dir.started and not resume:
            raise CheckpointError(
                f"{self.dir.path} holds a run already; pass resume=True to go on with it, or choose another directory."
            )
        self.dir.start(config)
        try:
            self.saved = Checkpoints(self.dir.checkpoints)
            self._restore()
        except BaseException:
            self.dir.close()
            raise

    def _restore(self) -> None:
        assert self.dir is not None
        assert self.saved is not None
        if self.saved.latest_round() is None:
            self.dir.rewind(None)
            return
        tables = {name: self.params[name] for name in self.problem.tables}
        snapshot, sentences = self.saved.load(into=tables)
        for sentence in sentences:
            self.event(sentence)
        for name in self.problem.dense:
            self.params[name].copy_(snapshot.tensors[name])
        self.dir.rewind(snapshot.meta["files"])
        self.history = JsonLines.read(self.dir.path / "metrics.jsonl")
        self.first, self.spent = snapshot.round + 1, snapshot.meta["seconds"]
        self.engine_name = snapshot.meta["engine"]
        self.restored = snapshot
        self.event(f"resumed after round {snapshot.round}")

    def train(
        self, trainer: Trainer, evaluator: Evaluator, rounds: int, goal: Target | None, stop_at_target: bool
    ) -> Result:
        engine = trainer.engine
        if isinstance(engine, Auto):
            engine.on_choice = self.event
            if self.engine_name:
                engine.keep(self.engine_name)
        if self.restored is not None:
            for name, value in self.restored.tensors.items():
                if name.startswith("server/"):
                    trainer.state[name.removeprefix("server/")].copy_(value)
        self._tell("on_start", self._info(rounds))
        start = time.perf_counter() - self.spent
        done = stop_at_target and goal is not None and any(map(goal.reached, self.history))
        number = self.first - 1
        with deferred_interrupt() as interrupted:
            if not self.history:
                self._record({"round": 0, "loss": None, "clients": 0, "down": 0, "up": 0, **evaluator(self.params)})
            while number < rounds and not done:
                number += 1
                begin, cpu = time.perf_counter(), time.process_time()
                report = trainer.round(number)
                record = self._describe(number, report)
                self.spent = time.perf_counter() - start
                last = number == rounds
                if number % evaluator.plan.every == 0 or last:
                    record |= evaluator(self.params)
                    done = stop_at_target and goal is not None and goal.reached(record)
                self._note(report)
                self._record(record, report, time.perf_counter() - begin, time.process_time() - cpu)
                if number % self.every == 0 or last or done or interrupted():
                    self._save(trainer, number)
                if interrupted() and not last and not done:
                    raise Interrupted(self._how_to_resume(number))
            final = evaluator.final(self.params)
        self._warn_of_divergence()
        result = Result(
            method=self.method.name,
            seed=self.config["seed"],
            history=self.history,
            final=final,
            seconds=time.perf_counter() - start,
            engine=engine.name,
            events=self.events,
            path=self.dir.path if self.dir else None,
            peak_bytes=peak_memory(),
            params=self.params,
            problem=self.problem,
        )
        if self.dir is not None:
            self.dir.finish(result.summary())
        self._tell("on_end", result.summary())
        return result

    def _warn_of_divergence(self) -> None:
        """A table of best values would hide that training only made things worse."""
        for metric in ("train.ce", "train.loss"):
            measured = [r[metric] for r in self.history if isinstance(r.get(metric), float)]
            if len(measured) > 1 and not measured[-1] <= measured[0]:
                self.event(
                    f"diverged: {metric} ended at {measured[-1]:.4g}, above {measured[0]:.4g} before training; "
                    "lower lr, or scale plain value columns"
                )

    def _describe(self, number: int, report: RoundReport) -> dict[str, Any]:
        return {
            "round": number,
            "loss": report.loss,
            "clients": len(report.clients),
            "down": int(report.down.sum()),
            "up": int(report.up.sum()),
            "lost": report.lost,
            "rejected": len(report.rejected),
        }

    def _note(self, report: RoundReport) -> None:
        if len(report.rejected):
            named = ", ".join(str(self.problem.clients.client_ids[c]) for c in report.rejected[:5])
            self.event(f"left out {len(report.rejected)} update(s) with NaN or infinity, of client(s) {named}")
        if self.saved is not None:
            for name, rows in report.moved.items():
                self.moved[name].append(rows)

    def _record(
        self,
        record: dict[str, Any],
        report: RoundReport | None = None,
        seconds: float = 0.0,
        cpu: float = 0.0,
    ) -> None:
        self.history.append(record)
        if self.dir is not None:
            self.dir.log_metrics(record)
            if report is not None:
                traffic = {
                    "clients": report.clients.tolist(),
                    "down": report.down.tolist(),
                    "up": report.up.tolist(),
                }
                self.dir.log_traffic({"round": record["round"], **traffic})
                self.dir.log_timing(
                    {"round": record["round"], "seconds": seconds, "cpu": cpu, "peak_bytes": peak_memory()}
                )
        self._tell("on_round", record)

    def _save(self, trainer: Trainer, number: int) -> None:
        if self.saved is None or self.dir is None:
            return
        self.dir.flush()
        moved = {name: np.unique(torch.cat(rows).cpu().numpy()) for name, rows in self.moved.items() if rows}
        tensors = {name: self.params[name] for name in self.problem.dense}
        tensors |= {f"server/{name}": value for name, value in trainer.state.items()}
        meta = {"files": self.dir.positions(), "seconds": self.spent, "engine": trainer.engine.name}
        tables = {name: self.params[name] for name in self.problem.tables}
        self.saved.save(Snapshot(number, tensors, tables, meta), moved)
        self.moved = {name: [] for name in self.problem.tables}

    def event(self, sentence: str) -> None:
        self.events.append(sentence)
        if self.dir is not None:
            self.dir.log_event(sentence)
        self._tell("on_event", sentence)

    def close(self) -> None:
        if self.dir is not None:
            self.dir.close()

    def _tell(self, hook: str, value: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, hook)(value)

    def _info(self, rounds: int) -> dict[str, Any]:
        out = str(self.dir.path) if self.dir else None
        return {
            "method": self.method.name, "seed": self.config["seed"], "rounds": rounds, "first": self.first, "out": out,
        }  # fmt: skip

    def _how_to_resume(self, number: int) -> str:
        if self.dir is None:
            return f"Stopped after round {number}; without an output directory there is nothing to resume."
        return f"Stopped after round {number}, which is saved. Go on with: fedsub resume {self.dir.path}"


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread while training: small operations do not gain from more, and sums keep their order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def deferred_interrupt():
    """Ctrl-C is answered between rounds, when the state is whole; a second one stops at once.

    Nested (a run within a comparison), the inner one sees what was pressed before it began, and passes on
    what it did not answer.
    """
    pressed = False
    before = signal.getsignal(signal.SIGINT)
    outer = getattr(before, "interrupted", lambda: False)

    def interrupted() -> bool:
        return pressed or outer()

    def handler(signum, frame):
        nonlocal pressed
        if interrupted():
            raise KeyboardInterrupt
        pressed = True
        os.write(2, b"\nStopping after this round; press Ctrl-C again to stop at once.\n")

    handler.interrupted = interrupted  # type: ignore[attr-defined]
    try:
        signal.signal(signal.SIGINT, handler)
    except ValueError:  # not the main thread: leave signals alone
        yield lambda: False
        return
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed and callable(before) and hasattr(before, "interrupted") and not outer():
            before(signal.SIGINT, None)


def peak_memory() -> int:
    """Peak resident bytes of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def finished_result(path: str | os.PathLike[str]) -> Result:
    """A finished run read back from its directory (history and final evaluation, no parameters)."""
    folder = Path(path)
    summary = json.loads((folder / "result.json").read_text())
    return Result(
        method=summary["method"],
        seed=summary["seed"],
        history=JsonLines.read(folder / "metrics.jsonl"),
        final=summary["final"],
        seconds=summary["seconds"],
        engine=summary["engine"],
        path=folder,
        peak_bytes=summary["peak_bytes"],
    )
