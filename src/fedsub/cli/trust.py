"""Code of a configuration: it is said which files are executed, and asked before one is that lies elsewhere.

An objective or a method "file.py:function" is executed with all the rights of who calls fedsub. A configuration may
come from somebody else; what lies beside it came with it, and what was written on the command line is the caller's own.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedsub.cli.show import View
from fedsub.disk.functions import find
from fedsub.disk.seal import read_sealed
from fedsub.errors import ConfigError

if TYPE_CHECKING:
    from fedsub.study.experiment.experiment import Experiment


def check(experiment: Experiment, view: View, *, trust: bool, folder: Path | None) -> None:
    """Say what is executed, and refuse or ask for what lies outside ``folder`` (None: wherever it lies)."""
    check_code(experiment.code(), experiment.base, view, trust=trust, folder=folder, typed=experiment.typed)


def check_run(run: Path, view: View, *, trust: bool) -> None:
    """The same for what makes the module of a run's directory, or of the only run in it."""
    from fedsub.running import keep
    from fedsub.running.start import first_run

    folder = first_run(run)
    try:
        recipe = read_sealed(folder / keep.ABOUT).get("recipe") or {}
    except (OSError, ValueError):
        return  # who loads it will say so
    if "function" in recipe:
        base = Path(recipe["base"])
        check_code({"model.objective": recipe["function"]}, base, view, trust=trust, folder=folder_of(folder, base))


def check_code(
    code: Mapping[str, str], base: Path, view: View, *, trust: bool, folder: Path | None,
    typed: frozenset[str] = frozenset(),
) -> None:  # fmt: skip
    """The same for functions by the settings that name them; those ``typed`` are the caller's own."""
    inside, outside = [], []
    for where, spec in code.items():
        file = find(spec, base)
        near = folder is not None and file is not None and file.is_relative_to(folder.resolve())
        shown = f"{file or 'the module ' + spec.partition(':')[0]} ({where})"
        (inside if near or spec in typed else outside).append(shown)
    if inside:
        (view.note if base == Path.cwd() else view.stopped)(f"Executes code: {', '.join(inside)}")
    if not outside:
        return
    what = f"The configuration names code that lies outside its folder {base}: {', '.join(outside)}"
    if trust:
        view.stopped(f"Executes code from elsewhere, as --trust allows: {', '.join(outside)}")
    elif not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(f"{what}. It can do all that you can; look at it, then say --trust to have it executed.")
    elif not typer.confirm(f"{what}. It can do all that you can. Execute it?", err=True):
        raise ConfigError("Nothing was executed; to answer beforehand: --trust.")


def folder_of(out: Path, base: Path) -> Path | None:
    """Where code may lie that a directory of results names: the folder it was started in, if that is near.

    Results can come from elsewhere, and say what they like of where they were made.
    """
    folder, here = base.resolve(), Path.cwd()
    near = folder.is_relative_to(here) or any(path.is_relative_to(folder) for path in (out.resolve(), here))
    return base if near and folder != Path(folder.anchor) else None
