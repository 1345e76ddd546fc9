"""`tune`: the same search for every method, on validation data; then the winners, once, on the test data.

plan settings  ->  train all trials  ->  choose on validation  ->  train the winners  ->  evaluate them on test
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

from fedsub.checks import check_seed, check_whole, is_number, named_arguments
from fedsub.data.clients import Clients
from fedsub.disk.files import dump, make_folder, output_folder, remove_temporaries, write_atomic
from fedsub.disk.provenance import provenance
from fedsub.disk.text import csv_bytes
from fedsub.disk.versions import versions
from fedsub.errors import CheckpointError, ConfigError, MethodError, RunError, nearest
from fedsub.objective.objective import Objective
from fedsub.objective.problem import Problem
from fedsub.round.evaluate import Evaluate, Evaluator
from fedsub.running.result import Target
from fedsub.running.run import Interrupted, run
from fedsub.study.comparing import _seed_list as seed_list
from fedsub.study.tuning import space, table
from fedsub.study.tuning.choose import Criterion, Setting, choose, warnings
from fedsub.study.tuning.suggest import Studies
from fedsub.study.tuning.trials import Bench, Job, Trial
from fedsub.study.tuning.workers import Crew, Watch, run_all

FILE = "tune.json"
SEARCHES = ("grid", "random", "optuna")


@dataclass
class Tuning:
    """What a search found. ``chosen`` and ``tested`` are by method label.

    ``settings`` holds every setting with its trials, ``tested`` the winners' trials, one per seed, with their
    evaluation on the test split under ``final["test"]``. ``notes`` say what a reader of the table must know.
    """

    criterion: Criterion
    search: str
    axes: list[str]
    settings: list[Setting]
    chosen: dict[str, Setting] = field(default_factory=dict)
    tested: dict[str, list[Trial]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    path: Path | None = None

    @property
    def counts(self) -> dict[str, int]:
        """How many settings each method was given."""
        labels = dict.fromkeys(s.label for s in self.settings)
        return {label: sum(s.label == label for s in self.settings) for label in labels}

    def table(self) -> str:
        """The winners as text: setting, validation and test metrics, mean ± standard deviation over the seeds."""
        return table.winners_text(self) + "".join(f"\n{note}" for note in self.notes) + ("\n" if self.notes else "")

    def trials_table(self) -> str:
        """Every setting as text, * before the chosen ones."""
        return table.aligned(table.setting_rows(self))

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Tuning:
        """A finished search read back from its directory, with every trial."""
        from fedsub.study.tuning import kept

        return kept.read(Path(folder))

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write trials.csv and, once the winners are known, winners.csv, deciles.csv and winners.txt."""
        out = output_folder(folder)
        make_folder(out)
        write_atomic(out / "trials.csv", csv_bytes(table.trial_rows(self)))
        write_atomic(out / "winners.csv", csv_bytes(table.winners_csv(self)))
        write_atomic(out / "deciles.csv", csv_bytes(table.decile_rows(self)))
        write_atomic(out / "winners.txt", f"{self.table()}\n{self.trials_table()}".encode())
        return out

    def page(self, folder: str | os.PathLike[str]) -> Path:
        """Write the page about the search, report.html, with its charts as PNG; returns the page."""
        from fedsub.study.report import write_search

        return write_search(self, folder)


@named_arguments(run, but=("method", "seed"))
def tune(
    methods: Iterable[str] | Mapping[str, Any],
    objective: Objective | Callable[[int], Objective],
    clients: Clients,
    *,
    grid: Mapping[str, Any] | Sequence[str],
    rounds: int,
    test: Clients | None = None,
    validation: float | Clients = 0.1,
    validation_seed: int = 1,
    retrain: bool | Clients = False,
    seeds: int | Iterable[int] = 1,
    search: Literal["grid", "random", "optuna"] | None = None,
    trials: int | None = None,
    search_seed: int = 0,
    select: str = "final",
    target: str | Target | None = None,
    workers: int = 1,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    evaluate: Evaluate | None = None,
    engine: str = "batched",
    watch: Watch | None = None,
    **options: Any,
) -> Tuning:
    """Search the settings of several methods in the same way, choose on validation data, report on test data.

    ``methods``: names, or {label: name, function that makes the method, or settings with "method", one of the two}.
    ``grid``: {"lr": [0.1, 0.3, 1]}, {"lr": "0.01..10/7"} (seven points) or "0.01..10" (a range); "fedprox.mu" is for
    one method. ``search``: "grid" trains every combination, "random" and "optuna" ``trials`` settings of each
    method, between the ends of each axis; by default the grid if all methods have as large a one, else random.

    ``validation``: the share of every client's samples in ``clients`` that settings are chosen by (or Clients that
    are not among ``clients``); training sees the rest only, also for heat and submodels. ``select``: "final", "best"
    (validation loss after the last, or the best, round; "best:auc" by another metric, also one of your own) or
    "rounds" to a ``target`` such as train.ce<=0.65.
    The winner of each method is trained again for every seed, on the same part (``retrain=True``: with the
    validation data) and evaluated on the whole of ``test``, which nothing reads before.

    ``workers`` are processes. With ``out`` every finished trial is kept, and ``resume=True`` trains only what is
    missing, also for a wider grid. ``options`` go to `run`.
    """
    _check(workers, trials, search, search_seed, rounds, options)
    plan = evaluate or Evaluate()
    criterion = Criterion.make(select, target, plan.directions)
    watch = watch or Watch()
    found = space.make_candidates(methods)
    axes = space.make_axes(grid)
    seeds = seed_list(seeds)
    train, held_out, whole = _parts(clients, validation, validation_seed, retrain)
    own, notes = space.assign(found, axes)
    kind, count = _how(own, search, trials)
    folder = output_folder(out) if out is not None else None
    bench = Bench(
        objective, train, {"train": train, "validation": held_out}, {"engine": engine, "evaluate": plan, **options},
        folder and folder / "trials",
    )  # fmt: skip
    first = bench.objective_of(seeds[0])
    criterion.check(first.loss, plan)
    named = {"validation": held_out} | ({"test": _named("test", test)} if test is not None else {})
    Evaluator(Problem.bind(first, train), named, plan, ())  # data that do not fit are refused before hours of training
    job = _Search(found, own, seeds, rounds, criterion, Crew(bench, workers), watch)
    planned = job.plan(kind, count, search_seed)
    if folder is not None:
        _open(folder, resume, {
            "methods": {c.label: {"method": c.name, **c.fixed} for c in found}, "grid": [str(axis) for axis in axes],
            "search": kind, "trials": count, "search_seed": search_seed, "seeds": seeds, "rounds": rounds,
            "select": criterion.title, "validation": held_out.fingerprint, "data": train.fingerprint,
        })  # fmt: skip
    names = list(dict.fromkeys(axis.name for axis in axes))
    try:
        with job.crew:
            settings = job.optuna(count or 0, search_seed) if planned is None else job.train(planned)
        tuning = Tuning(criterion, kind, names, settings, path=folder)
        job.choose(tuning, notes)
        for note in tuning.notes:
            watch.on_note(note)
        if folder is not None:
            _keep(tuning, folder)  # what was chosen is on the disk before the test split is touched
        if test is not None:
            data = train if whole is None else whole
            splits = {"train": data, **({"validation": held_out} if whole is None else {}), "test": test}
            last = replace(plan, every=rounds, final_samples=None)  # all test samples, and only at the end
            final = replace(
                bench, clients=data, splits=splits, options={**bench.options, "evaluate": last},
                folder=folder and folder / "winners", keep=True,  # with their models
            )  # fmt: skip
            with Crew(final, workers) as crew:
                job.test(tuning, crew)
    except (KeyboardInterrupt, Interrupted):
        kept = f"finished trials are kept in {folder}; go on with the same call and resume" if folder else (
            "without an output directory nothing is kept"
        )  # fmt: skip
        raise Interrupted(f"Stopped; {kept}.") from None
    if folder is not None:
        _keep(tuning, folder)
    return tuning


def _keep(tuning: Tuning, folder: Path) -> None:
    from fedsub.study.tuning import kept

    tuning.save(folder)
    kept.write(tuning, folder)


@dataclass
class _Search:
    found: list[space.Candidate]
    axes: dict[str, list[space.Axis]]
    seeds: list[int]
    rounds: int
    criterion: Criterion
    crew: Crew
    watch: Watch

    def plan(self, search: str, count: int | None, seed: int) -> list[Setting] | None:
        """All settings, checked before anything is trained; None if they follow from results."""
        if search == "optuna":
            Studies(self.found, self.axes, seed)  # if it is missing, say so now
            for candidate in self.found:
                self._settings(candidate, space.draw(candidate, self.axes[candidate.label], 1, seed))
            return None
        out: list[Setting] = []
        for c in self.found:
            own = self.axes[c.label]
            out += self._settings(c, space.grid(c, own) if search == "grid" else space.draw(c, own, count or 0, seed))
        return out

    def _settings(self, candidate: space.Candidate, values: list[space.Values], first: int = 1) -> list[Setting]:
        refusals = space.check(candidate, values, self.crew.bench.clients.sizes)
        pairs = enumerate(zip(values, refusals, strict=True), first)
        return [Setting(candidate.label, n, v, refused=refusal) for n, (v, refusal) in pairs]

    def train(self, settings: list[Setting], title: str = "Trials") -> list[Setting]:
        """Every setting with every seed."""
        wanted = [(s, seed, self.rounds) for s in settings for seed in self.seeds if not s.refused]
        jobs = self._jobs(self.crew.bench, wanted)
        done = run_all(self.crew, [job for _, job in jobs], self.watch, title)
        for setting, job in jobs:
            setting.trials.append(done[job.name])
        return settings

    def _jobs(self, bench: Bench, wanted: list[tuple[Setting, int, int]]) -> list[tuple[Setting, Job]]:
        """With their identities; a seed at a time, so that one model is held and not one per seed."""
        objective = lru_cache(1)(bench.objective_of)
        makers = {c.label: c for c in self.found}
        return [
            (s, bench.job(s.label, makers[s.label].build(s.values), objective(seed), seed, rounds))
            for s, seed, rounds in sorted(wanted, key=lambda item: self.seeds.index(item[1]))
        ]

    def optuna(self, count: int, seed: int) -> list[Setting]:
        studies = Studies(self.found, self.axes, seed)
        out: list[Setting] = []
        for number in range(1, count + 1):
            wave: list[Setting] = []
            for candidate in self.found:
                values = studies.ask(candidate)
                try:
                    wave += self._settings(candidate, [values], number)
                except MethodError as error:
                    wave.append(Setting(candidate.label, number, values, refused=str(error)))
            self.train(wave, f"Suggestion {number} of {count}, trial")
            for setting in wave:
                studies.tell(setting.label, self.criterion.mean(setting))
            out += wave
        order = [c.label for c in self.found]
        return sorted(out, key=lambda s: (order.index(s.label), s.number))

    def choose(self, tuning: Tuning, notes: list[str]) -> None:
        counts = tuning.counts
        tuning.notes += notes
        if len(set(counts.values())) > 1:
            tuning.notes.append(
                f"Not the same number of trials: {', '.join(f'{label} {n}' for label, n in counts.items())}; the "
                "method with more has the advantage. Search at random to give every method as many."
            )
        for label in counts:
            own = [s for s in tuning.settings if s.label == label]
            winner = choose(own, self.criterion)
            if winner is None:
                tuning.notes.append(f"{label}: no trial came to a finite validation loss, so it has no winner.")
                continue
            tuning.chosen[label] = winner
            tuning.notes += warnings(winner, self.axes[label], drawn=tuning.search != "grid")
        if not tuning.chosen:
            why = next((t.failure for s in tuning.settings for t in s.trials if t.failure), "its loss became infinite")
            raise RunError(f"No trial of any method came to a finite validation loss; the first: {why}")

    def test(self, tuning: Tuning, crew: Crew) -> None:
        """Train the winners again and look at the test split."""
        wanted = [
            (winner, trial.seed, self.criterion.rounds(trial))
            for winner in tuning.chosen.values()
            for trial in winner.trials
            if trial.status == "finished"
        ]
        jobs = self._jobs(crew.bench, wanted)
        done = run_all(crew, [job for _, job in jobs], self.watch, "Winners")
        for label in tuning.chosen:
            tuning.tested[label] = [done[job.name] for _, job in jobs if job.label == label]
        for job in (job for _, job in jobs):
            if (result := done[job.name].result) is not None:  # which came without its data, perhaps from elsewhere
                result.objective = partial(crew.bench.objective_of, job.seed)
                result.problem = Problem.bind(result.objective(), crew.bench.clients) if result.params else None


def _how(own: dict[str, list[space.Axis]], search: Any, trials: int | None) -> tuple[str, int | None]:
    """The kind of search and, if it is not a grid, how many settings each method gets."""
    sizes = {label: space.size(axes) for label, axes in own.items()}
    if search is None:
        search = "grid" if trials is None and None not in sizes.values() and len(set(sizes.values())) == 1 else "random"
    if search == "grid":
        if trials is not None:
            raise ConfigError(
                f"A grid has as many trials as it has points, and trials={trials} was given; leave it out, or search "
                'at random (search="random", --search random).'
            )
        return search, None
    if trials is None:
        known = [size for size in sizes.values() if size is not None]
        if len(known) < len(sizes):
            raise ConfigError(f"A {search} search over a range needs the number of trials; give trials (--trials 20).")
        trials = max(known)
    return search, trials


def _named(name: str, part: Any) -> Clients:
    if not isinstance(part, Clients):
        raise ConfigError(f"{name} must be Clients, got a {type(part).__name__}; Clients.split makes them.")
    return part


def _parts(
    clients: Clients, validation: Any, seed: int, retrain: bool | Clients
) -> tuple[Clients, Clients, Clients | None]:
    """(training part, validation part, what winners are trained on if it is not the training part)."""
    _named("clients", clients)
    whole = retrain if isinstance(retrain, Clients) else clients if retrain else None
    if isinstance(validation, Clients):
        if retrain is True:
            raise ConfigError("validation was given as Clients; give retrain the Clients that hold both parts, too.")
        return clients, validation, whole
    if not is_number(validation) or not 0 < validation < 1:
        raise ConfigError(
            f"validation is {validation!r}, expected the share of the training samples to choose by, such as 0.1, "
            "or Clients."
        )
    train, held_out = clients.split(1 - validation, seed=seed)
    return train, held_out, whole


def _check(workers: Any, trials: Any, search: Any, seed: Any, rounds: Any, options: dict[str, Any]) -> None:
    counts = {"workers": workers, "rounds": rounds} | ({"trials": trials} if trials is not None else {})
    for name, value in counts.items():
        check_whole(name, value, 1, error=ConfigError)
    check_seed("search_seed", seed, bits=32)
    if search is not None and search not in SEARCHES:
        raise ConfigError(f"search is {search!r}; {nearest(str(search), SEARCHES)}")
    taken = sorted(
        {
            "start",
            "start_state",
            "force_code",
            "splits",
            "seed",
            "callbacks",
            "copy",
            "stop_at_target",
            "checkpoint_every",
        }
        & options.keys()
    )
    if taken:
        raise ConfigError(f"tune does not take {taken[0]}, which `run` has; leave it out.")


def _open(folder: Path, resume: bool, content: dict[str, Any]) -> None:
    """Take a directory: an empty one, or one of an earlier search if it is to go on."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / FILE).exists():
            raise ConfigError(f"{folder} is not empty and holds no search of fedsub tune; choose another directory.")
        if not resume:
            raise CheckpointError(
                f"{folder} holds a search already; go on with it by resume=True (--resume), or choose another "
                "directory."
            )
    for part in ("trials", "winners"):
        make_folder(folder / part)
        with suppress(OSError):
            remove_temporaries(folder / part)
    write_atomic(
        folder / FILE,
        dump({"format": "fedsub-tune", "version": 1, **content, "made_with": {**versions(), **provenance()}}, indent=2),
    )
