"""`compare`: several methods, several seeds, the same data; one table and one page."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from fedsub.checks import is_whole, named_arguments
from fedsub.data.clients import Clients
from fedsub.disk.files import output_folder
from fedsub.disk.rundir import RunDir
from fedsub.errors import CheckpointError, ConfigError, FedsubError, MethodError, RunError, nearest
from fedsub.method.names import check_label
from fedsub.method.training import Algorithm, shared_options
from fedsub.objective.objective import Objective, of_seed
from fedsub.round.clock.devices import Devices, Given, named
from fedsub.running import going_on
from fedsub.running.callbacks import Callback
from fedsub.running.result import Result, Target, mean_std
from fedsub.running.run import Interrupted, deferred_interrupt, finished_result, run, run_config
from fedsub.running.start import Starts
from fedsub.study.costs.estimate import estimated_seconds
from fedsub.study.paired import Interval, paired
from fedsub.study.reading import write_names

MOST_SEEDS = 10_000
MODELS = 1 << 30  # bytes of models that a comparison without a directory keeps in memory


@dataclass
class Comparison:
    """Results by method label, one per seed that came to its end.

    A method without any is left out; ``notes`` say why, name the runs that diverged, and are shown with the table.
    ``failed`` are the runs that did not come to an end, as (label, seed). ``devices`` are what the
    time of a round is estimated for (a preset's name, `fedsub.study.costs.Devices`, or None). ``reference`` is the
    method that the others are compared with, seed by seed; by default the first.
    """

    results: dict[str, list[Result]]
    target: Target | None = None
    metric: str = "train.ce"
    path: Path | None = None
    notes: list[str] = field(default_factory=list)
    devices: Given = "phones"
    failed: list[tuple[str, int]] = field(default_factory=list)
    reference: str | None = None
    _clocks: dict[Path, dict[int, float]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.devices = named(self.devices)
        self.results = {label: list(results) for label, results in self.results.items() if results}
        self.reference = self.reference or next(iter(self.results), None)
        for label, seeds in self.diverged.items():
            why = next(r.diverged for r in self.results[label] if r.seed == seeds[0])
            self.notes.append(f"{label}, seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}, {why}")

    @property
    def diverged(self) -> dict[str, list[int]]:
        """The seeds of the runs that diverged, by method; a method without any is not named."""
        found = {label: [r.seed for r in results if r.diverged] for label, results in self.results.items()}
        return {label: seeds for label, seeds in found.items() if seeds}

    def metrics(self) -> list[str]:
        """Every metric that some run measured, in order."""
        return list(dict.fromkeys(m for results in self.results.values() for r in results for m in r.metrics()))

    @property
    def chosen_by(self) -> str | None:
        """The metric of validation samples that a round of each run is chosen by, or None without such samples."""
        measured = [name for name in self.metrics() if name.startswith("validation.")]
        same = f"validation.{self.metric.rpartition('.')[2]}"
        return same if same in measured else next(iter(measured), None)

    def by_seed(self, label: str, metric: str, at: str) -> dict[int, float]:
        """A metric of every run of a method, by seed. ``at``: its "best" round, the "last", or the "chosen" one."""
        results = self.results.get(label, ())
        if at == "chosen":
            by = self.chosen_by
            return {r.seed: r.chosen(metric, by) if by else math.nan for r in results}
        return {r.seed: r.best(metric) if at == "best" else r.last(metric) for r in results}

    def difference(self, label: str, metric: str, at: str = "") -> Interval | None:
        """The paired interval of a method's difference to the reference (`fedsub.study.paired`), or None.

        Without ``at``: of the chosen round where there are validation samples, else of the last.
        """
        if self.reference is None or label == self.reference:
            return None
        at = at or ("chosen" if self.chosen_by else "last")
        return paired(self.by_seed(label, metric, at), self.by_seed(self.reference, metric, at))

    def rows(self) -> list[dict[str, Any]]:
        """One row per method: rounds to the target, best metrics, bytes per client, seconds.

        ``first`` lists the first round at which each seed reached the target (None: never); ``last`` and ``chosen``
        have the metrics of these rounds, ``difference`` their intervals (`difference`).
        """
        out = []
        for label, results in self.results.items():
            row: dict[str, Any] = {"method": label, "seeds": len(results)}
            row["diverged"] = self.diverged.get(label, [])
            if self.target is not None:
                row["first"] = [r.first_round(self.target) for r in results]
            for metric in self.metrics():
                row[metric] = mean_std([r.best(metric) for r in results])
            for at in ("last", "chosen") if self.chosen_by else ("last",):
                row[at] = {m: mean_std([*self.by_seed(label, m, at).values()]) for m in self.metrics()}
            found = {metric: self.difference(label, metric) for metric in self.metrics()}
            row["difference"] = {metric: vars(interval) for metric, interval in found.items() if interval}
            row["bytes"] = mean_std([r.bytes_per_client() for r in results])
            row["seconds"] = mean_std([r.seconds for r in results])
            if any(clocks := [self.clock(r) for r in results]):
                row["device_seconds"] = mean_std([max(c.values()) for c in clocks if c])
                row["device_seconds_to_target"] = mean_std(self.times_to_target(results))
            row["rounds"] = max((r.history[-1]["round"] for r in results if r.history), default=0)
            out.append(row)
        return out

    def clock(self, result: Result) -> dict[int, float]:
        """Simulated seconds on ``devices`` up to the end of each round; {} if nothing is sent, or it is not known.

        That a run which was kept in a directory has none is noted.
        """
        devices, path, played = self.devices, result.path, result.clock()
        if played or not isinstance(devices, Devices) or path is None or not result.bytes_per_client():
            return played
        if path not in self._clocks:
            try:
                self._clocks[path] = estimated_seconds(path, devices)
            except FedsubError as error:
                self._clocks[path] = {}
                self.notes.append(f"{result.method}, seed {result.seed}, without estimated time: {error}")
        return self._clocks[path]

    @property
    def timed(self) -> bool:
        """Whether some run's time on the devices is known."""
        return any(self.clock(r) for results in self.results.values() for r in results)

    def times_to_target(self, results: list[Result]) -> list[float]:
        """Estimated seconds to the target of those runs that reach it and whose time is known."""
        if self.target is None:
            return []
        found = [self.clock(r).get(n) for r in results if (n := r.first_round(self.target)) is not None]
        return [time for time in found if time is not None]

    def table(self) -> str:
        """The comparison as a text table."""
        from fedsub.study.report.table import text_table

        return text_table(self)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write table (CSV, Markdown), plots (PNG) and one self-contained HTML page; returns the page."""
        from fedsub.study.report import write_report

        return write_report(self, folder)


@named_arguments(run, but=("method", "seed"))
def compare(
    methods: Mapping[str, Algorithm],
    objective: Objective | Callable[[int], Objective],
    clients: Clients | Callable[[int], Mapping[str, Clients]],
    *,
    rounds: int,
    seeds: int | Iterable[int] = 1,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    force_code: bool = False,
    start: Any = None,
    start_state: bool = False,
    target: str | Target | None = None,
    metric: str | None = None,
    devices: Given = "phones",
    callbacks: Sequence[Callback] = (),
    reference: str | None = None,
    **options: Any,
) -> Comparison:
    """Train every method with every seed and compare; ``options`` go to `run`.

    ``objective`` should be a function of the seed, so that every seed starts from an initialisation of its own
    (`fedsub.objective.objective.of_seed`): one `Objective` gives all seeds the same start, which is noted. ``clients``
    may be a function of the seed too, that gives the parts of a split of its own, {"train": …, "test": …} and, to
    choose a round by, "validation":

        compare(methods, objective, lambda seed: dict(zip(("train", "test"), clients.split(0.8, seed=seed))), seeds=5)

    With ``out`` each run has its directory there; ``resume=True`` skips finished ones and continues the rest: methods,
    seeds and rounds may be added. ``start`` is for every run what `run` takes, or the directory of another comparison
    (or run of the command line): the run of the same method and seed there, or its only one. ``force_code``: go on
    although the code of forward or loss has changed.
    The trained models stay, in the directory or, up to a gigabyte of them, in memory: `Result.module`.
    A run that cannot go on (NaN everywhere) is noted and left out, and the others go on; one that came to its end
    with a loss above that of the untrained model is noted and marked as diverged.
    ``devices`` ("phones", "datacentre", None or `fedsub.study.costs.Devices`): what the report estimates time for.
    ``reference``: the label of the method that the others are compared with, seed by seed; by default the first.
    """
    devices = named(devices)
    goal = Target.parse(target) if target is not None else None
    folder = output_folder(out) if out is not None else None
    runs = _Runs(methods, objective, clients, _seed_list(seeds), folder, devices)
    if reference is not None and reference not in methods:
        raise ConfigError(f"reference is {reference!r}, expected one of the methods; {nearest(reference, methods)}")
    starts = Starts(start, start_state)
    other_code = runs.check(resume, force_code, starts, rounds=rounds, target=goal, **options)
    results: dict[str, list[Result]] = {label: [] for label in methods}
    notes = runs.notes()
    known = len(notes)
    failed: list[tuple[str, int]] = []
    first_error: RunError | None = None
    kept = 0
    with deferred_interrupt() as interrupted:
        for label, seed, folder, made in runs:
            if interrupted():  # in the last round of a run, or between two
                raise Interrupted(_stopped("Stopped between two runs", runs.out))
            if folder is not None and resume and going_on.finished(folder, rounds):
                result = finished_result(folder)
                result.objective = partial(of_seed, objective, seed)
                notes += [
                    f"{label}, seed {seed}, was trained before {what} changed." for what in other_code.get(folder, ())
                ]
            else:
                try:
                    own, train, parts = made()
                    result = run(
                        methods[label], own, train, rounds=rounds, seed=seed, out=folder, resume=resume,
                        force_code=force_code, target=goal, callbacks=callbacks, start=starts.of(slug(label), seed),
                        **parts, **runs.options(label, options),
                    )  # fmt: skip
                except Interrupted as error:
                    raise Interrupted(_stopped(str(error).partition(", which")[0], runs.out)) from error
                except RunError as error:
                    if isinstance(error.__cause__, OSError):
                        raise  # a full disk would stop the others too
                    notes.append(f"{label}, seed {seed}, stopped: {error}")
                    failed.append((label, seed))
                    first_error = first_error or error
                    for callback in callbacks:
                        callback.on_event(notes[-1])
                    continue
                kept = _keep(result, kept)
            result.method = label
            results[label].append(result)
            notes += [f"{label}, seed {seed}: {said}" for said in going_on.changes_of_code(folder)]
    if first_error is not None and not any(results.values()):
        if len(failed) == 1:
            raise first_error
        raise RunError("No run came to its end:\n" + "\n".join(f"  {note}" for note in notes[known:])) from first_error
    comparison = Comparison(
        results, goal, metric or "", runs.out, notes, devices, failed, reference or next(iter(methods))
    )
    if metric is None:
        comparison.metric = goal.metric if goal else next(iter(comparison.metrics()), "train.ce")
    write_names(comparison)
    return comparison


def _keep(result: Result, kept: int) -> int:
    """A run's model stays in its directory, or in memory as long as all together are small; returns their bytes."""
    model, own = result.params, result.personal.kept.tensors if result.personal is not None else {}
    size = sum(value.numel() * value.element_size() for value in [*model.values(), *own.values()])
    if result.path is None and kept + size <= MODELS:
        return kept + size
    result.params, result.personal = {}, None
    return kept


Made = tuple[Objective, Clients, dict[str, Any]]  # of a seed: objective, training data, further arguments of `run`


@dataclass
class _Runs:
    """The runs of a comparison in the order they are trained: (label, seed, directory, what makes its objective and
    data)."""

    methods: Mapping[str, Algorithm]
    objective: Objective | Callable[[int], Objective]
    clients: Clients | Callable[[int], Mapping[str, Clients]]
    seeds: list[int]
    out: Path | None
    devices: Devices | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.methods, Mapping):
            kind = type(self.methods).__name__
            raise ConfigError(f'methods is a {kind}, expected a dict from label to method: {{"FedAvg": fedavg()}}.')
        if not self.methods:
            raise ConfigError("There is nothing to compare: give at least one method.")
        for label, method in self.methods.items():
            if not isinstance(label, str):
                raise ConfigError(
                    f"The label {label!r} is a {type(label).__name__}, expected text; write {str(label)!r}."
                )
            check_label(label)
            if not isinstance(method, Algorithm):
                kind = type(method).__name__
                raise ConfigError(f"{label}: got a {kind}, expected a Method, such as fedsub.methods.fedavg().")
        folders = [slug(label) for label in self.methods]
        if len(set(folders)) < len(folders):
            raise ConfigError(f"Two labels give the same directory name: {', '.join(self.methods)}; rename one.")
        train, _ = self.data_of(self.seeds[0])
        for label, method in self.methods.items():
            try:
                method.check_population(train.sizes)
            except MethodError as error:
                raise MethodError(f"{label}: {error}") from error

    def __iter__(self) -> Iterator[tuple[str, int, Path | None, Callable[[], Made]]]:
        for seed in self.seeds:
            made = cache(partial(self.made, seed))  # once for all methods of a seed, when needed
            for label in self.methods:
                yield label, seed, self.out / f"{slug(label)}-seed{seed}" if self.out is not None else None, made

    def made(self, seed: int) -> Made:
        return of_seed(self.objective, seed), *self.data_of(seed)

    def data_of(self, seed: int) -> tuple[Clients, dict[str, Any]]:
        """(training data, further arguments of `run`) of a seed."""
        if not callable(self.clients):
            return self.clients, {}
        parts = self.clients(seed)
        if not isinstance(parts, Mapping) or "train" not in parts:
            raise ConfigError(
                f"clients({seed}) returned a {type(parts).__name__}, expected the parts of the data by name: "
                '{"train": …, "test": …}.'
            )
        return parts["train"], {"splits": dict(parts)}

    def notes(self) -> list[str]:
        """What a reader of the spread over seeds must know."""
        if len(self.seeds) < 2:
            return []
        out = []
        if isinstance(self.objective, Objective):
            how = "give objective as a function of the seed to vary these too."
            out.append(f"All seeds start from the same initial values; {how}")
        if callable(self.clients):
            out.append("Every seed has a split of its own, so the spread over seeds includes that of the data.")
        return out

    def options(self, label: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Those of one method: beside others a baseline need not use all."""
        given = shared_options(self.methods[label], options) if len(self.methods) > 1 else dict(options)
        return given | ({"devices": self.devices} if self.methods[label].clocked else {})  # others' time is estimated

    def check(self, resume: bool, force_code: bool, starts: Starts, **options: Any) -> dict[Path, tuple[str, ...]]:
        """Refuse directories of other runs before anything is trained: finished ones are only read later.

        Returns what of the code is not as it was, by directory.
        """
        if callable(self.clients) and (twice := [k for k in ("test", "validation", "splits") if options.get(k)]):
            raise ConfigError(f"clients is a function, which gives all parts of the data; leave {twice[0]}= out.")
        changed = {}
        for label, seed, folder, made in self:
            if folder is None or not (there := RunDir(folder)).started:
                continue
            if not resume:
                raise CheckpointError(
                    f"{folder} holds a run already; pass resume=True to go on with it, or choose another directory."
                )
            own, train, parts = made()
            begin = starts.of(slug(label), seed)
            given = self.options(label, options)
            config = run_config(self.methods[label], own, train, seed=seed, start=begin, **parts, **given)
            changed[folder] = going_on.compare_with(there, config, self.methods[label], force_code=force_code).code
        return changed


def _stopped(what: str, out: Path | None) -> str:
    if out is None:
        return what if "without" in what else f"{what}; without an output directory there is nothing to resume."
    return f"{what}. Go on with {going_on.how_to_go_on(out, 'compare')}"


def _seed_list(seeds: int | Iterable[int]) -> list[int]:
    if isinstance(seeds, int) and is_whole(seeds):
        if not 1 <= seeds <= MOST_SEEDS:
            raise ConfigError(f"seeds is {seeds}, expected how many to train, 1 to {MOST_SEEDS:,}, or a list of seeds.")
        return list(range(seeds))
    found = list(seeds) if isinstance(seeds, Iterable) else []
    whole = all(is_whole(s) and 0 <= s < 2**63 for s in found)
    if not found or not whole or len(set(found)) < len(found):
        raise ConfigError(
            f"seeds is {seeds!r}, expected how many to train, or a list of different whole numbers, 0 or more."
        )
    return [int(s) for s in found]


def slug(label: str) -> str:
    """A label as a directory name; L2SGD+ is another one than L2SGD."""
    label = re.sub(r"(?<=\w)\+", "-plus", label)
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-") or "method"
