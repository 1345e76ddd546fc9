"""What the commands print, and where: people's text on stdout, or on stderr when stdout is for JSON."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from fedsub.disk.text import visible
from fedsub.errors import DataNotice, FedsubError

if TYPE_CHECKING:
    from fedsub.study.comparing import Comparison


class View:
    def __init__(self, *, quiet: bool = False, as_json: bool = False):
        self.quiet, self.as_json = quiet, as_json
        self.console = console(stderr=as_json)

    def note(self, text: str, style: str = "") -> None:
        """A line that --quiet leaves out."""
        tell()
        if not self.quiet:
            self.line(text, style)

    def line(self, text: str, style: str = "") -> None:
        tell()
        self.console.print(Text(visible(text), style), soft_wrap=True)

    def stopped(self, text: str) -> None:
        console(stderr=True).print(Text(visible(text), "yellow"), soft_wrap=True)

    def busy(self, text: str) -> AbstractContextManager[Any]:
        """A spinner, on a terminal."""
        plain = self.quiet or not self.console.is_terminal
        return nullcontext() if plain else self.console.status(f"{text} …")

    def table(self, comparison: Comparison) -> None:
        tell()
        if self.console.is_terminal:
            from fedsub.study.report.table import rich_table

            self.console.print(rich_table(comparison, self.console.width))
        else:  # a file or a pipe has no width to fold to
            self.console.print(Text("\n" + comparison.table()), soft_wrap=True)

    def finish(self, value: dict[str, Any]) -> None:
        """The one JSON object of --json."""
        tell()
        if self.as_json:
            from fedsub.disk.files import plain

            try:
                sys.stdout.write(json.dumps(plain(value, special=lambda _: None), indent=2) + "\n")
                sys.stdout.flush()
            except BrokenPipeError:
                _discard(sys.stdout)


class _Patient(Console):
    """A reader that leaves, as `head` does, ends the output and not the training."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        _discard(self.file)


def _discard(stream: IO[str]) -> None:
    """Send what a stream still holds, and all that follows, nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def console(*, stderr: bool = False) -> Console:
    made = _Patient(stderr=stderr, highlight=False)
    if not made.is_terminal:
        made.width = 140  # a file has no width; tables need not fold at 80
    return made


def error(text: str) -> None:
    console(stderr=True).print(Text("Error: ", "bold red") + Text(visible(text), "red"), soft_wrap=True)


@contextmanager
def data_notices() -> Iterator[None]:
    """What is said about data comes as a line of its own on stderr, once; other warnings as they are.

    It waits for what a command prints next: after a mistake, the mistake comes first.
    """
    said: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("always", DataNotice)
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if not issubclass(category, DataNotice):
                usual(message, category, *where, **more)
            elif str(message) not in said:
                said.add(str(message))
                _waiting.append(f"Note: {message}")

        warnings.showwarning = show
        try:
            yield
        except FedsubError:
            _waiting.clear()
            raise
        finally:
            tell()


_waiting: list[str] = []


def tell() -> None:
    """Print the notices that wait."""
    while _waiting:
        console(stderr=True).print(Text(visible(_waiting.pop(0)), "yellow"), soft_wrap=True)


def number(value: float | None) -> str:
    """A metric in few characters."""
    if value is None:
        return "–"
    return "nan" if value != value else f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.3g}"
