"""The flags of the commands, each with the setting of a TOML file that it stands for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, get_type_hints

import typer

DATA, TRAIN, SPEED, OUTPUT = "Data and model", "Training", "Speed and device", "Output"
PANELS = (DATA, TRAIN, SPEED, OUTPUT)
PRIVATE = "Private heat"


# Flags of a training that a search has no use for.
NOT_TUNED = (
    "stop_at_target", "tensorboard", "checkpoint_every", "validation", "split_per_seed", "force_code", "start",
    "start_state", "grow", "reference",
)  # fmt: skip


def _count(text: str) -> int | str:
    if text == "all":
        return text
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither a whole number nor 'all'.") from None


def seed_list(text: str) -> int | list[int]:
    try:
        return [int(t) for t in text.split(",") if t] if "," in text else int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r}: give how many (3) or which (0,7,8).") from None


def _option(panel: str, help: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


Strings = list[str] | None


@dataclass(frozen=True)
class DataFlags:
    """Each field is annotated with its type, its option and, if it is one, the setting it stands for."""

    client: Annotated[str | None, _option(DATA, "Column with the owner of each row."), "data.client"] = None
    label: Annotated[
        str | None, _option(DATA, "What to predict: a column (0 or 1, or two names), or 'rating>=4'."), "data.label"
    ] = None
    table: Annotated[
        Strings,
        _option(DATA, "Id column, or NAME=COL,COL for columns that share one table. Repeatable."),
        "data.tables",
    ] = None
    nulls: Annotated[
        str | None,
        _option(DATA, "Missing entries: refuse (default), drop their rows, or give ids a row of their own."),
        "data.nulls",
    ] = None
    separator: Annotated[
        str | None, _option(DATA, "Between the columns of text: ';', 'tab', … Guessed where clear."), "data.separator"
    ] = None
    encoding: Annotated[
        str | None, _option(DATA, "Of text: utf-8, cp1252, utf-16, … Guessed where clear."), "data.encoding"
    ] = None
    data: Annotated[str | None, _option(DATA, "Folder with a task's data.", metavar="DIR"), "data.path"] = None
    scale: Annotated[float | None, _option(DATA, "Size of generated data; 1 is full size."), "data.scale"] = None
    clients_per_round: Annotated[
        Any,
        _option(
            TRAIN, "Clients in a round, or 'all'. Default 50.", "--clients-per-round", "-k", parser=_count, metavar="N"
        ),
        "train.clients_per_round",
    ] = None
    clients_fraction: Annotated[
        float | None,
        _option(TRAIN, "C, instead: the share of the clients in a round, rounded up.", "--clients-fraction", "-C"),
        "train.clients_fraction",
    ] = None
    set: Annotated[
        Strings,
        _option(OUTPUT, "Any setting by its path in a TOML file: train.lr=0.3. Repeatable.", metavar="KEY=VALUE"),
    ] = None
    json: Annotated[bool, _option(OUTPUT, "Print one JSON object to stdout, all else to stderr.", "--json")] = False


@dataclass(frozen=True)
class Flags(DataFlags):
    value: Annotated[Strings, _option(DATA, "Plain column used as a feature. Repeatable."), "data.values"] = None
    split: Annotated[str | None, _option(DATA, "Train/test: random, time, last or none."), "split.by"] = None
    time_column: Annotated[str | None, _option(DATA, "Column to split by, for time and last."), "split.column"] = None
    validation: Annotated[
        float | None,
        _option(DATA, "Share of the training samples to choose a round by (0.1); training does not see them."),
        "split.validation",
    ] = None
    split_per_seed: Annotated[
        bool | None, _option(DATA, "Cut train and test anew for every seed.", "--split-per-seed"), "split.per_seed"
    ] = None
    model: Annotated[
        str | None,
        _option(
            DATA, "lr, embedding, lstm, user-item, din, linear or factorisation; your own: [model] objective in a file."
        ),
        "model.kind",
    ] = None

    rounds: Annotated[int | None, _option(TRAIN, "Rounds. Default 100, or the task's."), "train.rounds"] = None
    local_steps: Annotated[int | None, _option(TRAIN, "Local steps of a client. Default 10."), "train.local_steps"] = (
        None
    )
    local_epochs: Annotated[
        int | None, _option(TRAIN, "Passes over a client's data, instead of steps."), "train.local_epochs"
    ] = None
    batch_size: Annotated[
        Any,
        _option(TRAIN, "Samples in a local batch, or 'all'. Default 5.", parser=_count, metavar="N"),
        "train.batch_size",
    ] = None
    lr: Annotated[float | None, _option(TRAIN, "Local step size, for all methods. Default 0.1."), "train.lr"] = None
    seeds: Annotated[
        Any, _option(TRAIN, "How many seeds (3), or which (0,7,8).", parser=seed_list, metavar="N"), "train.seeds"
    ] = None
    seed: Annotated[int | None, _option(TRAIN, "This one seed."), "train.seeds"] = None
    target: Annotated[str | None, _option(TRAIN, "What to reach, like 'test.auc>=0.7'."), "run.target"] = None
    stop_at_target: Annotated[
        bool | None, _option(TRAIN, "Stop a run when it is reached.", "--stop-at-target"), "run.stop_at_target"
    ] = None
    start: Annotated[
        str | None,
        _option(TRAIN, "Begin with the model of another run: its directory, or its comparison's.", metavar="DIR"),
        "run.start",
    ] = None
    start_state: Annotated[
        bool | None, _option(TRAIN, "With what that run's server remembers, too.", "--start-state"), "run.start_state"
    ] = None
    grow: Annotated[
        bool | None, _option(TRAIN, "Give ids that --start does not know rows of their own.", "--grow"), "run.grow"
    ] = None
    reference: Annotated[
        str | None,
        _option(OUTPUT, "Method that the others are compared with, seed by seed. Default: the first.", metavar="NAME"),
        "run.reference",
    ] = None
    lost: Annotated[float | None, _option(TRAIN, "Chance that a client never delivers."), "run.lost"] = None
    every: Annotated[int | None, _option(TRAIN, "Evaluate every so many rounds. Default 10."), "evaluate.every"] = None
    metric: Annotated[
        Strings,
        _option(TRAIN, "A metric of your own, FILE:FUNCTION (docs/metrics.md). Repeatable.", metavar="FILE:FUNCTION"),
        "evaluate.metrics",
    ] = None
    rank: Annotated[
        str | None,
        _option(
            TRAIN,
            "Rank the ids of this column for every client: HR, NDCG, MRR, recall (docs/ranking.md).",
            metavar="COLUMN",
        ),
        "evaluate.ranking",
    ] = None
    norms: Annotated[
        int | None,
        _option(TRAIN, "Measure the gradient's norms on all training data every so many rounds (docs/theory.md)."),
        "evaluate.norms",
    ] = None

    engine: Annotated[str | None, _option(SPEED, "auto, batched, serial or ray."), "run.engine"] = None
    chunk: Annotated[int | None, _option(SPEED, "Clients trained together at most (batched)."), "run.chunk"] = None
    workers: Annotated[int | None, _option(SPEED, "Processes that train. Results do not change."), "run.workers"] = None
    address: Annotated[
        str | None,
        _option(SPEED, "Of a Ray cluster, with --engine ray (docs/cluster.md). Default: RAY_ADDRESS, else one here."),
        "run.address",
    ] = None
    deadline: Annotated[
        float | None,
        _option(SPEED, "Seconds a round that a Ray cluster has; who is late counts as lost."),
        "run.deadline",
    ] = None
    shards: Annotated[
        int | None, _option(SPEED, "Actors of a Ray cluster that hold the tables. Results do not change."), "run.shards"
    ] = None
    compile: Annotated[bool | None, _option(SPEED, "Use torch.compile.", "--compile"), "run.compile"] = None
    device: Annotated[str | None, _option(SPEED, "cpu, cuda, cuda:1, mps."), "run.device"] = None

    out: Annotated[
        str | None, _option(OUTPUT, "Output directory. Default runs/NAME-DATE-TIME.", metavar="DIR"), "run.out"
    ] = None
    resume: Annotated[bool, _option(OUTPUT, "Go on with what is in --out, if there is anything.", "--resume")] = False
    force_code: Annotated[
        bool, _option(OUTPUT, "With --resume: although the code of forward or loss has changed.", "--force-code")
    ] = False
    trust: Annotated[
        bool, _option(OUTPUT, "Execute code that a configuration names outside its own folder.", "--trust")
    ] = False
    checkpoint_every: Annotated[
        int | None, _option(OUTPUT, "Rounds between checkpoints. Default 10."), "run.checkpoint_every"
    ] = None
    tensorboard: Annotated[
        bool | None, _option(OUTPUT, "Also log to OUT/tensorboard.", "--tensorboard"), "run.tensorboard"
    ] = None
    devices: Annotated[
        str | None,
        _option(OUTPUT, "Time on phones, datacentre, a trace.csv or none (docs/async.md). Default phones."),
        "run.devices",
    ] = None
    quiet: Annotated[bool, _option(OUTPUT, "Print only the table and where the results are.", "--quiet", "-q")] = False


@dataclass(frozen=True)
class TuneFlags(Flags):
    workers: Annotated[int, _option(SPEED, "Processes that train trials. Results do not change.", min=1)] = 2
    resume: Annotated[
        bool, _option(OUTPUT, "Train only what --out does not hold yet; the grid may be wider.", "--resume")
    ] = False


def given(flags: DataFlags) -> list[tuple[str, str, Any]]:
    """(flag, path, value) of everything that was said on the command line."""
    return [
        (f"--{name.replace('_', '-')}", path[0], value)
        for name, (_, *path) in _annotations(type(flags)).items()
        if path and (value := getattr(flags, name)) not in (None, [])
    ]


def _annotations(kind: type[DataFlags]) -> dict[str, tuple[Any, ...]]:
    """(option, path or nothing) by field."""
    return {name: hint.__metadata__ for name, hint in get_type_hints(kind, include_extras=True).items()}


def takes(kind: type[DataFlags], without: tuple[str, ...] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the fields of ``kind`` as options, some left out; it gets them as its argument ``flags``."""

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(kind, include_extras=True)
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "flags"]
        kept = [f for f in fields(kind) if f.name not in without]
        names = [f.name for f in kept]
        options = [
            inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name])
            for f in sorted(kept, key=lambda f: PANELS.index(hints[f.name].__metadata__[0].rich_help_panel))
        ]

        def call(**values: Any) -> None:
            command(flags=kind(**{n: values.pop(n) for n in names}), **values)

        call.__signature__ = inspect.Signature([p.replace(kind=p.KEYWORD_ONLY) for p in own] + options)  # type: ignore[attr-defined]
        call.__name__, call.__doc__ = command.__name__, command.__doc__
        return call

    return wrap
