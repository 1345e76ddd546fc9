"""`fedsub reproduce`: the paper's tables and figures, run again."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer

from fedsub.cli.progress import bars
from fedsub.cli.show import View
from fedsub.running.run import Interrupted
from fedsub.study.report.words import duration
from fedsub.study.reproduce import Request
from fedsub.study.reproduce import reproduce as make
from fedsub.study.tuning.trials import Job, Trial
from fedsub.study.tuning.workers import Watch

PAUSE = 30.0  # seconds between two lines while a long run goes on, where there is no bar


class Follow(Watch):
    """A bar over all rounds that are left on a terminal; elsewhere a line per run, with the time left."""

    def __init__(self, view: View):
        self.view, self.title, self.total, self.done = view, "", 0, 0
        self.rounds: dict[str, int] = {}  # to be done, by job
        self.round: dict[str, int] = {}  # done
        self.first: dict[str, int] = {}  # done before this call, by an earlier one that was stopped
        self.begin = self.said = time.monotonic()
        self.bars = bars(view) if view.console.is_terminal and not view.quiet else None
        self.task: Any = None

    def on_phase(self, title: str, total: int, done: int) -> None:
        self.title, self.total, self.done = title, total, done
        if done:
            self.view.note(f"{title}: {done} of {total} runs were made before and are read.")

    def on_jobs(self, jobs: Sequence[Job]) -> None:
        self.rounds = {job.name: job.rounds for job in jobs}
        self.round, self.first = dict.fromkeys(self.rounds, 0), {}
        self.begin = self.said = time.monotonic()
        if self.bars is not None:
            if self.task is not None:
                self.bars.remove_task(self.task)
            self.task = self.bars.add_task(self.title, total=sum(self.rounds.values()), value="") if jobs else None

    def on_round(self, name: str, round: int) -> None:
        if name not in self.rounds:
            return
        self.first.setdefault(name, round)
        self.round[name] = round
        if self.bars is not None and self.task is not None:
            self.bars.update(self.task, completed=sum(self.round.values()), value=f"{self.done} of {self.total} runs")
        elif time.monotonic() - self.said > PAUSE:
            self._say(f"{sum(self.round.values()):,} of {sum(self.rounds.values()):,} rounds")

    def on_trial(self, job: Job, trial: Trial) -> None:
        self.done += 1
        if job.name in self.rounds:
            self.round[job.name] = self.rounds[job.name]
        end = (
            f"{trial.rounds} rounds in {trial.seconds:.1f} s" if trial.failure is None else f"stopped: {trial.failure}"
        )
        if self.bars is None:
            self._say(f"{self.done} of {self.total} runs: {job.label}, seed {job.seed}, {end}")
        elif trial.failure is not None:
            self.view.note(f"{job.label}, seed {job.seed}, {end}")

    def on_note(self, sentence: str) -> None:
        self.view.note(sentence)

    def _say(self, text: str) -> None:
        self.said = time.monotonic()
        left = self._left()
        self.view.note(f"{self.title}: {text}" + (f"; about {duration(left)} left" if left else ""))

    def _left(self) -> float:
        """Seconds, if the rounds to come take as long as those of this call; 0 if nothing is left or known."""
        open_rounds = sum(self.rounds.values()) - sum(self.round.values())
        made = sum(self.round.values()) - sum(self.first.values())
        return (time.monotonic() - self.begin) * open_rounds / made if made > 0 else 0.0

    @contextmanager
    def shown(self) -> Iterator[None]:
        if self.bars is None:
            yield
        else:
            with self.bars:
                yield


def run(request: Request, view: View) -> None:
    watch = Follow(view)
    try:
        with watch.shown():
            outcome = make(request, watch, view.note)
    except (Interrupted, KeyboardInterrupt):
        again = shlex.join(["fedsub", *sys.argv[1:]])
        view.stopped(f"Stopped; what was trained is kept in {request.out}. Go on with the same command: {again}")
        raise typer.Exit(130) from None
    for table in outcome.tables:
        view.line("\n" + table.text())
    view.line(f"Page, table and curves: {outcome.folder}")
    records = [record for table in outcome.tables for record in table.exact]
    notes = [*outcome.notes, *(note for table in outcome.tables for note in table.notes)]
    view.finish(
        {"command": "reproduce", "what": request.what, "out": str(outcome.folder), "rows": records, "notes": notes}
    )
