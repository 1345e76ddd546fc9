"""`fedsub run` and `fedsub compare`: check everything, train, report."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fedsub.cli import folder
from fedsub.cli.show import View
from fedsub.errors import ConfigError, MethodError, nearest
from fedsub.study.experiment.experiment import Experiment, expand

if TYPE_CHECKING:
    from fedsub.cli.progress import Follow
    from fedsub.data import Clients
    from fedsub.objective.losses import Loss
    from fedsub.round.evaluate import Evaluate
    from fedsub.running.result import Target
    from fedsub.study.comparing import Comparison
    from fedsub.study.experiment.config import Model


def train(
    experiment: Experiment,
    view: View,
    *,
    command: str,
    out: Path | None = None,
    resume: bool = False,
    force_code: bool = False,
) -> None:
    """Everything that can be wrong is found before the directory is made."""
    config = experiment.config
    if out is None:
        out = expand(config.run.out) if config.run.out else folder.default_out(experiment.name)
    folder.check(out, experiment, resume=resume)
    with view.busy("Loading"):
        from fedsub.running.device import check_device
        from fedsub.study.comparing import compare

        target, plan = _target(config.run.target), experiment.evaluation()
        experiment.methods(1)  # mistakes in settings come before minutes of reading
        check_device(config.run.device)
        cut, own_split = experiment.cuts(), config.split.per_seed
        first = cut(config.train.seed_list[0])
        clients = first["train"]
        methods = experiment.methods(len(clients))
        for label, method in methods.items():
            try:
                method.check_population(clients.sizes)
            except MethodError as error:  # too large a cohort
                raise MethodError(f"{label}: {error}") from error
        objective = experiment.objective(clients)
        if own_split:
            objective = lambda seed: experiment.objective(cut(seed)["train"])(seed)  # noqa: E731
        # Tried now, mistakes show before anything is written; the loss of other kinds is known without making tables.
        tried = config.model.objective is not None or config.model.kind in ("linear", "factorisation")
        loss = objective(config.train.seed_list[0]).loss if tried else _loss(clients, config.model)
        if target is not None:
            _check_metric(target, loss, plan, [*first])
    if not methods:
        raise ConfigError("No method is named; give --methods fedavg,fedsubavg or a [methods] table.")
    reference = experiment.reference(methods)
    claim = folder.claimed(out, command, experiment, experiment.settings(len(clients)))
    seeds, rounds = config.train.seed_list, config.train.rounds
    held_out = "".join(f"; {name}: {part.samples:,} samples" for name, part in first.items() if name != "train")
    view.note(f"{experiment.name}: {_counts(clients)}{held_out}" + (" (seed by seed anew)" if own_split else ""))
    view.note(f"Writing to {out}")

    from fedsub.cli.progress import follow

    watch = follow(view, list(methods), seeds, rounds, target.metric if target else None)
    callbacks: list[Any] = [watch]
    if config.run.tensorboard:
        from fedsub.running.trackers import TensorBoard

        callbacks.append(TensorBoard(str(out / "tensorboard")))
    parts: dict[str, Any] = {} if own_split else {"splits": first}
    with stopping(out, view, watch), claim, watch:
        comparison = compare(
            methods,
            objective,
            cut if own_split else clients,
            **parts,
            rounds=rounds,
            seeds=seeds,
            out=out,
            resume=resume,
            force_code=force_code,
            start=experiment.start(),
            start_state=config.run.start_state,
            target=target,
            devices=experiment.devices(),
            reference=reference,
            callbacks=callbacks,
            engine=config.run.computed,
            chunk=config.run.chunk,
            workers=config.run.workers,
            shards=config.run.shards,
            compile=config.run.compile,
            device=config.run.device,
            stop_at_target=config.run.stop_at_target,
            lost=config.run.lost,
            on_bad_update=config.run.on_bad_update,
            checkpoint_every=config.run.checkpoint_every,
            evaluate=plan,
            settings={"model": config.model.model_dump(exclude_none=True), "label": clients.label},
        )
    report(comparison, out, view, command)


def finished(experiment: Experiment, out: Path) -> Comparison | None:
    """The comparison of a directory in which every run is finished; needs no data."""
    from fedsub.running.going_on import finished as is_finished
    from fedsub.study.comparing import slug
    from fedsub.study.reading import read_comparison

    labels, seeds, rounds = experiment.settings(1), experiment.config.train.seed_list, experiment.config.train.rounds
    if not labels or not all(
        is_finished(out / f"{slug(label)}-seed{seed}", rounds) for label in labels for seed in seeds
    ):
        return None
    made = read_comparison(out)
    made.devices = experiment.devices()
    _refuse_others(made)
    made.reference = experiment.reference(made.results)
    return made


def _refuse_others(made: Comparison) -> None:
    """Steps that were made on some devices are not drawn as if they had been made on others."""
    from fedsub.disk.rundir import RunDir
    from fedsub.method.described import describe

    for result in [r for results in made.results.values() for r in results]:
        own = RunDir(result.path).config().get("devices") if result.path is not None else None
        if own is not None and made.devices is not None and own != describe(made.devices):
            raise ConfigError(
                f"{result.method} was trained on {own['name']}, and its time cannot be drawn for "
                f"{getattr(made.devices, 'name', made.devices)}: an asynchronous run depends on its devices. Leave "
                "--devices out, or train it again."
            )


DIVERGED = 3  # the exit code of a command that did its work, of which some run diverged or could not go on


def report(comparison: Comparison, out: Path, view: View, command: str) -> None:
    """The table, the page, and when each method first reached the target; exit code 3 if a run diverged."""
    with view.busy("Drawing"):
        page = comparison.save(out)
    view.table(comparison)
    for line in _first_rounds(comparison):
        view.note(line)
    view.line(f"Report: {page}")
    view.note(f"Plots, tables and runs: {out}")
    runs = [r for results in comparison.results.values() for r in results]
    view.finish(
        {
            "command": command,
            "out": str(out),
            "report": str(page),
            "target": str(comparison.target) if comparison.target else None,
            "metric": comparison.metric,
            "chosen_by": comparison.chosen_by,
            "reference": comparison.reference,
            "notes": comparison.notes,
            "methods": comparison.rows(),
            "runs": [
                {
                    "method": r.method,
                    "seed": r.seed,
                    "path": str(r.path),
                    "rounds": r.history[-1]["round"] if r.history else 0,
                    "first": r.first_round(comparison.target) if comparison.target else None,
                    "engine": r.engine,
                    "seconds": r.seconds,
                    "diverged": r.diverged,
                    "final": r.final,
                }
                for r in runs
            ],
        }
    )
    if comparison.diverged or comparison.failed:
        raise typer.Exit(DIVERGED)


def _first_rounds(comparison: Comparison) -> list[str]:
    if comparison.target is None:
        return []
    lines = [f"First round with {comparison.target}:"]
    for row in comparison.rows():
        rounds = ["never" if first is None else str(first) for first in row["first"]]
        lines.append(f"  {row['method']}: {', '.join(rounds)}" + (" (by seed)" if len(rounds) > 1 else ""))
    return lines


@contextmanager
def stopping(out: Path, view: View, watch: Follow) -> Iterator[None]:
    """Ctrl-C: say what is kept and how to go on; exit code 130."""
    from fedsub.running.run import Interrupted

    where = shlex.quote(str(out))
    try:
        yield
    except Interrupted:
        view.stopped(
            f"Stopped after round {watch.round} of {watch.title}; it is saved. Go on with: fedsub resume {where}"
        )
        raise typer.Exit(130) from None
    except KeyboardInterrupt:
        view.stopped(f"Stopped; all up to the last checkpoint is saved. Go on with: fedsub resume {where}")
        raise typer.Exit(130) from None


def _target(text: str | None) -> Target | None:
    from fedsub.running.result import Target

    return None if text is None else Target.parse(text)


def _loss(clients: Clients, model: Model) -> Loss | None:
    """Of a built-in model: by the labels, where it can be so (None: cross-entropy of 0 and 1)."""
    from fedsub.objective.models import options_of, usual_loss

    if clients.label is None or "loss" not in options_of(model.kind):
        return None
    return usual_loss(clients, clients.label, model.kind, model.loss)


def _check_metric(target: Target, loss: Loss | None, plan: Evaluate, splits: list[str]) -> None:
    """A target on a metric that is never measured would be missed without a word. No loss: a built-in model's."""
    from fedsub.objective.losses import Binary

    loss = Binary() if loss is None else loss
    known = [f"{split}.{kind}" for split in splits for kind in plan.measured(loss, split)]
    known += [f"{name}.{kind}" for name in plan.slices for kind in plan.measured(loss, "train")]
    if target.metric not in known:
        raise ConfigError(f"The target {target} is about {target.metric!r}; {nearest(target.metric, known)}")


def _counts(clients: Clients) -> str:
    rows = sum(space.size for space in clients.spaces.values())
    return f"{len(clients):,} clients, {clients.samples:,} training samples, {rows:,} table rows"
