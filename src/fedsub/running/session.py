"""One process's share of a run: its files, checkpoints, callbacks and the loop over rounds."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from torch import Tensor

from fedsub.disk.checkpoint import Checkpoints, Snapshot
from fedsub.disk.files import JsonLines, dump, write_atomic
from fedsub.disk.inshards import load
from fedsub.disk.reading import read_json
from fedsub.disk.rundir import RunDir
from fedsub.errors import CheckpointError, RunError
from fedsub.method.training import Trains
from fedsub.round.clock.rounds import RoundClock
from fedsub.round.evaluate import Evaluator
from fedsub.round.ledger import RoundReport
from fedsub.round.norms import Norms, check_shared
from fedsub.round.predict import Elsewhere, PersonalModel
from fedsub.round.private import EPSILON
from fedsub.running import going_on, keep
from fedsub.running.now import Now
from fedsub.running.result import Result, Target, divergence
from fedsub.running.start import PRIVACY
from fedsub.trees import Tree

ENGINE = "engine.json"  # what engine="auto" chose: a kill before the first checkpoint must not change it


class Interrupted(RunError):
    """The run was stopped by Ctrl-C after a checkpoint; it can be resumed."""


class Session:
    """A run in this process. Making it only looks at ``out``; `open` takes the directory and restores from it."""

    def __init__(
        self, problem, method, params, config, callbacks, out, every: int, resume: bool, force_code: bool = False,
        origin: Callable[[], dict[str, Any]] = dict, clock: RoundClock | None = None,
    ):  # fmt: skip
        self.problem, self.method, self.params, self.config = problem, method, params, config
        self.callbacks, self.every, self.origin, self.clock = callbacks, every, origin, clock
        self.history: list[dict[str, Any]] = []
        self.events: list[str] = []
        self.first, self.spent, self.engine_name = 1, 0.0, ""
        self.dir = RunDir(out) if out is not None else None
        self.saved: Checkpoints | None = None
        self.restored: Snapshot | None = None
        self.resume, self.force_code, self.opened = resume, force_code, False
        self._refuse_started()

    @property
    def started(self) -> bool:
        """Whether the directory holds a run already."""
        return self.dir is not None and self.dir.started

    def _refuse_started(self) -> None:
        if self.dir is not None and self.dir.started and not self.resume:
            raise CheckpointError(
                f"{self.dir.path} holds a run already; pass resume=True to go on with it, or choose another directory."
            )

    def open(self) -> None:
        """Take the directory, restore what it holds and log the events so far. A second call does nothing."""
        if self.opened or self.dir is None:
            return
        self._refuse_started()
        other = going_on.compare_with(self.dir, self.config, self.method, force_code=self.force_code)
        self.dir.start(self.config, going_on.free(self.method), self.origin())
        self.opened = True
        if other.rounds_before is not None:
            self.dir.ask_for(self.config["rounds"])
        for sentence in self.events:
            self.dir.log_event(sentence)
        for sentence in other.sentences(self.config["rounds"]):
            self.event(sentence)
        self.saved = Checkpoints(self.dir.checkpoints)
        self._restore()
        self.engine_name = self.engine_name or self._chosen_before()

    def _chosen_before(self) -> str:
        """The engine that an earlier session chose before it could save a checkpoint, or ""."""
        assert self.dir is not None
        path = self.dir.path / ENGINE
        if not path.exists():
            return ""
        try:
            name = read_json(path)["engine"]
        except (OSError, ValueError, KeyError, TypeError):
            name = None
        if name not in ("serial", "batched"):
            raise CheckpointError(f"{path} is damaged; delete it to have the engines timed again.")
        return name

    def _chosen(self, trainer: Trains, sentence: str) -> None:
        if self.dir is not None:
            write_atomic(self.dir.path / ENGINE, dump({"engine": trainer.engine.name}))
        self.event(sentence)

    def _restore(self) -> None:
        assert self.dir is not None
        assert self.saved is not None
        if self.saved.latest_round() is None:
            self.dir.rewind(None)
            return
        tables = {name: self.params[name] for name in self.problem.tables if name not in self.problem.lazy}
        snapshot, sentences = load(self.saved, self.dir.path, tables)
        for sentence in sentences:
            self.event(sentence)
        for name in self.problem.lazy:  # as many slots as there were
            self.params[name] = snapshot.tables[name]
        for name in self.problem.dense:
            self.params[name].copy_(snapshot.tensors[name])
        self.dir.rewind(snapshot.meta["files"])
        self.history = JsonLines.read(self.dir.path / "metrics.jsonl")
        self.first, self.spent = snapshot.round + 1, snapshot.meta["seconds"]
        self.engine_name = snapshot.meta["engine"]
        self.restored = snapshot
        self.event(f"resumed after round {snapshot.round}")

    def train(
        self,
        trainer: Trains,
        evaluator: Evaluator,
        initial: dict[str, Any],
        rounds: int,
        goal: Target | None,
        stop_at_target: bool,
    ) -> Result:
        """Train up to ``rounds``; ``initial`` is the evaluation before the first of them."""
        engine = trainer.engine
        trainer.settle_engine(self.engine_name, partial(self._chosen, trainer))
        trainer.state.tracking = self.saved is not None
        if self.restored is not None:
            trainer.state.restore({**self.restored.tensors, **self.restored.tables})
        evaluator.training = True
        now = Now(self.problem, trainer, evaluator, self.first - 1)
        for callback in self.callbacks:
            callback.now = now
        self._tell_of(evaluator)
        self._tell("on_start", self._info(rounds))
        start = time.perf_counter() - self.spent
        done = stop_at_target and goal is not None and any(map(goal.reached, self.history))
        number = self.first - 1
        with deferred_interrupt() as interrupted:
            if not self.history:
                self._record({"round": 0, "loss": None, "clients": 0, "down": 0, "up": 0, **initial})
            stopped = trainer.stops(number + 1) if number < rounds and not done else ""
            while number < rounds and not done and not stopped:
                number += 1
                begin, cpu = time.perf_counter(), time.process_time()
                report = trainer.round(number)
                now.round = number
                record = self._describe(number, report)
                self.spent = time.perf_counter() - start
                stopped = trainer.stops(number + 1) if number < rounds else ""
                last = number == rounds or bool(stopped)
                if found := evaluate_at(trainer, evaluator, number, last):
                    record |= found
                    done = stop_at_target and goal is not None and goal.reached(record)
                self._note(report)
                self._tell_of(evaluator)
                self._record(record, report, time.perf_counter() - begin, time.process_time() - cpu)
                if number % self.every == 0 or last or done or interrupted():
                    self._save(trainer, number)
                if interrupted() and not last and not done:
                    raise Interrupted(self._how_to_resume(number))
            if stopped and not done:
                self.event(stopped)
            for sentence in trainer.helped():
                self.event(sentence)
            trainer.settle(number)
            model = trainer.model(number)
            final = evaluator.final(model)
            self._tell_of(evaluator)
        if said := divergence(self.history):
            self.event(said)
        privacy = trainer.spent()
        if privacy:
            privacy = {"epsilon": trainer.measures({})[EPSILON], **privacy}
        shared = model.shared if isinstance(model, PersonalModel | Elsewhere) else model
        params = cast(Tree, self.params | {name: shared[name] for name in self.problem.lazy})
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
            params=params,
            problem=self.problem,
            directions=evaluator.plan.directions,
            privacy=privacy,
            personal=model if isinstance(model, PersonalModel) else None,
        )
        if self.dir is not None:
            self.dir.finish(result.summary() | {"files": keep.end(self.dir.path, self.problem, params, model)})
        self._tell("on_end", result.summary())
        return result

    def _describe(self, number: int, report: RoundReport) -> dict[str, Any]:
        return {
            "round": number,
            "loss": report.loss,
            "clients": len(report.clients),
            "down": report.total_down,
            "up": report.total_up,
            "lost": len(report.lost),
            "rejected": len(report.rejected),
            **report.measured,
            **self._time(report),
        }

    def _time(self, report: RoundReport) -> dict[str, float]:
        """Simulated seconds since the start, where somebody asked for a clock of rounds."""
        if self.clock is None:
            return {}
        probes = report.probed, report.probe_down, report.probe_up
        before = self.history[-1].get("clock", 0.0) if self.history else 0.0
        return {"clock": before + self.clock.seconds(report.clients, report.down, report.up, *probes)}

    def _tell_of(self, evaluator: Evaluator) -> None:
        for sentence in evaluator.sentences():
            self.event(sentence)

    def _note(self, report: RoundReport) -> None:
        for sentence in report.notes:
            self.event(sentence)
        if len(report.rejected):
            named = ", ".join(str(self.problem.clients.client_ids[c]) for c in report.rejected[:5])
            self.event(f"left out {len(report.rejected)} update(s) with NaN or infinity, of client(s) {named}")

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
                if len(report.lost):
                    traffic["lost"] = report.lost.tolist()
                if len(report.probed):
                    traffic |= {
                        "probed": report.probed.tolist(),
                        "probe_down": report.probe_down.tolist(),
                        "probe_up": report.probe_up.tolist(),
                    }
                self.dir.log_traffic({"round": record["round"], **traffic})
                self.dir.log_timing(
                    {"round": record["round"], "seconds": seconds, "cpu": cpu, "peak_bytes": peak_memory()}
                )
        self._tell("on_round", record)

    def _save(self, trainer: Trains, number: int) -> None:
        if self.saved is None or self.dir is None:
            return
        more = trainer.saves(number, self.dir.path) or {}
        self.dir.flush()
        if spent := trainer.spent():
            write_atomic(self.dir.path / PRIVACY, dump(spent))
        state = trainer.state
        tensors = {name: self.params[name] for name in self.problem.dense} | state.small()
        meta = {
            "files": self.dir.positions(), "seconds": self.spent, "engine": trainer.engine.name,
            "config": self.dir.identity(), **more,
        }  # fmt: skip
        tables = {name: self.params[name] for name in self.problem.tables} | state.tables()
        tables = {name: value for name, value in tables.items() if isinstance(value, Tensor)}  # others save the rest
        self.saved.save(Snapshot(number, tensors, tables, meta), _moved(state.take_moved(), tables))

    def event(self, sentence: str) -> None:
        self.events.append(sentence)
        if self.dir is not None and self.opened:
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
        return f"Stopped after round {number}, which is saved. Go on with {going_on.how_to_go_on(self.dir.path)}"


def _moved(rows: dict[str, Any] | None, tables: Tree) -> dict[str, Any] | None:
    return None if rows is None else {name: rows[name] for name in tables}


def evaluate_at(trainer: Trains, evaluator: Evaluator, number: int, last: bool = False) -> dict[str, Any]:
    """What is due after round ``number``: the model's metrics, what a trainer measures itself, the gradient's norms."""
    plan, found = evaluator.plan, {}
    if number % plan.every == 0 or last:
        found = evaluator(trainer.model(number)) | trainer.measures(evaluator.splits)
    if isinstance(plan.norms, Norms):
        if not number:
            check_shared(trainer.model(number))
        if plan.norms.due(number, last):
            found |= evaluator.norms(trainer.model(number))
    return found


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
