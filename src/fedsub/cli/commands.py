"""The commands: their arguments and their help. The work is in the neighbouring files, imported when needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsub.cli.options import NOT_TUNED, OUTPUT, PRIVATE, DataFlags, Flags, TuneFlags, seed_list, takes
from fedsub.errors import ConfigError

if TYPE_CHECKING:
    from fedsub.cli.show import View
    from fedsub.study.experiment.experiment import Experiment

What = Annotated[
    str,
    typer.Argument(
        metavar="WHAT",
        help="A task (such as movielens-like, movielens-1m, amazon-electronics), a data file (.csv, .tsv, .parquet), "
        "a directory written by Clients.save, or a .toml file.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout.")]
Trust = Annotated[
    bool, typer.Option("--trust", help="Execute code that the directory names, wherever it lies and came from.")
]
Methods = Annotated[
    str | None, typer.Option("--methods", help="Methods or labels of [methods], with commas: fedavg,fedsubavg.")
]
OneMethod = Annotated[
    list[str] | None, typer.Option("--method", "-m", help="One of them, also one with a comma. Repeatable.")
]


def examples(*lines: str) -> str:
    """An epilog; in Markdown, a blank line between two examples keeps them apart."""
    return "\n\n".join(["**Examples**", *(f"`{line}`" for line in lines)])


def _listed(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _view(made: Experiment, flags: Flags) -> View:
    """Where a command prints to, once it may execute what the configuration names."""
    from fedsub.cli import trust
    from fedsub.cli.show import View

    view = View(quiet=flags.quiet, as_json=flags.json)
    trust.check(made, view, trust=flags.trust, folder=made.base)
    return view


def register(app: typer.Typer) -> None:
    app.command(epilog=examples(
        "fedsub run movielens-like --method fedsubavg --scale 0.1 --rounds 50",
        "fedsub run ratings.csv --client user --label liked --table item",
        "fedsub run study.toml -m 'FedSubAvg capped' --set train.lr=0.3",
        "fedsub run newer.csv --client user --label liked --table item -m fedsubavg --start runs/first --grow",
    ))(run)  # fmt: skip
    app.command(epilog=examples(
        "fedsub compare movielens-like --methods fedavg,fedsubavg --seeds 3",
        "fedsub compare ratings.csv --client user --label liked --table item --table genre",
        "fedsub compare clicks.parquet --client user --label click --table item=item,history --model embedding",
        "fedsub compare study.toml --out results --resume --set train.lr=0.3",
    ))(compare)  # fmt: skip
    app.command(epilog=examples(
        "fedsub tune movielens-like --scale 0.1 --methods fedavg,fedsubavg --grid lr=0.1,0.3,1,3 --seeds 3",
        "fedsub tune ratings.csv --client user --label liked --table item --grid lr=0.01..10/7 --out runs/tuned",
        "fedsub tune study.toml --grid lr=0.01..10 --grid server_lr=0.1..10 --search random --trials 20",
    ))(tune)  # fmt: skip
    app.command(epilog=examples(
        "fedsub resume runs/movielens-like-20260131-120000",
        "fedsub resume runs/demo --devices datacentre",
        "fedsub resume runs/demo --rounds 400 --seeds 5",
    ))(resume)  # fmt: skip
    app.command(epilog=examples(
        "fedsub adapt runs/demo/fedper-seed0 newcomers.csv",
        "fedsub adapt runs/demo/fedper-seed0 newcomers.csv --steps 100 --lr 0.05 --json",
    ))(adapt)  # fmt: skip
    app.command(epilog=examples(
        "fedsub heat movielens-like",
        "fedsub heat ratings.csv --client user --table item --out heat.png",
        "fedsub heat study.toml -k 100 --json",
        "fedsub heat movielens-like --private rr:1 --private rr:4 --out private.png",
    ))(heat)  # fmt: skip
    app.command(epilog=examples(
        "fedsub reproduce table1 --data DIR",
        "fedsub reproduce table2 --task movielens --protocol stated --data DIR",
        "fedsub reproduce table3 --task amazon --twin --scale 0.1 --rounds 50",
    ))(reproduce)  # fmt: skip
    app.command(epilog=examples("fedsub methods", "fedsub methods fedsubavg"))(methods)


@takes(Flags)
def run(
    what: What,
    method: Annotated[
        str | None,
        typer.Option(
            "--method", "-m", help="A method (`fedsub methods` lists them), a label of [methods], or file.py:function."
        ),
    ] = None,
    *,
    flags: Flags,
) -> None:
    """Train one method and write its curves, model and report.

    Without --method FedAdagrad with a small tau, or the one method of a file.
    """
    from fedsub.cli.train import train
    from fedsub.cli.what import experiment

    made = experiment(what, flags, None if method is None else [method], usual=True, alone=True)
    if len(made.config.methods) != 1:
        several = ", ".join(made.config.methods)
        known = f"one of {several}, or another of `fedsub methods`" if several else "such as -m fedsubavg"
        raise ConfigError(f"Name the method to run with --method, {known}; fedsub compare trains several.")
    train(made, _view(made, flags), command="run", resume=flags.resume, force_code=flags.force_code)


@takes(Flags)
def compare(
    what: What,
    methods: Methods = None,
    method: OneMethod = None,
    *,
    flags: Flags,
) -> None:
    """Train several methods on the same data and compare them: a table, plots and one page.

    Without --methods those of the task or file; for a data file FedAvg, FedSubAvg as stated and tempered, and
    FedAdagrad with a small tau.
    """
    from fedsub.cli.train import train
    from fedsub.cli.what import experiment

    chosen = _listed(methods) + (method or [])
    made = experiment(what, flags, chosen or None, usual=True)
    train(made, _view(made, flags), command="compare", resume=flags.resume, force_code=flags.force_code)


@takes(TuneFlags, without=NOT_TUNED)
def tune(
    what: What,
    methods: Methods = None,
    method: OneMethod = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            help="What to search: lr=0.1,0.3,1 or lr=0.01..10/7 (seven points) or lr=0.01..10 (a range, for random); "
            "fedprox.mu=0.01,0.1 is for one method. Repeatable. Default: the file's [tune] grid, or lr=0.01..10/7.",
            metavar="AXIS=VALUES",
        ),
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(help="grid, random or optuna. Default grid; random if grids differ in size or --trials is given."),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Settings of each method, for random and optuna.", metavar="N")
    ] = None,
    search_seed: Annotated[int, typer.Option(help="Seed of random and optuna.", metavar="N")] = 0,
    select: Annotated[
        str | None,
        typer.Option(
            help="Choose by final (default) or best validation loss, by another metric (best:auc), or by the rounds to "
            "--target."
        ),
    ] = None,
    validation: Annotated[
        float | None,
        typer.Option(
            help="Share of the training samples to choose by; training does not see them. Default: the file's "
            "[split] or [tune] validation, else 0.1."
        ),
    ] = None,
    retrain_on_all: Annotated[
        bool, typer.Option("--retrain-on-all", help="Train the winners on training and validation samples together.")
    ] = False,
    *,
    flags: TuneFlags,
) -> None:
    """Search settings, the same way for every method, and compare the winners on test data.

    Settings are chosen on validation samples, cut from the training samples; the test samples are looked at once,
    when the choice is made.
    """
    from fedsub.cli.tune import tune as search_for
    from fedsub.cli.what import experiment

    chosen = _listed(methods) + (method or [])
    made = experiment(what, flags, chosen or None, usual=True)
    search_for(
        made,
        _view(made, flags),
        grid=grid,
        search=search,
        trials=trials,
        search_seed=search_seed,
        select=select,
        validation=validation,
        retrain_on_all=retrain_on_all,
        workers=flags.workers,
        resume=flags.resume,
    )


def resume(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="What --out was, or one run's directory in it.", show_default=False)
    ],
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only the table and where the results are.")
    ] = False,
    json: Json = False,
    devices: Annotated[
        str | None, typer.Option(help="Draw the estimated time for phones, datacentre or none, not as it was started.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Train further, to so many rounds in all.", metavar="N")
    ] = None,
    seeds: Annotated[
        Any,
        typer.Option(help="Train more seeds: how many in all (5), or which (0,1,2,7).", parser=seed_list, metavar="N"),
    ] = None,
    force_code: Annotated[
        bool, typer.Option("--force-code", help="Go on although the code of forward or loss has changed.")
    ] = False,
    may_execute: Trust = False,
) -> None:
    """Go on with an interrupted run or comparison, as it was started; the result is the same.

    A finished one is drawn again, or trained further by --rounds and --seeds.
    """
    from fedsub.cli import folder, trust
    from fedsub.cli.show import View
    from fedsub.cli.train import finished, report, train

    out, command, made, warnings = folder.load(directory)
    if devices is not None:
        made = made.with_devices(devices)
    if rounds is not None or seeds is not None:
        made = made.with_more(rounds, seeds)
        folder.check(out, made, resume=True)
    view = View(quiet=quiet, as_json=json)
    trust.check(made, view, trust=may_execute, folder=trust.folder_of(out, made.base))
    with view.busy("Loading"):
        done = finished(made, out)
    if done is not None:
        view.note(f"{out} is finished already.")
        report(done, out, view, command)
        return
    for warning in warnings:
        view.stopped(f"Warning: {warning}")
    train(made, view, command=command, out=out, resume=True, force_code=force_code)


def adapt(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_DIR", help="A finished run of a method with personal parameters.", show_default=False
        ),
    ],
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA", help="The newcomers' data: a file or directory like the run's own.", show_default=False
        ),
    ],
    steps: Annotated[int, typer.Option(min=1, help="Local steps of each client.")] = 50,
    lr: Annotated[float, typer.Option(help="Local step size.")] = 0.1,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples in a local batch.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the batches and of the first values.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the table.")] = False,
    json: Json = False,
    may_execute: Trust = False,
) -> None:
    """Give clients that took no part personal parameters of their own; what was trained stays as it is.

    Data are read and cut into train and test as the run's were. The shared model is printed beside the adapted one.
    """
    from fedsub.cli.adapt import adapt as fit
    from fedsub.cli.show import View

    view = View(quiet=quiet, as_json=json)
    fit(directory, data, steps, lr, batch_size, seed, view, may_execute=may_execute)


@takes(DataFlags)
def heat(
    what: What,
    out: Annotated[
        Path | None, typer.Option(help="The picture. Default NAME-heat.png.", metavar="FILE", rich_help_panel=OUTPUT)
    ] = None,
    private: Annotated[
        list[str] | None,
        typer.Option(
            help="Estimate heat in private, beside the exact one: rr:1, prr:2, hadamard:1,rows=100, "
            "histogram:1,rows=100, secure (docs/private_heat.md). Repeatable.",
            metavar="HOW",
            rich_help_panel=PRIVATE,
        ),
    ] = None,
    weighted: Annotated[
        bool, typer.Option("--weighted", help="With --private: heat by samples.", rich_help_panel=PRIVATE)
    ] = False,
    seed: Annotated[
        int, typer.Option(min=0, help="With --private: of the random answers.", rich_help_panel=PRIVATE)
    ] = 0,
    *,
    flags: DataFlags,
) -> None:
    """How many clients hold each table row, and how unequal that is: numbers and a picture."""
    if private:
        from fedsub.cli.private_heat import show as show_private

        show_private(what, flags, out, private, weighted, seed)
        return
    from fedsub.cli.heat import show

    show(what, flags, out)


def reproduce(
    what: Annotated[
        str, typer.Argument(metavar="WHAT", help="table1, table2, table3, figure3 or figure4.", show_default=False)
    ],
    task: Annotated[str, typer.Option(help="movielens, sentiment, amazon, alibaba, several with commas, or all.")] = (
        "all"
    ),
    protocol: Annotated[
        str, typer.Option(help="stated: the paper's settings; tuned: all methods searched on one grid.")
    ] = "stated",
    seeds: Annotated[Any, typer.Option(help="How many seeds, or which (0,7,8).", parser=seed_list, metavar="N")] = "3",
    data: Annotated[
        Path | None, typer.Option(help="Folder with one or several data sets. Default: the cache.", metavar="DIR")
    ] = None,
    twin: Annotated[bool, typer.Option("--twin", help="On synthetic data of the same shape.")] = False,
    scale: Annotated[float | None, typer.Option(help="Size of the synthetic data; 1 is full size.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds. Default: the experiment's.")] = None,
    methods: Annotated[str | None, typer.Option(help="Only these, with commas: fedavg,fedsubavg.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that train. Results do not change.")] = 2,
    out: Annotated[Path, typer.Option(help="Where runs are kept and results written.", metavar="DIR")] = Path(
        "runs/reproduce"
    ),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the table and where it is.")] = False,
    json: Json = False,
) -> None:
    """Run the experiments of the FedSubAvg paper again: published numbers beside ours.

    What was trained before is read, so that a second call only draws; an interrupted one goes on.
    """
    from fedsub.cli.reproduce import run as make
    from fedsub.cli.show import View
    from fedsub.study.experiment.experiment import expand
    from fedsub.study.reproduce import Request

    chosen = tuple(_listed(methods))
    folder = None if data is None else expand(str(data))
    request = Request(
        what, task, protocol, seeds, folder, twin, scale, rounds, chosen, workers, out  # type: ignore[arg-type]
    )  # fmt: skip
    make(request, View(quiet=quiet, as_json=json))


def methods(
    name: Annotated[str | None, typer.Argument(help="One method, in detail.", show_default=False)] = None,
    json: Json = False,
) -> None:
    """The methods, their formulas, papers and settings."""
    from fedsub.cli.catalogue import show

    show(name, as_json=json)
