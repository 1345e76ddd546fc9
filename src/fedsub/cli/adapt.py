"""`fedsub adapt`: fresh personal parameters for clients that took no part in a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsub.cli import folder, trust
from fedsub.cli.show import View, number
from fedsub.errors import CheckpointError, ConfigError
from fedsub.method.engine import computed_by
from fedsub.study.experiment.config import merge, parse
from fedsub.study.experiment.experiment import Experiment, expand

if TYPE_CHECKING:
    from fedsub.data import Clients
    from fedsub.method.parts import Personal
    from fedsub.method.training import Algorithm

METRICS = {
    "loss": "loss",
    "worst_decile_loss": "loss, worst tenth",
    "auc": "AUC",
    "worst_decile_auc": "AUC, worst tenth",
}


@dataclass(frozen=True)
class Found:
    """A finished run of a method with personal parameters."""

    path: Path
    experiment: Experiment
    label: str
    seed: int


def adapt(
    directory: Path, data: str, steps: int, lr: float, batch_size: int | None, seed: int, view: View, *,
    may_execute: bool = False,
) -> None:  # fmt: skip
    """Train the newcomers' own parameters, and say what that gains them over the shared ones."""
    out, _, experiment, warnings = folder.load(directory)
    trust.check(experiment, view, trust=may_execute, folder=trust.folder_of(out, experiment.base))
    for warning in warnings:
        view.stopped(f"Warning: {warning}")
    from fedsub.running.adapt import adapt as fit
    from fedsub.running.load import load

    with view.busy("Loading"):
        run = _choose(experiment, out, directory)
        trained_on, _ = experiment.parts(run.seed)
        method: Any = experiment.methods(len(trained_on))[run.label]
        objective = experiment.objective(trained_on)(run.seed)
        shared = load(run.path).params
        train, test, lost = _newcomers(experiment, data, trained_on)
        part = _personal(method)
    known = len(set(train.client_ids.tolist()) & set(trained_on.client_ids.tolist()))
    view.note(f"{run.path}: {run.label}; {len(train):,} new clients, {train.samples:,} samples to adapt to")
    if lost:
        view.note(f"Left out {lost:,} samples with ids that training never saw.")
    if known:
        view.stopped(f"Warning: {known:,} of the clients took part in training; they are treated as new ones.")

    with view.busy("Adapting"):
        made = fit(
            shared, objective, train, part.names, steps=steps, lr=lr, batch_size=batch_size, init=part.init,
            seed=seed, test=test, evaluate=experiment.evaluation(), engine=computed_by(experiment.config.run.engine),
        )  # fmt: skip
    _show(made.metrics, view)
    view.finish({"run": str(run.path), "method": run.label, "clients": len(train), "left_out": lost, **made.metrics})


def _choose(experiment: Experiment, out: Path, directory: Path) -> Found:
    """The run that was meant: the directory's own, or the only one of a comparison with personal parameters."""
    from fedsub.study.comparing import slug

    seeds = experiment.config.train.seed_list
    runs = {out / f"{slug(label)}-seed{seed}": (label, seed) for label in experiment.settings(1) for seed in seeds}
    named = next((path for path in runs if path.resolve() == directory.resolve()), None)
    if named is None:
        methods = experiment.methods(1)
        personal = [path for path, (label, seed) in runs.items() if _kept(methods[label]) and seed == seeds[0]]
        if len(personal) != 1:
            what = "no method with personal parameters" if not personal else f"{len(personal)} of them"
            raise ConfigError(
                f"{out} holds {what}; name the directory of one run, such as "
                f"{next(iter(personal or runs))}, of a method with personal=…."
            )
        named = personal[0]
    if not (named / "result.json").exists():
        raise CheckpointError(f"{named} is not finished; go on with it by: fedsub resume {out}")
    return Found(named, experiment, *runs[named])


def _kept(method: Algorithm) -> Personal | None:
    """What a method says of clients' own parameters, of which new clients get fresh ones."""
    from fedsub.method.parts import Personal

    keeper = getattr(method, "keeper", None)  # of a composition of slots, and of nodes without a server
    return keeper if isinstance(keeper, Personal) and keeper.names else None


def _personal(method: Algorithm) -> Personal:
    if (found := _kept(method)) is None:
        raise ConfigError(
            f"{method.name} keeps no parameters at the clients, so there is nothing to adapt; train one that does, "
            "such as fedper, or fedsubavg with personal = …."
        )
    return found


def _newcomers(experiment: Experiment, data: str, like: Clients) -> tuple[Clients, Clients | None, int]:
    """(train, test, samples left out) of new data, read and cut as the run's were, with its row numbers."""
    from fedsub.data.align import align

    raw = merge(experiment.config.plain(), {"data": {"path": str(expand(data).resolve())}})
    new = Experiment(parse(raw, "The settings"), experiment.base)
    train, test = new.parts()
    train, lost = align(train, like)
    if test is not None:
        test, more = align(test, like)
        lost += more
    return train, test, lost


def _show(metrics: dict[str, Any], view: View) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("mean over clients", "split", "shared", "adapted"):
        table.add_column(heading, justify="right" if heading in ("shared", "adapted") else "left")
    for split, found in metrics.items():
        own, shared = found["by_client"], found["shared"]["by_client"]
        for name, words in METRICS.items():
            if name in own:
                table.add_row(words, split, number(shared[name]), number(own[name]))
    view.console.print(table)
    for split, found in metrics.items():
        view.line(f"{split}: the loss of {found['gain']['better_off']:.0%} of the clients is lower than without.")
