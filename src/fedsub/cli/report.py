"""`fedsub report`: the page of what was trained before, of one directory or of several together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsub.cli.commands import Json, examples
from fedsub.errors import ConfigError

if TYPE_CHECKING:
    from fedsub.cli.show import View
    from fedsub.study.comparing import Comparison
    from fedsub.study.tuning import Tuning

BEGIN = 2000  # bytes of a page within which its maker stands


def register(app: typer.Typer) -> None:
    app.command(epilog=examples(
        "fedsub report runs/demo",
        "fedsub report runs/first runs/second runs/tuned --out both.html",
        "fedsub report runs/first runs/second --name 'as it was' --name 'smaller batches'",
    ))(report)  # fmt: skip


def report(
    directories: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...",
            help="What --out was of fedsub run, compare or tune (in Python: out=), or one run's directory.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The page. Default: report.html in the directory; of several, report.html here.", metavar="FILE"
        ),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(help="The title of a chapter, in the order of the directories. Repeatable."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only where the page is.")] = False,
    json: Json = False,
) -> None:
    """Draw the page of a comparison or search again, or one page of several; nothing is trained.

    Runs that are not finished are left out, and named. Tables and PNG of one directory are written anew, too.
    """
    from fedsub.cli.show import View

    draw(directories, out, name or [], View(quiet=quiet, as_json=json))


def draw(directories: list[Path], out: Path | None, names: list[str], view: View) -> None:
    """``names`` are titles of chapters, for as many of the directories as there are names."""
    if len(names) > len(directories):
        raise ConfigError(
            f"{len(names)} names are given for {len(directories)} directories; leave --name out, or fewer."
        )
    if out is not None and (out.is_dir() or not out.suffix):
        out = out / "report.html"
    if out is None and len(directories) > 1:
        out = Path("report.html")
    if out is not None:
        _check(out)
    with view.busy("Reading"):
        from fedsub.study.reading import read_back

        parts = [read_back(directory) for directory in directories]
    if out is None:
        with view.busy("Drawing"):
            page = _own(parts[0], directories[0])
    else:
        from fedsub.study.report import write_book

        with view.busy("Drawing"):
            page = write_book(dict(zip(_titles(directories, names), parts, strict=True)), out)
    for part in parts:
        if not view.quiet:
            view.line("\n" + part.table().rstrip())
    view.line(f"Report: {page}")
    view.finish({"command": "report", "report": str(page), "directories": [str(d) for d in directories]})


def _own(part: Comparison | Tuning, folder: Path) -> Path:
    """The page of a directory, in it."""
    from fedsub.study.report import write_report, write_search
    from fedsub.study.tuning import Tuning

    return write_search(part, folder) if isinstance(part, Tuning) else write_report(part, folder)


def _titles(directories: list[Path], names: list[str]) -> list[str]:
    """Chapters by the names given, else by those of the directories, with their parents where these are alike."""
    titles = list(names)
    for directory in directories[len(names) :]:
        whole = directory.resolve()
        same = [d for d in directories if d.resolve() != whole and d.resolve().name == whole.name]
        titles.append(f"{whole.parent.name}/{whole.name}" if same else whole.name)
    twice = sorted({title for title in titles if titles.count(title) > 1})
    if twice:
        raise ConfigError(
            f"Two chapters are called {twice[0]!r}; name them by --name, in the order of the directories."
        )
    return titles


def _check(page: Path) -> None:
    """Refuse to write over a file that is no page of fedsub."""
    from fedsub.study.report.page import GENERATOR

    if not page.exists():
        return
    with page.open("rb") as file:
        if GENERATOR.encode() not in file.read(BEGIN):
            raise ConfigError(f"{page} is there already and is no page of fedsub; choose another --out.")
