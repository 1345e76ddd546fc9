"""`fedsub data`: the public data sets that fedsub can read, and how to get them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsub.cli.commands import examples
from fedsub.cli.generate import generate
from fedsub.cli.shard import EPILOG, shard
from fedsub.errors import DataError, DownloadError

if TYPE_CHECKING:
    from fedsub.cli.show import View
    from fedsub.data.datasets import DataSet

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Public data sets: what there is, how to get it, what a directory holds.",
)
app.command()(generate)
app.command(epilog=EPILOG)(shard)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A data set; `fedsub data list` shows them.")]
To = Annotated[Path | None, typer.Option("--to", help="Where to save it. Default: the cache.", metavar="DIR")]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", help="A choice of the data set: history=released. Repeatable.", metavar="KEY=VALUE"),
]
Force = Annotated[bool, typer.Option("--force", help="Replace what was saved there before.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout.")]


def _own(help: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel="A table of your own", **more)


@app.command("list")
def list_(json: Json = False) -> None:
    """All data sets: size, licence, and whether they are in the cache."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from fedsub.cli.show import View
    from fedsub.data.convex import BUNDLED
    from fedsub.data.datasets import DATASETS, cache_dir, find

    view = View(as_json=json)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("name", "title", "clients", "samples", "licence", "cached"):
        table.add_column(heading, justify="right" if heading in ("clients", "samples") else "left", overflow="fold")
    rows = []
    for d in DATASETS.values():
        place = find(d.name)
        clients, samples = (f"{n:,}" for n in d.shape) if d.shape else ("–", "–")
        table.add_row(d.name, d.title, clients, samples, d.licence_short, "no" if place is None else "yes")
        shape = {"clients": d.shape[0], "samples": d.shape[1]} if d.shape else {"clients": None, "samples": None}
        rows.append({"name": d.name, "title": d.title, **shape, "licence": d.licence_short, "cached": place})
    for name, b in BUNDLED.items():
        table.add_row(name, b.title, "any", f"{b.samples:,}", "with scikit-learn", "–")
        about = {"name": name, "title": b.title, "clients": None, "samples": b.samples}
        rows.append({**about, "licence": "with scikit-learn", "cached": None})
    view.console.print(table)
    view.line(f"Cache: {cache_dir()} (FEDSUB_HOME changes it). More: fedsub data info NAME")
    view.finish({"cache": cache_dir(), "datasets": rows})


@app.command()
def info(
    what: Annotated[str, typer.Argument(metavar="NAME_OR_DIR", help="A data set, or a directory or file with one.")],
    json: Json = False,
) -> None:
    """Everything about a data set, or what a directory holds."""
    from fedsub.cli.show import View
    from fedsub.data.convex import BUNDLED
    from fedsub.data.datasets import DATASETS, recognise
    from fedsub.data.store import provenance
    from fedsub.errors import nearest

    view, path = View(as_json=json), Path(what).expanduser()
    if what in DATASETS:
        return _about(DATASETS[what], view)
    if what in BUNDLED:
        return _about_bundled(what, view)
    if not path.exists():
        known = nearest(what, (*DATASETS, *BUNDLED))
        raise DataError(f"There is no data set and nothing on disk called {what!r}; {known}")
    if provenance(path) is not None:
        return _contents(path, view)
    name = recognise(path)
    if name is None:
        raise DataError(f"{path} is neither a saved directory nor a data set that is known: {', '.join(DATASETS)}.")
    view.line(f"{path} looks like {DATASETS[name].title}. To save it for training: fedsub data import {path}")
    view.finish({"path": path, "looks_like": name})


@app.command("import", epilog=examples(
    "fedsub data import ~/Downloads/ml-1m.zip",
    "fedsub data import log/ --client user --table item --label click --to clicks.fedsub --memory 2GB",
))  # fmt: skip
def import_(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME] PATH",
            help="The files as downloaded: a folder, .zip, .gz, .csv, … Which data set it is shows in the files; NAME "
            "says it. With --client: a table of your own, in a file, a folder of files, or at an address (s3://…).",
        ),
    ],
    to: To = None,
    option: Options = None,
    force: Force = False,
    client: Annotated[str | None, _own("Column with the owner of each row.")] = None,
    label: Annotated[str | None, _own("What to predict: a column (0 or 1, or two names), or 'rating>=4'.")] = None,
    table: Annotated[
        list[str] | None, _own("Id column, or NAME=COL,COL for columns that share one table. Repeatable.")
    ] = None,
    value: Annotated[list[str] | None, _own("Plain column, such as a feature or a time. Repeatable.")] = None,
    nulls: Annotated[
        str | None, _own("Missing entries: refuse (default), drop their rows, or give ids a row of their own.")
    ] = None,
    binary_label: Annotated[
        bool | None, _own("Whether the label is 0 or 1 (default), or any number.", "--binary-label/--any-label")
    ] = None,
    max_len: Annotated[int | None, _own("Keep so many ids of each list, the last ones.")] = None,
    separator: Annotated[str | None, _own("Between the columns of text: ';', 'tab', … Guessed where clear.")] = None,
    encoding: Annotated[str | None, _own("Of text: utf-8, cp1252, utf-16, … Guessed where clear.")] = None,
    memory: Annotated[
        str | None, _own("Memory of the process at most: 2GB. Default: a quarter of the computer's.", metavar="SIZE")
    ] = None,
    workers: Annotated[int | None, _own("Pieces that are read at a time. Default: the computer's cores.")] = None,
    rows: Annotated[
        list[str] | None,
        _own("Rows of a table whose ids are rows already, from 0: item=1000. Repeatable.", metavar="NAME=N"),
    ] = None,
) -> None:
    """Read files that are on this computer and save them for training; needs no network.

    A data set that fedsub knows, or with --client a table of your own, which may be larger than memory: interrupted,
    the same command goes on where it was.
    """
    from fedsub.cli.own_data import Own, import_own, is_own
    from fedsub.cli.show import View
    from fedsub.data.datasets.cache import get

    own = Own(client, label, table, value, nulls, binary_label, max_len, separator, encoding, memory, workers, rows)
    if len(what) == 1 and is_own(what[0], own):
        if option:
            raise DataError("--option is for data sets that fedsub knows; leave it out for a table of your own.")
        return import_own(what[0], own, to, force, View())
    if own.given:
        raise DataError(
            f"{', '.join(own.given)} {'says' if len(own.given) == 1 else 'say'} how to read a table of your own; give "
            "its path and --client, the column with the owner of each row."
        )
    if len(what) > 2:
        raise DataError(
            f"import takes a data set's name and one path, and was given {', '.join(what)}; put the files into one "
            "folder, and a path with spaces into quotes."
        )
    path = Path(what[-1]).expanduser()
    dataset, view = get(what[0]) if len(what) == 2 else _recognised(path), View()
    chosen = _chosen(dataset, option)
    target = _target(dataset, chosen, to, force)
    _save(dataset, path, chosen, target, view)


def _recognised(path: Path) -> DataSet:
    """The data set that a path holds, by what is inside."""
    from fedsub.data.datasets import DATASETS, recognise
    from fedsub.data.datasets.source import Source

    if str(path) in DATASETS and not path.exists():
        raise DataError(f"Where are the files of {path}? Give their path, too: fedsub data import {path} PATH")
    with Source(path) as source:
        seen = source.seen  # what is missing or damaged is told here
    name = recognise(path)
    if name is None:
        raise DataError(
            f"{path} (there is {seen}) is not one of {', '.join(DATASETS)}, or could be more than one. Give the folder "
            f"or file of one data set, or say which it is: fedsub data import NAME {path}"
        )
    return DATASETS[name]


@app.command("get")
def get_(name: Name, to: To = None, option: Options = None, force: Force = False) -> None:
    """Download a data set from its official site, check it and save it for training.

    A download that was cut goes on where it stopped. The licence is printed; using the data means accepting it.
    """
    from fedsub.cli.show import View, error
    from fedsub.data.datasets import cache_dir
    from fedsub.data.datasets.cache import by_hand, get
    from fedsub.data.datasets.download import fetch

    dataset, view = get(name), View()
    chosen = _chosen(dataset, option)
    target = _target(dataset, chosen, to, force)
    view.line(f"{dataset.title}, from {dataset.home}")
    view.line(f"Licence: {dataset.licence}")
    view.line(f"Cite: {dataset.citation}")
    folder = cache_dir() / dataset.name
    try:
        for file in dataset.files:
            with _bar(view, file.name) as progress:
                fetch(file, folder, progress)
            known = "checked" if file.sha256 or file.md5 else "no digest is known, so only its form is checked"
            view.line(f"{folder / file.name}: {known}.")
    except DownloadError as problem:
        error(f"{problem} By hand: {by_hand(dataset)}")
        raise typer.Exit(1) from None
    _save(dataset, folder, chosen, target, view)


def _chosen(dataset: DataSet, texts: list[str] | None) -> dict[str, Any]:
    given = {}
    for text in texts or []:
        key, equals, value = text.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise DataError(f"Cannot read --option {text!r}; write it like --option history=released.")
        given[key.strip()] = value.strip()
    return dataset.chosen(given)


def _target(dataset: DataSet, chosen: dict[str, Any], to: Path | None, force: bool) -> Path:
    """Where to save; refused before any work when something is there."""
    from fedsub.data.datasets.cache import saved_at
    from fedsub.data.store import provenance

    target = saved_at(dataset, chosen) if to is None else to.expanduser()
    if not force and provenance(target) is not None:
        raise DataError(f"{target} holds saved data already; --force replaces it, --to DIR saves somewhere else.")
    return target


def _save(dataset: DataSet, origin: Path, chosen: dict[str, Any], target: Path, view: View) -> None:
    from fedsub.data.datasets.cache import save

    with view.busy(f"Reading {dataset.title}"):
        clients = dataset.read(origin, **chosen)
        save(dataset, clients, target, chosen, origin)
    view.line(f"{len(clients):,} clients, {clients.samples:,} samples saved in {target}")


def _bar(view: View, name: str):
    """A context manager that gives `fetch` something to report to."""
    from contextlib import contextmanager

    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    @contextmanager
    def shown():
        parts = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*parts, TimeRemainingColumn(), console=view.console, transient=True) as bar:
            task = bar.add_task(name, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    return shown()


def _about(dataset: DataSet, view: View) -> None:
    from fedsub.data.datasets import cache_dir, find
    from fedsub.data.datasets.cache import by_hand

    place = find(dataset.name)
    view.line(f"{dataset.name}: {dataset.title}", "bold")
    view.line(f"What: {dataset.summary}")
    if dataset.shape:
        view.line(f"Size: {dataset.shape[0]:,} clients, {dataset.shape[1]:,} samples with the default options")
    view.line(f"Home: {dataset.home}")
    for file in dataset.files:
        digest = f"sha256 {file.sha256}" if file.sha256 else f"md5 {file.md5}" if file.md5 else "digest not known"
        size = f"{file.size:,} bytes" if file.size else "size not known"
        view.line(f"File: {file.name} ({size}, {digest}), {file.url or 'to be placed by hand'}")
    view.line(f"Licence: {dataset.licence}")
    view.line(f"Cite: {dataset.citation}")
    view.line(f"Test part: clients.split({', '.join(f'{k}={v!r}' for k, v in dataset.split.items())})")
    view.line("Options:")
    for option in dataset.options.values():
        view.line(f"  {option.name}={option.default}  {option.about} ({option.allowed})")
    view.line(f"By hand: {by_hand(dataset)}")
    view.line(f"In the cache: {place or f'no (it would be {cache_dir() / dataset.name})'}")
    about = {k: getattr(dataset, k) for k in ("name", "title", "summary", "home", "licence", "citation", "shape")}
    files = [vars(file) for file in dataset.files]
    options = {o.name: {"default": o.default, "allowed": o.allowed, "about": o.about} for o in dataset.options.values()}
    view.finish(about | {"files": files, "options": options, "split": dict(dataset.split), "cached": place})


def _about_bundled(name: str, view: View) -> None:
    from fedsub.data.convex import BUNDLED
    from fedsub.study.experiment import tasks

    about = BUNDLED[name]
    view.line(f"{name}: {about.title}", "bold")
    view.line(f"What: {about.about}")
    view.line(f"Size: {about.samples:,} samples of {about.features} features")
    view.line("Comes with scikit-learn (pip install -e '.[sklearn]'); nothing is downloaded.")
    view.line(f"Cite: {about.citation}")
    view.line("Options (--set data.options.NAME=VALUE):")
    options = tasks.convex_options(name)
    for option in options.values():
        view.line(f"  {option.name}={option.default}  {option.about} ({option.allowed})")
    said = {o.name: {"default": o.default, "allowed": o.allowed, "about": o.about} for o in options.values()}
    view.finish({"name": name, **vars(about), "options": said})


def _contents(path: Path, view: View) -> None:
    from fedsub.data.heat import kept, summarise
    from fedsub.data.store import open_clients, provenance

    made = provenance(path) or {}
    with view.busy("Reading"):
        clients = open_clients(path)
        heat = kept(made) or summarise(clients)
    view.line(f"{path}: {made.get('dataset', 'data saved by Clients.save')}", "bold")
    each = clients.samples / len(clients)
    view.line(f"{len(clients):,} clients, {clients.samples:,} samples, {each:.1f} per client")
    for space, own in zip(clients.spaces.values(), heat.spaces, strict=True):
        padded = ", row 0 is padding" if space.padding else ""
        used = ", ".join(space.columns)
        view.line(f"Table {space.name}: {space.size:,} rows{padded}; columns {used}; dispersion {own.dispersion:,.4g}")
    view.line(f"Dispersion of all: {heat.overall.dispersion:,.4g}, hottest {heat.overall.hottest}")
    if made:
        words = ", ".join(f"{k}={v}" for k, v in made.get("options", {}).items())
        view.line(f"Made from {made.get('source')} with {words}")
    view.line(f"Fingerprint: {clients.fingerprint}")
    view.finish(
        {
            "path": path, "clients": len(clients), "samples": clients.samples, "per_client": each,
            "spaces": {
                s.name: {"rows": s.size, "columns": s.columns, "padding": s.padding} for s in clients.spaces.values()
            },
            "dispersion": heat.overall.dispersion, "fingerprint": clients.fingerprint, "made": made,
        }
    )  # fmt: skip
