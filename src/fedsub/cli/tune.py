"""`fedsub tune`: search the settings of several methods in the same way and compare the winners."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.text import Text

from fedsub.cli import folder
from fedsub.cli.progress import bars
from fedsub.cli.show import View, number
from fedsub.cli.train import _counts
from fedsub.disk.files import digest
from fedsub.disk.text import visible
from fedsub.errors import ConfigError
from fedsub.method.engine import computed_by
from fedsub.running.device import check_device
from fedsub.running.run import Interrupted
from fedsub.study.experiment.experiment import Experiment, Model, expand
from fedsub.study.experiment.making import is_own
from fedsub.study.tuning import Tuning
from fedsub.study.tuning import tune as search_for
from fedsub.study.tuning.trials import Job, Trial
from fedsub.study.tuning.workers import Watch

if TYPE_CHECKING:
    from fedsub.data import Clients


class Lines(Watch):
    """``Trials 12 of 63: FedAvg, seed 1, validation loss 0.6712``, and a bar with the time left on a terminal."""

    def __init__(self, view: View):
        self.view, self.title, self.total, self.done = view, "", 0, 0
        self.bars = bars(view) if view.console.is_terminal and not view.quiet else None
        self.task: Any = None

    def on_phase(self, title: str, total: int, done: int) -> None:
        self.title, self.total, self.done = title, total, done
        if done:
            self.view.note(f"{title}: {done} of {total} were trained before and are read.")
        if self.bars is not None:
            if self.task is not None:
                self.bars.remove_task(self.task)
            self.task = self.bars.add_task(title, total=total, completed=done, value="")

    def on_trial(self, job: Job, trial: Trial) -> None:
        self.done += 1
        split = "test" if "test" in trial.final else "validation"
        end = f"{split} loss {number(trial.loss(split))}" if trial.failure is None else "failed"
        text = visible(f"{job.label}, seed {job.seed}, {end}")
        if self.bars is None:
            self.view.note(f"{self.title} {self.done} of {self.total}: {text}")
        else:
            self.bars.update(self.task, completed=self.done, value=text)

    @contextmanager
    def shown(self) -> Iterator[None]:
        if self.bars is None:
            yield
        else:
            with self.bars:
                yield


def tune(
    experiment: Experiment,
    view: View,
    *,
    grid: list[str] | None,
    search: str | None,
    trials: int | None,
    search_seed: int,
    select: str | None,
    validation: float | None,
    retrain_on_all: bool,
    workers: int,
    resume: bool,
) -> None:
    config = experiment.config
    if config.run.start is not None:
        raise ConfigError("run.start is for fedsub run and compare: trials of a search all begin anew; leave it out.")
    out = expand(config.run.out) if config.run.out else folder.default_out(f"{experiment.name}-tune")
    file = config.tune
    grid = grid or file.grid or ["lr=0.01..10/7"]
    search, trials = search or file.search, trials or file.trials
    validation = validation or config.split.validation or file.validation
    if not 0 < validation < 1:
        raise ConfigError(f"--validation is {validation:g}, expected a share of the training samples, such as 0.1.")
    if config.run.stop_at_target:
        raise ConfigError("run.stop_at_target has no meaning for fedsub tune, which trains all rounds; leave it out.")
    with view.busy("Loading"):
        searched = {axis.partition("=")[0].rpartition(".")[2].strip() for axis in grid}
        experiment.methods(1, searched)  # mistakes in settings come before minutes of reading
        plan = replace(experiment.evaluation(), slices={})
        check_device(config.run.device)
        parts = experiment.split_with_validation(experiment.clients(), validation)
        train, held_out, both, test = parts
        settings = experiment.settings(len(train))
        methods = {label: _by_method(experiment, label, given) for label, given in settings.items()}
    view.note(
        f"{experiment.name}: {_counts(train)}; validation: {held_out.samples:,} samples"
        + (f"; test: {test.samples:,} samples" if test else "; no test split")
    )
    view.note(f"Writing to {out}")
    watch = Lines(view)
    try:
        with watch.shown():
            found = search_for(
                methods,
                Model(experiment, train),
                train,
                grid=grid,
                rounds=config.trial_rounds,
                test=test,
                validation=held_out,
                retrain=both if retrain_on_all else False,
                seeds=config.train.seed_list,
                search=search,  # type: ignore[arg-type]
                trials=trials,
                search_seed=search_seed,
                select=select or file.select,  # type: ignore[arg-type]
                target=config.run.target,
                workers=workers,
                out=out,
                resume=resume,
                evaluate=plan,
                # Trials have processes of their own, and an engine that depended on timings would change the last
                # digits with the workers.
                engine=computed_by(config.run.engine) if "engine" in config.run.model_fields_set else "batched",
                watch=watch,
                chunk=config.run.chunk,
                compile=config.run.compile,
                device=config.run.device,
                lost=config.run.lost,
                on_bad_update=config.run.on_bad_update,
                settings=_identity(experiment, train),
            )
    except Interrupted:
        view.stopped(
            f"Stopped; finished trials are kept. Go on with the same command and --resume --out {shlex.quote(str(out))}"
        )
        raise typer.Exit(130) from None
    assert found.path is not None
    with view.busy("Drawing"):
        page = found.page(found.path)
    _report(found, page, view)


def _by_method(experiment: Experiment, label: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as `fedsub.tune` takes them: "method" is a name, or the function that makes it."""
    name = settings["name"]
    made = experiment.own_method(name, f"methods.{label}").make if is_own(name) else name
    return {"method": made, **{k: v for k, v in settings.items() if k != "name"}}


def _identity(experiment: Experiment, train: Clients) -> dict[str, Any]:
    """What numbers depend on besides the methods' settings: a trial of other code is another trial."""
    found = {"model": experiment.config.model.model_dump(exclude_none=True), "label": train.label}
    code = {name: digest(file) for name, file in experiment.own_files().items()}
    return found | ({"code": code} if code else {})


def _report(found: Tuning, page: Path, view: View) -> None:
    if not view.quiet:
        view.console.print(Text(visible("\n" + found.trials_table().rstrip())), soft_wrap=True)
    view.console.print(Text(visible(("" if view.quiet else "\n") + found.table().rstrip())), soft_wrap=True)
    view.line(f"Report: {page}")
    view.line(f"All trials: {found.path}/trials.csv; winners: winners.csv, by heat decile: deciles.csv")
    view.finish(
        {
            "command": "tune",
            "out": str(found.path),
            "report": str(page),
            "search": found.search,
            "criterion": found.criterion.title,
            "trials": found.counts,
            "notes": found.notes,
            "winners": [
                {
                    "method": label,
                    "settings": setting.values,
                    "validation": [found.criterion.value(t) for t in setting.trials],
                    "test": [{"seed": t.seed, **t.final.get("test", {})} for t in found.tested.get(label, [])],
                }
                for label, setting in found.chosen.items()
            ],
        }
    )
