"""`fedsub predict`, `recommend` and `export`: what was trained, in use."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsub.cli import trust
from fedsub.cli.commands import Json, Trust, examples
from fedsub.cli.show import View, number
from fedsub.errors import ConfigError, FedsubError

if TYPE_CHECKING:
    import polars as pl

    from fedsub.data import Clients

Run = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="A run's directory, or one with a single run in it.", show_default=False),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only where the results are.")]
ENDINGS = (".csv", ".tsv", ".parquet")


def register(app: typer.Typer) -> None:
    app.command(epilog=examples(
        "fedsub predict runs/demo/fedsubavg-seed0 new.csv --out scored.csv",
        "fedsub predict runs/demo new.parquet --unknown empty --prefix model_",
    ))(predict)  # fmt: skip
    app.command(epilog=examples(
        "fedsub recommend runs/demo/fedsubavg-seed0 --client anna --top 10",
        "fedsub recommend runs/demo --client anna --client bert --data newer.csv --out lists.csv",
    ))(recommend)  # fmt: skip
    app.command(epilog=examples(
        "fedsub export runs/demo/fedsubavg-seed0 exported",
        "python exported/score.py new.csv --out scored.csv",
        "fedsub export runs/personal exported-anna --client anna --no-onnx",
    ))(export)  # fmt: skip


def predict(
    run: Run,
    data: Annotated[
        Path,
        typer.Argument(metavar="DATA", help="A table like the run's own: .csv, .tsv, .parquet.", show_default=False),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Where to write. Default: NAME.scored.csv in this folder.", metavar="FILE")
    ] = None,
    unknown: Annotated[
        str,
        typer.Option(
            help="Ids that training never saw: they count as a row of zeros (zero), leave the score empty (empty), or "
            "are refused (refuse)."
        ),
    ] = "zero",
    client: Annotated[
        str | None, typer.Option(help="Column of clients, of personal models. Default: that of the training data.")
    ] = None,
    prefix: Annotated[str, typer.Option(help="Of the names of the new columns.")] = "",
    separator: Annotated[str | None, typer.Option(help="Between columns of text, where it is not clear.")] = None,
    encoding: Annotated[str | None, typer.Option(help="Of text, such as cp1252. Default: as in training.")] = None,
    quiet: Quiet = False,
    json: Json = False,
    may_execute: Trust = False,
) -> None:
    """Append a trained model's scores to a table; every row keeps its place.

    Labels are not needed. New columns: score, and probability for two classes (or class, probability, score).
    """
    view = View(quiet=quiet, as_json=json)
    trust.check_run(run, view, trust=may_execute)
    target = out or Path(f"{data.name.partition('.')[0]}.scored{_ending(data)}")
    _check_target(target, data)
    with view.busy("Loading"):
        from fedsub.serving.predict import predict as ask

        found = ask(
            run, data, client=client, unknown=unknown, prefix=prefix, separator=separator, encoding=encoding
        )  # fmt: skip
    _write(found.frame, target, _separator(data, separator, encoding))
    for sentence in found.sentences():
        view.note(sentence)
    view.line(f"{len(found.frame):,} rows with their scores: {target}")
    view.finish({
        "out": str(target), "rows": len(found.frame), "without_score": found.without, "unknown": dict(found.unknown),
        "incomplete": dict(found.incomplete), "new_clients": found.new_clients,
    })  # fmt: skip


def recommend(
    run: Run,
    client: Annotated[list[str], typer.Option(help="Id of a client in the data. Repeatable.", show_default=False)],
    top: Annotated[int, typer.Option(min=1, help="How many items.")] = 10,
    item: Annotated[
        str | None, typer.Option(help="Column of the items. Default: the only id column, or the one called item.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Samples of the clients. Default: all data of the run, where they can be read.", metavar="FILE"
        ),
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="Column of clients in --data. Default: that of the training data.")
    ] = None,
    include_seen: Annotated[bool, typer.Option("--include-seen", help="Also items that the client has seen.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the list to a file, too.", metavar="FILE")] = None,
    quiet: Quiet = False,
    json: Json = False,
    may_execute: Trust = False,
) -> None:
    """The items that a trained model ranks first for a client, without those that it has seen.

    What the model reads besides the item comes from the client's last sample; what goes with the item (a genre) from
    the data.
    """
    view = View(quiet=quiet, as_json=json)
    trust.check_run(run, view, trust=may_execute)
    if out is not None:
        _check_target(out, data)
    with view.busy("Loading"):
        from fedsub.serving.recommend import recommend as ask

        known: Any = data if data is not None else _data_of(run, view)
        found = ask(
            run, client, top=top, item=item, data=known, exclude_seen=not include_seen, client_column=column
        )  # fmt: skip
    if out is not None:
        _write(found, out)
    _show(found, view)
    view.finish({"run": str(run), "top": top, "recommended": found.to_dicts()})


def export(
    run: Run,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the model.", show_default=False)],
    client: Annotated[
        str | None, typer.Option(help="Of a personal model: that of this client alone.", show_default=False)
    ] = None,
    onnx: Annotated[
        bool | None,
        typer.Option("--onnx/--no-onnx", help="Insist on model.onnx, or leave it out. Default: where it is possible."),
    ] = None,
    quiet: Quiet = False,
    json: Json = False,
    may_execute: Trust = False,
) -> None:
    """Write a trained model into a folder that needs no fedsub: state dict, vocabularies, configuration, score.py.

    score.py needs torch and safetensors only. model.onnx is there too where the module allows and the packages onnx and
    onnxscript are installed.
    """
    view = View(quiet=quiet, as_json=json)
    trust.check_run(run, view, trust=may_execute)
    with view.busy("Exporting"):
        from fedsub.serving.export import export as write

        made = write(run, folder, client=client, onnx=onnx)
    for note in made.notes:
        view.note(note)
    view.line(f"{made.path}: {', '.join(made.files)}")
    view.finish({"out": str(made.path), "files": list(made.files), "notes": list(made.notes)})


def _data_of(run: Path, view: View) -> Clients | None:
    """All data of a run that the command line made, if they can still be read."""
    from fedsub.cli import folder

    if not any((f / folder.FILE).is_file() for f in (run, run.resolve().parent)):
        view.note("Nothing is known of what clients have seen; --data names a file with it.")
        return None
    try:
        _, _, experiment, _ = folder.load(run)
        return experiment.clients()
    except FedsubError as error:
        view.stopped(f"The data of the run cannot be read, so what clients have seen is not known ({error})")
        return None


def _ending(data: Path) -> str:
    return next((ending for ending in ENDINGS if ending in data.name.lower()), ".csv")


def _check_target(target: Path, data: Path | None) -> None:
    """Refuse before any work what cannot be written to, or would be lost."""
    if target.suffix.lower() not in ENDINGS:
        raise ConfigError(f"{target} ends in {target.suffix!r}, expected {', '.join(ENDINGS)}.")
    if data is not None and target.exists() and data.exists() and target.samefile(data):
        raise ConfigError(f"{target} is the data itself; name another --out.")
    if target.exists():
        raise ConfigError(f"{target} is there already; name another --out, or remove it.")
    if not target.resolve().parent.is_dir():
        raise ConfigError(f"There is no folder {target.parent}; make it, or name another --out.")


def _separator(data: Path, separator: str | None, encoding: str | None) -> str:
    """That of the data, so that what comes out reads like what went in."""
    from fedsub.data.reading import TEXT, TableFile

    return TableFile.of(data, separator, encoding).separator if data.name.lower().endswith(TEXT) else ","


def _write(frame: pl.DataFrame, target: Path, separator: str = ",") -> None:
    import polars as pl

    from fedsub.disk.files import write_atomic

    raw, kind = io.BytesIO(), target.suffix.lower()
    try:
        if kind == ".parquet":
            frame.write_parquet(raw)
        else:
            frame.write_csv(raw, separator="\t" if kind == ".tsv" else separator)
    except pl.exceptions.PolarsError as error:
        raise ConfigError(f"{target} cannot hold this table ({error}); name a .parquet file.") from error
    write_atomic(target, raw.getvalue())


def _show(found: pl.DataFrame, view: View) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in found.columns:
        table.add_column(Text(name), justify="right" if found[name].dtype.is_numeric() else "left")
    for row in found.iter_rows():
        table.add_row(*(Text(number(v) if isinstance(v, float) else str(v)) for v in row))
    view.console.print(table)
