"""The runs of an experiment: trained side by side, kept by configuration, read back if they were trained before.

    OUT/runs/<task>/<method>-seed<seed>-<digest>/     a run directory, with checkpoints until it has finished
    OUT/runs/<task>/<method>-seed<seed>-<digest>.json its record, written last
    OUT/search/<task>-<digest>/                       the search of the tuned protocol

The digest is of all that the numbers depend on: method, settings, seed, rounds, data, evaluation and the version of
the run format. So changed settings make new runs, and a second call trains nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from fedsub.data import Clients
from fedsub.disk.files import dump, make_folder
from fedsub.disk.rundir import VERSION
from fedsub.errors import RunError
from fedsub.method.names import normal
from fedsub.methods import make
from fedsub.running.result import Target
from fedsub.running.run import finished_result
from fedsub.study.comparing import Comparison
from fedsub.study.experiment.experiment import Experiment, Model
from fedsub.study.tuning import Tuning, tune
from fedsub.study.tuning.trials import Bench, Job, Trial
from fedsub.study.tuning.workers import Crew, Watch, run_all


@dataclass
class Loaded:
    """An experiment with its data, cut once for all that is trained on them."""

    experiment: Experiment
    whole: Clients
    train: Clients
    test: Clients | None
    notes: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, experiment: Experiment) -> Loaded:
        experiment.methods(1)  # mistakes in settings come before minutes of reading
        whole = experiment.clients()
        return cls(experiment, whole, *experiment.split(whole))

    def with_(self, experiment: Experiment) -> Loaded:
        """The same data under other settings."""
        return replace(self, experiment=experiment, notes=[])


@dataclass(frozen=True)
class Workshop:
    """Where runs are kept, and who trains them."""

    out: Path
    workers: int
    watch: Watch

    def folder(self, task: str) -> Path:
        return self.out / "runs" / task

    def compare(self, loaded: Loaded, title: str, seeds: Sequence[int]) -> Comparison:
        """Every method of the experiment with every seed."""
        config = loaded.experiment.config
        assert config.task is not None
        bench = _bench(loaded, self.folder(config.task))
        methods = {k: make(**s) for k, s in loaded.experiment.settings(len(loaded.train)).items()}
        jobs: list[Job] = []
        for seed in seeds:
            objective = bench.objective_of(seed)
            jobs += [
                bench.job(label, method, objective, seed, config.train.rounds) for label, method in methods.items()
            ]
        with Crew(bench, self.workers, self.watch) as crew:
            done = run_all(crew, jobs, self.watch, title)
        return _comparison(bench, jobs, done, config.run.target, loaded.notes)

    def winners(self, loaded: Loaded, title: str) -> Loaded:
        """The experiment with the settings that the search of its [tune] table chooses on validation data.

        What the file holds already is taken if it was found on the same task; else the search is made, or read.
        """
        experiment, config = loaded.experiment, loaded.experiment.config
        search = config.tune
        if search.winners_of == config.task and config.data.scale is None:
            note = f"settings as the search on {config.task} chose them, from the experiment's file"
            return replace(loaded, notes=[*loaded.notes, note])
        train, held_out, _, _ = experiment.split_with_validation(loaded.whole, search.validation)
        settings = experiment.settings(len(train))
        methods = {label: {"method" if k == "name" else k: v for k, v in s.items()} for label, s in settings.items()}
        found = tune(
            methods, Model(experiment, train), train, grid=_axes(search.grid, methods),
            rounds=config.trial_rounds, validation=held_out, seeds=config.train.seed_list, search=search.search,
            trials=search.trials,
            select=search.select, target=config.run.target, workers=self.workers, out=self._search(loaded, methods),
            resume=True, evaluate=replace(experiment.evaluation(), slices={}), engine=_engine(experiment),
            watch=self.watch, device=config.run.device, settings=_settings(experiment, train),
        )  # fmt: skip
        return replace(loaded, experiment=with_settings(experiment, found), notes=[*loaded.notes, *_told(found, title)])

    def _search(self, loaded: Loaded, methods: dict[str, Any]) -> Path:
        config = loaded.experiment.config
        identity = [methods, config.tune.model_dump(), config.trial_rounds, loaded.whole.fingerprint]
        digest = blake2b(dump(identity, sort_keys=True), digest_size=8).hexdigest()
        return self.out / "search" / f"{config.task}-{digest}"


def with_settings(experiment: Experiment, found: Tuning) -> Experiment:
    """The experiment with each method's winner; a method without one keeps what it had."""
    titles = {label: key for key, label in zip(experiment.config.methods, experiment.settings(1), strict=True)}
    methods = dict(experiment.config.methods)
    for label, setting in found.chosen.items():
        methods[titles[label]] = {**methods[titles[label]], **setting.values}
    return replace(experiment, config=experiment.config.model_copy(update={"methods": methods}))


def _told(found: Tuning, title: str) -> list[str]:
    chosen = "; ".join(f"{label}: {setting.words}" for label, setting in found.chosen.items())
    return [f"{title}: chosen by {found.criterion.title}, {chosen}", *found.notes]


def _axes(grid: list[str], methods: dict[str, Any]) -> list[str]:
    """The axes of the grid without those for methods that are not searched now."""
    known = {normal(name) for label, s in methods.items() for name in (label, s["method"])}
    owners = [(axis, axis.partition("=")[0].rpartition(".")[0]) for axis in grid]
    return [axis for axis, owner in owners if not owner or normal(owner) in known]


def _engine(experiment: Experiment) -> str:
    """Never chosen by timing: the last digits would depend on what else the machine does."""
    run = experiment.config.run
    return run.engine if "engine" in run.model_fields_set and run.engine != "auto" else "batched"


def _settings(experiment: Experiment, clients: Clients) -> dict[str, Any]:
    model = experiment.config.model.model_dump(exclude_none=True)
    return {"model": model, "label": clients.label, "format": VERSION}


def _bench(loaded: Loaded, folder: Path) -> Bench:
    experiment, run = loaded.experiment, loaded.experiment.config.run
    make_folder(folder)
    splits: Mapping[str, Clients] = {"train": loaded.train} | ({"test": loaded.test} if loaded.test else {})
    options = {
        "engine": _engine(experiment), "evaluate": experiment.evaluation(), "device": run.device, "chunk": run.chunk,
        "lost": run.lost, "on_bad_update": run.on_bad_update, "checkpoint_every": run.checkpoint_every,
        "settings": _settings(experiment, loaded.train),
    }  # fmt: skip
    return Bench(Model(experiment, loaded.train), loaded.train, splits, options, folder, keep=True, checkpoints=False)


def _comparison(
    bench: Bench, jobs: Sequence[Job], done: Mapping[str, Trial], target: str | None, notes: Sequence[str]
) -> Comparison:
    goal = None if target is None else Target.parse(target)
    results: dict[str, list[Any]] = {}
    said = list(notes)
    for job in jobs:
        trial = done[job.name]
        if trial.failure is not None:
            said.append(f"{job.label}, seed {job.seed}, stopped: {trial.failure}")
            continue
        assert bench.folder is not None
        result = finished_result(bench.folder / job.name)
        result.method = job.label
        results.setdefault(job.label, []).append(result)
    if not results:
        raise RunError("No run came to its end:\n" + "\n".join(f"  {note}" for note in said))
    made = Comparison(results, goal, path=bench.folder, notes=said, devices=None)
    made.metric = goal.metric if goal else next(iter(made.metrics()), made.metric)
    return made
