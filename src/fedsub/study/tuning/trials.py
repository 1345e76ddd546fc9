"""One trial: a method, its settings and a seed, trained once. Its record is a file that is there or not.

{"format": "fedsub-trial", "version": 1, "id": "…", "config": {…}, "seed": 0, "history": […], "final": {…}, …}

Its identity is the digest of all that its numbers depend on (`run_config`): method, settings, seed, rounds,
data, evaluation. So a search that goes on, or is widened, finds what was trained before.
"""

from __future__ import annotations

import math
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from torch import nn

from fedsub.data.clients import Clients
from fedsub.disk.files import JsonLines, dump, write_atomic
from fedsub.disk.reading import read_json
from fedsub.disk.rundir import RunDir
from fedsub.disk.seal import check_seal, sealed
from fedsub.errors import CheckpointError, DataError, RunError
from fedsub.method.training import Algorithm, shared_options
from fedsub.objective.objective import Objective, of_seed
from fedsub.round.predict import Values
from fedsub.running.result import Result, Target, better
from fedsub.running.run import Interrupted, finished_result, run, run_config
from fedsub.study.comparing import slug

FORMAT, VERSION = "fedsub-trial", 1
RECORD = ("seed", "rounds", "history", "final", "failure", "seconds", "engine")  # what of a trial its file holds


@dataclass(frozen=True)
class Bench:
    """What all trials of a phase share; sent once to every worker process.

    ``options`` go to `run`. ``folder`` holds the records; with ``keep`` also a run directory for each. Unless
    ``checkpoints`` it loses its checkpoints once it has finished: with state at clients they can take gigabytes.
    """

    objective: Objective | Callable[[int], Objective]
    clients: Clients
    splits: Mapping[str, Clients]
    options: Mapping[str, Any]
    folder: Path | None = None
    keep: bool = False
    checkpoints: bool = True

    def objective_of(self, seed: int) -> Objective:
        return of_seed(self.objective, seed)

    def record(self, job: Job) -> Path | None:
        return None if self.folder is None else self.folder / f"{job.name}.json"

    def job(self, label: str, method: Algorithm, objective: Objective, seed: int, rounds: int) -> Job:
        """A trial to be trained here, with its identity."""
        splits = dict(self.splits)
        config = run_config(method, objective, self.clients, splits=splits, seed=seed, rounds=rounds, **self.options)
        return Job(label, method, seed, rounds, blake2b(dump(config, sort_keys=True), digest_size=16).hexdigest())


@dataclass(frozen=True)
class Job:
    """A trial before it is trained."""

    label: str
    method: Algorithm = field(repr=False)
    seed: int
    rounds: int
    id: str

    @property
    def name(self) -> str:
        return f"{slug(self.label)}-seed{self.seed}-{self.id[:16]}"


@dataclass
class Trial:
    """What came of one. ``history`` has the evaluated rounds; ``failure`` says why it did not end; ``name`` is that of
    its record, and of the run's directory if there is one."""

    seed: int
    rounds: int
    history: list[dict[str, Any]] = field(default_factory=list, repr=False)
    final: dict[str, Any] = field(default_factory=dict, repr=False)
    failure: str | None = None
    seconds: float = 0.0
    engine: str = ""
    name: str = ""
    result: Result | None = field(default=None, repr=False, compare=False)  # of a winner: its run, with the model

    def module(self, module: nn.Module | Objective | None = None) -> nn.Module:
        """The trained module of a winner, as `Result.module` gives it; other trials keep none."""
        if self.result is None:
            raise RunError(
                f"This trial kept no model: {self.failure or 'only those of the winners are kept, in tuning.tested'}."
            )
        return self.result.module(module)

    def loss(self, split: str) -> float:
        """The loss on a split at the end; nan if the trial failed."""
        return self.metric(split, self.kind)

    def metric(self, split: str, kind: str) -> float:
        value = self.final.get(split, {}).get(kind)
        return float(value) if isinstance(value, int | float) else math.nan

    @property
    def kind(self) -> str:
        """What the loss is called: "ce" for a cross-entropy, else "loss"."""
        return "ce" if any("ce" in measured for measured in self.final.values()) else "loss"

    def best(
        self, split: str, kind: str | None = None, directions: Mapping[str, str] | None = None
    ) -> tuple[int, float]:
        """(round, value) of the evaluated round with the best loss, or ``kind``; the untrained model does not count.

        ``directions``: which values of metrics of the user's own are better.
        """
        name = f"{split}.{kind or self.kind}"
        sign = -1 if better(name, directions) == "higher" else 1
        found = [
            (sign * r[name], r["round"])
            for r in self.history
            if r["round"] > 0 and math.isfinite(r.get(name, math.nan))
        ]
        if not found:
            return self.rounds, math.nan
        value, number = min(found)
        return number, sign * value

    def first(self, target: Target) -> float:
        """The first evaluated round at which a target holds; infinity if none does."""
        return next((float(r["round"]) for r in self.history if target.reached(r)), math.inf)

    @property
    def status(self) -> str:
        """One of finished, diverged (its loss is no finite number) and failed."""
        if self.failure is not None:
            return "failed"
        split = "validation" if "validation" in self.final else "train"
        return "finished" if math.isfinite(self.loss(split)) else "diverged"


def perform(bench: Bench, job: Job) -> Trial:
    """Train it and write its record. One that cannot go on, such as one that diverged, is recorded as failed."""
    begin = time.perf_counter()
    file = bench.record(job)
    out = bench.folder / job.name if bench.keep and bench.folder is not None else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a method that the batched engine cannot train: serial
            result = run(
                job.method, bench.objective_of(job.seed), bench.clients, splits=dict(bench.splits), seed=job.seed,
                rounds=job.rounds, out=out, resume=out is not None,
                **shared_options(job.method, bench.options),
            )  # fmt: skip
        history = [r for r in result.history if any("." in name for name in r)]
        trial = Trial(job.seed, job.rounds, history, result.final, None, result.seconds, result.engine, job.name)
        trial.result = _kept(result, bench)
    except RunError as error:
        if isinstance(error, Interrupted) or isinstance(error.__cause__, OSError):
            raise  # a full disk would stop the others too
        trial = Trial(job.seed, job.rounds, failure=str(error), seconds=time.perf_counter() - begin, name=job.name)
    if file is not None:
        content = {"format": FORMAT, "version": VERSION, "id": job.id, "method": job.label}
        record = {name: value for name, value in vars(trial).items() if name in RECORD}
        write_atomic(file, dump(sealed({**content, "settings": job.method.describe(), **record})))
    if out is not None and trial.failure is None and not bench.checkpoints:
        shutil.rmtree(RunDir(out).checkpoints, ignore_errors=True)
    return trial


def read(bench: Bench, job: Job) -> Trial | None:
    """The record of a trial that was finished before."""
    file = bench.record(job)
    return None if file is None or not file.exists() else read_record(file, job.id)


def read_record(file: Path, identity: str | None = None) -> Trial:
    """A trial from its file, refused if it has another identity."""
    try:
        check_seal(read_json(file))
        (content,) = JsonLines.read(file)  # a line, so that NaN and infinity are read back as numbers
        if content["format"] != FORMAT or content["version"] != VERSION or identity not in (None, content["id"]):
            raise ValueError("it is of another trial or version")
        trial = Trial(**{name: content[name] for name in RECORD}, name=file.stem)
    except (OSError, ValueError, KeyError, TypeError, DataError) as error:
        raise CheckpointError(f"{file} is damaged ({error}); delete it to train that trial again.") from error
    if trial.failure is None and (run := file.with_suffix("")).is_dir():  # of a winner
        trial.result = finished_result(run)
    return trial


def _kept(result: Result, bench: Bench) -> Result | None:
    """A winner's run, small enough to come from another process: its data are not part of it."""
    if not bench.keep:
        return None
    if result.path is not None:
        return replace(result, problem=None, params={}, personal=None)
    own = result.personal
    if own is not None:
        own = replace(own, kept=Values({f"{own.slot}/{n}": own.kept.tensors[f"{own.slot}/{n}"] for n in own.names}))
    return replace(result, problem=None, personal=own)
