"""`fedsub vertical`: which ids two parties share; a split model, simulated or as real processes; attacks on labels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedsub.cli import vertical_attack
from fedsub.cli.commands import Json, Trust, examples
from fedsub.errors import ConfigError

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Learning between parties with different features: align ids, train a split model, attack its labels.",
)
LINE, RUN = "The line", "Training"
Listen = Annotated[
    str | None, typer.Option(help="Wait for the other side here.", metavar="HOST:PORT", rich_help_panel=LINE)
]
Certificate = Annotated[
    Path | None, typer.Option(help="This side's certificate (PEM).", metavar="FILE", rich_help_panel=LINE)
]
Key = Annotated[Path | None, typer.Option(help="Its key (PEM).", metavar="FILE", rich_help_panel=LINE)]
Authority = Annotated[
    Path | None,
    typer.Option(help="Who must have signed the other side's certificate (PEM).", metavar="FILE", rich_help_panel=LINE),
]
Only = Annotated[
    str | None,
    typer.Option(
        help="With --listen: the common name of the certificate that may connect. Default: any of the authority's.",
        metavar="NAME", rich_help_panel=LINE,
    ),
]  # fmt: skip
Plain = Annotated[
    bool, typer.Option("--without-tls", help="Anybody on the way can read and change it.", rich_help_panel=LINE)
]


@app.callback()
def vertical() -> None:
    """Learning between parties with different features: align ids, train a split model, attack its labels."""


@app.command(epilog=examples(
    "fedsub vertical align shop.csv --id person --listen 0.0.0.0:7070 --certificate shop.pem --key shop.key "
    "--authority ca.pem",
    "fedsub vertical align paper.csv --id person --connect shop.example.org:7070 --certificate paper.pem --key "
    "paper.key --authority ca.pem --out shared.csv",
))  # fmt: skip
def align(
    file: Annotated[Path, typer.Argument(help="This side's samples: .csv, .tsv or .parquet.", show_default=False)],
    id: Annotated[str, typer.Option("--id", help="The column with the ids.")] = "id",
    listen: Listen = None,
    connect: Annotated[
        str | None, typer.Option(help="Or: where the other side waits.", metavar="HOST:PORT", rich_help_panel=LINE)
    ] = None,
    certificate: Certificate = None,
    key: Key = None,
    authority: Authority = None,
    only: Only = None,
    without_tls: Plain = False,
    count_only: Annotated[bool, typer.Option("--count-only", help="Only how many ids are shared.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="This side's shared samples: .csv or .parquet. Default FILE-shared.", metavar="FILE"),
    ] = None,
    json: Json = False,
) -> None:
    """Find the ids that two parties share, and tell neither of the others. The same command runs on both sides."""
    from fedsub.cli.show import View
    from fedsub.cli.vertical_runs import Line
    from fedsub.cli.vertical_runs import align as run_align

    line = Line(listen, connect, certificate, key, authority, without_tls, only)
    run_align(file, id, line, count_only=count_only, out=out, view=View(as_json=json))


@app.command(epilog=examples(
    "fedsub vertical run ads-like --rounds 20",
    "fedsub vertical run movielens-din --data ~/data/movielens-1m --scale 0.2",
    "fedsub vertical run study.toml --party shop --listen 0.0.0.0:7071 --certificate shop.pem --key shop.key "
    "--authority ca.pem",
    "fedsub vertical run study.toml --party paper --connect shop=shop.example.org:7071 --certificate paper.pem --key "
    "paper.key --authority ca.pem --resume",
))  # fmt: skip
def run(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="A .toml file (docs/vertical.md), or movielens-1m, movielens-din, history-like, ads-like.",
            show_default=False,
        ),
    ],
    party: Annotated[
        str | None,
        typer.Option(help="Be this party, a process of its own. Default: simulate all of them here.", metavar="NAME"),
    ] = None,
    listen: Listen = None,
    connect: Annotated[
        list[str] | None,
        typer.Option(help="Where a feature party waits. Repeatable.", metavar="NAME=HOST:PORT", rich_help_panel=LINE),
    ] = None,
    certificate: Certificate = None,
    key: Key = None,
    authority: Authority = None,
    only: Only = None,
    without_tls: Plain = False,
    data: Annotated[str | None, typer.Option(help="Folder with a task's data.", metavar="DIR")] = None,
    scale: Annotated[float | None, typer.Option(help="Size of a task's data; 1 is full size.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds. Default 20.", rich_help_panel=RUN)] = None,
    steps: Annotated[int | None, typer.Option(help="Batches of a round. Default 100.", rich_help_panel=RUN)] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Samples of a batch. Default 256.", rich_help_panel=RUN)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Default 0.", rich_help_panel=RUN)] = None,
    target: Annotated[
        str | None, typer.Option(help="What to reach, like 'test.auc>=0.7'.", rich_help_panel=RUN)
    ] = None,
    protect: Annotated[
        str | None,
        typer.Option(
            help="What the label party does to gradients it sends: marvell:4, maxnorm, …", rich_help_panel=RUN
        ),
    ] = None,
    set: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any setting by its path: parties.shop.dim=8. Repeatable.", metavar="KEY=VALUE"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Default runs/NAME-DATE-TIME.", metavar="DIR")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what is in --out.")] = False,
    trust: Trust = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the table and where it is.")] = False,
    json: Json = False,
) -> None:
    """Train a split model: all parties here, or one of them, with the others in processes elsewhere."""
    from fedsub.cli import trust as code
    from fedsub.cli.show import View
    from fedsub.cli.vertical_runs import Line, feature, labelled, simulated
    from fedsub.study.experiment.config import merge, parse_set
    from fedsub.vertical.config import read

    train = {"rounds": rounds, "steps": steps, "batch_size": batch_size, "seed": seed, "target": target,
             "protect": protect}  # fmt: skip
    above: dict[str, Any] = {"train": {name: value for name, value in train.items() if value is not None}}
    above |= {name: value for name, value in (("data", data), ("scale", scale)) if value is not None}
    for text in set or []:
        above = merge(above, parse_set(text))
    study = read(what, above)
    view = View(quiet=quiet, as_json=json)
    code.check_code(study.code(), study.base, view, trust=trust, folder=study.base)
    lines = dict(_named(text, study.others) for text in connect or [])
    if party is None:
        if listen or lines:
            raise ConfigError("--listen and --connect are for a party that is a process of its own: --party NAME.")
        simulated(study, view, out, resume)
        return
    if party not in study.names:
        from fedsub.errors import nearest

        raise ConfigError(f"There is no party {party!r}; {nearest(party, study.names)}")
    if party == study.label:
        missing = [name for name in study.others if name not in lines]
        if listen or missing:
            one = (missing or study.others)[0]
            raise ConfigError(f"{party} has the labels and connects to the others: --connect {one}=HOST:PORT.")
        made = {name: Line(None, where, certificate, key, authority, without_tls) for name, where in lines.items()}
        labelled(study, made, view, out, resume)
        return
    if lines or listen is None:
        raise ConfigError(f"{party} is a feature party: it waits for the label party, --listen HOST:PORT.")
    line = Line(listen, None, certificate, key, authority, without_tls, only)
    feature(study, party, line, view, out, resume)


def _named(text: str, names: list[str]) -> tuple[str, str]:
    name, equals, where = text.partition("=")
    if not equals or name not in names:
        raise ConfigError(f"--connect {text!r} must be NAME=HOST:PORT with one of {', '.join(names)}.")
    return name, where


@app.command(epilog=examples("fedsub vertical bench", "fedsub vertical bench --ids 100000 --json"))
def bench(
    ids: Annotated[int, typer.Option(min=2, help="Ids of each of the two sides; half of them are shared.")] = 1_000_000,
    json: Json = False,
) -> None:
    """Time and memory of an alignment between two processes, beside its curve operations alone."""
    from fedsub.cli.show import View
    from fedsub.vertical.bench import lines
    from fedsub.vertical.bench import run as measure

    view = View(as_json=json)
    with view.busy("Aligning"):
        found = measure(ids)
    for line in lines(found):
        view.line(line)
    view.finish(found)


app.command(epilog=vertical_attack.EPILOG)(vertical_attack.attack)
